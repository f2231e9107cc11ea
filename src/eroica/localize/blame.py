"""Who came last to an execution of a collective, and who does so again and again.

A site is the n-th execution of an iteration: the same place in the code, as far as anybody can tell.

Array suffixes: M members of a group, K matched executions, I iterations, S sites.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from eroica.localize.matching import end_residuals

Floats = NDArray[np.float64]
#: Share of iterations in which a latecomer must be late again, at least, and beyond its turn.
_OFTEN = 0.35
_BEYOND_CHANCE = 0.2
#: At most this share of the members can come last together.
_LATE_TOGETHER = 0.5
#: Who waits for less than this share of what the others wait came late with the last.
_NEARLY_LAST = 0.15
#: Share of the ends that lie within the measured skew.
_MOST_ENDS = 0.9
#: Executions at a site from which it shows who is usually last there.
_FEWEST_AT_SITE = 5
#: Standard deviations beyond its turn from which one who is late at a site is no chance, of hundreds of sites.
_BEYOND_TURN = 4.0


def sites_of(column_K: NDArray[np.intp]) -> NDArray[np.intp]:
    """Number of each execution within its iteration. intp [K].

    Args:
        column_K: Iteration of each execution, in order of time.
    """
    begins_K = np.flatnonzero(np.diff(column_K, prepend=column_K[:1] - 1))
    places_K = np.arange(column_K.size)
    return places_K - np.repeat(begins_K, np.diff(np.append(begins_K, column_K.size)))


def exit_skew(duration_MK: Floats, floor_us: float, site_K: NDArray[np.intp] | None = None) -> float:
    """How unevenly members leave, from gaps that no constant latecomer explains, microseconds.

    The gap between the shortest and the next duration mixes a late arrival with uneven leaving. Gaps of executions
    whose shortest member is not the one that is shortest most often, there or at all, show the latter: three quarters
    of them lie below the skew.

    Args:
        duration_MK: Durations of the matched executions. float64 [M, K].
        floor_us: Least skew to be expected of this backend.
        site_K: Where each was called: two can be late, each at a place of its own. None = all at one.
    """
    if duration_MK.shape[1] == 0:
        return floor_us
    owner_K = duration_MK.argmin(axis=0)
    usual_K = _usual_owner(owner_K, np.zeros_like(owner_K) if site_K is None else site_K, duration_MK.shape[0])
    shortest_2K = np.partition(duration_MK, 1, axis=0)[:2]
    gaps = (shortest_2K[1] - shortest_2K[0])[owner_K != usual_K]
    return max(float(np.quantile(gaps, 0.75)), floor_us) if gaps.size else floor_us


def _usual_owner(owner_K: NDArray[np.intp], site_K: NDArray[np.intp], members: int) -> NDArray[np.intp]:
    """Who is shortest most often at the site of each execution; at a site with few of them, of all. intp [K]."""
    count_SM = np.zeros((int(site_K.max()) + 1, members), dtype=np.intp)
    np.add.at(count_SM, (site_K, owner_K), 1)
    usual_S = np.where(count_SM.sum(axis=1) < _FEWEST_AT_SITE, count_SM.sum(axis=0).argmax(), count_SM.argmax(axis=1))
    return np.asarray(usual_S[site_K])


def shares_of_blame(duration_MK: Floats, skew_us: float) -> Floats:
    """Who came last in each execution.

    Those within `skew_us` of the shortest came last together and share the blame, if the next one is further off than
    the skew and they are at most half of the members. Else nobody came last.

    Args:
        duration_MK: Durations. float64 [M, K].
        skew_us: See `exit_skew`.

    Returns:
        Shares, each column sums to 1 or 0. float64 [M, K].
    """
    late_MK = duration_MK - duration_MK.min(axis=0) <= skew_us
    edge_K = np.where(late_MK, duration_MK, -np.inf).max(axis=0)
    next_K = np.where(late_MK, np.inf, duration_MK).min(axis=0)
    count_K = late_MK.sum(axis=0)
    clear_K = (next_K - edge_K > skew_us) & (count_K <= max(1, int(_LATE_TOGETHER * duration_MK.shape[0])))
    return np.where(clear_K, late_MK / count_K, 0.0)


def keep_repeated(share_MK: Floats, wait_MK: Floats, columns_MK: NDArray[np.intp], site_K: NDArray[np.intp]) -> Floats:
    """Shares of those who come last again and again; who does so by chance keeps none.

    A member is among the late of an iteration if the waiting laid at it there is at least half of what is laid at
    anybody. It must be so in clearly more of the iterations than its turn would be; or it must come last in as many
    executions at one site, and keeps its shares there.

    Args:
        share_MK: Shares of blame. float64 [M, K].
        wait_MK: Critical waiting. float64 [M, K].
        columns_MK: Iteration of each execution on each member, -1 = does not count. intp [M, K].
        site_K: Where each was called. intp [K].
    """
    counted = np.asarray((columns_MK >= 0).all(axis=0), dtype=np.bool_)
    if not counted.any():
        return share_MK
    column_K = np.where(counted, columns_MK[0], 0)
    blame_MI = np.zeros((share_MK.shape[0], int(column_K.max()) + 1))
    np.add.at(blame_MI.T, column_K, (share_MK * wait_MK.sum(axis=0) * counted).T)
    highest_I = blame_MI.max(axis=0)
    blamed = highest_I > 0
    if not blamed.any():
        return share_MK
    often_M = (blame_MI[:, blamed] >= highest_I[blamed] / 2).mean(axis=1)
    often_M1 = is_often(often_M, share_MK.shape[0])[:, None]
    return np.asarray(share_MK * (often_M1 | _often_at_sites(share_MK * counted, site_K, counted)))


def _often_at_sites(share_MK: Floats, site_K: NDArray[np.intp], counted_K: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether a member comes last at the site of each execution far more often than its turn. bool [M, K]."""
    members = share_MK.shape[0]
    late = np.flatnonzero(share_MK.any(axis=1))  # of many members few are
    late_SL = np.zeros((int(site_K.max()) + 1, late.size))
    np.add.at(late_SL, site_K, (share_MK[late] > 0).T)
    count_S1 = np.bincount(site_K, weights=counted_K, minlength=late_SL.shape[0])[:, None]
    turn = 1 / members
    beyond_SL = (late_SL - turn * count_S1) / np.sqrt(np.maximum(count_S1 * turn * (1 - turn), 1e-9))
    often_SL = is_often(late_SL / count_S1.clip(1), members) & (beyond_SL >= _BEYOND_TURN)
    found_MK = np.zeros(share_MK.shape, dtype=np.bool_)
    found_MK[late] = (often_SL & (count_S1 >= _FEWEST_AT_SITE))[site_K].T
    return found_MK


def is_often(often_M: Floats, members: int) -> NDArray[np.bool_]:
    """Whether members are late in clearly more iterations (or executions) than their turn would be. bool [M]."""
    return np.asarray(often_M >= max(_OFTEN, 1 / members + _BEYOND_CHANCE), dtype=np.bool_)


def nearly_last(duration_MK: Floats, skew_us: float) -> NDArray[np.bool_]:
    """Who came last, or so shortly before that it waited for a small share of what the others did. bool [M, K].

    Two who are late come last in turns; the order of those who wait for nearly nothing is chance.
    """
    waited_MK = duration_MK - duration_MK.min(axis=0)
    usual_K = np.median(np.sort(waited_MK, axis=0)[1:], axis=0) if len(waited_MK) > 1 else waited_MK[0]
    near_MK = waited_MK <= np.maximum(skew_us, _NEARLY_LAST * usual_K)
    return np.asarray(near_MK & (near_MK.sum(axis=0) <= max(1, int(_LATE_TOGETHER * len(near_MK)))), dtype=np.bool_)


def measured_skew(end_MK: Floats, floor_us: float) -> float:
    """How unevenly members leave where the ends were written down: two may be off in opposite directions.

    Args:
        end_MK: Ends on each member's own clock, microseconds. float64 [M, K].
        floor_us: Least skew.
    """
    return max(2 * float(np.quantile(end_residuals(end_MK), _MOST_ENDS)), floor_us)
