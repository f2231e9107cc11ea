"""Find the workers that come last to executions of a collective, and those that do so again and again.

A site is the n-th execution of an iteration: the same place in the code, as far as anybody can tell. Groups with as
many members and executions, which lie in the same iterations, are judged in one go.

Array suffixes: G groups of M members, K matched executions, I iterations, S sites, R runs of executions in one
iteration, L members of any group.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from eroica.localize.matching import end_residuals

Floats = NDArray[np.float64]
#: Share of iterations in which a latecomer must be late again, at least, and beyond its turn.
OFTEN = 0.35
BEYOND_CHANCE = 0.2
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


def exit_skew(duration_GMK: Floats, floor_G: Floats | float, site_K: NDArray[np.intp]) -> Floats:
    """Estimate how unevenly members leave, from gaps that no constant latecomer explains, microseconds.

    The gap between the shortest and the next duration mixes a late arrival with uneven leaving. Gaps of executions
    whose shortest member is not the one that is shortest most often, there or at all, show the latter: three quarters
    of them lie below the skew.

    Args:
        duration_GMK: Durations of the matched executions. float64 [G, M, K].
        floor_G: Least skew to be expected of each group's backend. float64 [G], or one for all.
        site_K: Where each was called: two can be late, each at a place of its own. intp [K].

    Returns:
        float64 [G].
    """
    groups, _, count = duration_GMK.shape
    least_G = np.broadcast_to(np.asarray(floor_G, dtype=np.float64), groups)
    if not count:
        return least_G.copy()
    owner_GK = duration_GMK.argmin(axis=1)
    usual_GK = _usual_owner(owner_GK, site_K, duration_GMK.shape[1])
    shortest_G2K = np.partition(duration_GMK, 1, axis=1)[:, :2]
    return np.maximum(_upper_quartile(shortest_G2K[:, 1] - shortest_G2K[:, 0], owner_GK != usual_GK), least_G)


def _usual_owner(owner_GK: NDArray[np.intp], site_K: NDArray[np.intp], members: int) -> NDArray[np.intp]:
    """Find the member that is shortest most often at the site of each execution. intp [G, K].

    At a site with few executions, the member that is shortest most often over all sites counts.
    """
    groups, sites = owner_GK.shape[0], int(site_K.max()) + 1
    cell_GK = (np.arange(groups)[:, None] * sites + site_K) * members + owner_GK
    count_GSM = np.bincount(cell_GK.ravel(), minlength=groups * sites * members).reshape(groups, sites, members)
    at_all_G1 = count_GSM.sum(axis=1).argmax(axis=1)[:, None]
    usual_GS = np.where(np.bincount(site_K) < _FEWEST_AT_SITE, at_all_G1, count_GSM.argmax(axis=2))
    return np.asarray(usual_GS[:, site_K])


def _upper_quartile(values_GK: Floats, chosen_GK: NDArray[np.bool_]) -> Floats:
    """Three quarters of the chosen finite values of each group lie below; -inf where there are none. float64 [G]."""
    chosen_GK = chosen_GK & np.isfinite(values_GK)
    groups, chosen_G = np.arange(values_GK.shape[0]), chosen_GK.sum(axis=1)
    rising_GK = np.sort(np.where(chosen_GK, values_GK, np.finfo(np.float64).max), axis=1)
    place_G = 0.75 * (chosen_G - 1).clip(0)
    low_G = place_G.astype(np.intp)
    high_G = np.minimum(low_G + 1, (chosen_G - 1).clip(0))
    below_G, above_G = rising_GK[groups, low_G], rising_GK[groups, high_G]
    return np.where(chosen_G > 0, below_G + (above_G - below_G) * (place_G - low_G), -np.inf)


def shares_of_blame(duration_GMK: Floats, skew_G: Floats) -> Floats:
    """Share the blame for each execution among the members that came last.

    Those within `skew_G` of the shortest came last together and share the blame, if the next one is further off than
    the skew and they are at most half of the members. Else nobody came last.

    Args:
        duration_GMK: Durations. float64 [G, M, K].
        skew_G: See `exit_skew`. float64 [G].

    Returns:
        Shares, the sum over members is 1 or 0. float64 [G, M, K].
    """
    skew_G1 = skew_G[:, None]
    late_GMK = duration_GMK - duration_GMK.min(axis=1, keepdims=True) <= skew_G1[..., None]
    edge_GK = np.where(late_GMK, duration_GMK, -np.inf).max(axis=1)
    next_GK = np.where(late_GMK, np.inf, duration_GMK).min(axis=1)
    count_GK = late_GMK.sum(axis=1)
    clear_GK = (next_GK - edge_GK > skew_G1) & (count_GK <= max(1, int(_LATE_TOGETHER * duration_GMK.shape[1])))
    return np.asarray(late_GMK * np.where(clear_GK, 1 / count_GK, 0.0)[:, None])


def keep_repeated(share_GMK: Floats, wait_GMK: Floats, column_K: NDArray[np.intp], site_K: NDArray[np.intp]) -> Floats:
    """Keep the shares of members that come last again and again; members that do so by chance keep none.

    A member is among the late of an iteration if the waiting laid at it there is at least half of what is laid at
    anybody. It must be so in clearly more of the iterations than its turn would be; or it must come last in as many
    executions at one site, and keeps its shares there.

    Args:
        share_GMK: Shares of blame. float64 [G, M, K].
        wait_GMK: Critical waiting. float64 [G, M, K].
        column_K: Iteration of each execution, -1 = does not count. intp [K].
        site_K: Where each was called. intp [K].
    """
    counted_K = column_K >= 0
    if not counted_K.any():
        return share_GMK
    blame_GMI = _by_column(share_GMK * wait_GMK.sum(axis=1, keepdims=True), column_K)
    highest_G1I = blame_GMI.max(axis=1, keepdims=True)
    blamed_G1I = highest_G1I > 0
    blamed_G1 = blamed_G1I.sum(axis=2)
    often_GM = ((blame_GMI >= highest_G1I / 2) & blamed_G1I).sum(axis=2) / blamed_G1.clip(1)
    kept_GM = is_often(often_GM, share_GMK.shape[1]) | (blamed_G1 == 0)
    rows_LK = (share_GMK * counted_K).reshape(-1, counted_K.size)
    at_sites_GMK = _often_at_sites(rows_LK, site_K, counted_K, share_GMK.shape[1]).reshape(share_GMK.shape)
    return np.asarray(share_GMK * (kept_GM[..., None] | at_sites_GMK))


def _by_column(value_GMK: Floats, column_K: NDArray[np.intp]) -> Floats:
    """Sums of the executions of each iteration; those that count in none are left out. float64 [G, M, I]."""
    begin_R = np.flatnonzero(np.diff(column_K, prepend=column_K[0] - 1))
    sum_GMR, column_R = np.add.reduceat(value_GMK, begin_R, axis=2), column_K[begin_R]
    found_GMI = np.zeros((*value_GMK.shape[:2], int(column_K.max()) + 1))
    counted_R = column_R >= 0
    np.add.at(np.moveaxis(found_GMI, 2, 0), column_R[counted_R], np.moveaxis(sum_GMR[..., counted_R], 2, 0))
    return found_GMI


def _often_at_sites(
    share_LK: Floats, site_K: NDArray[np.intp], counted_K: NDArray[np.bool_], members: int
) -> NDArray[np.bool_]:
    """Return whether members come last at the site of each execution far more often than their turn. bool [L, K]."""
    late = np.flatnonzero(share_LK.any(axis=1))  # of many members few are
    late_SL = np.zeros((int(site_K.max()) + 1, late.size))
    np.add.at(late_SL, site_K, (share_LK[late] > 0).T)
    count_S1 = np.bincount(site_K, weights=counted_K, minlength=late_SL.shape[0])[:, None]
    turn = 1 / members
    beyond_SL = (late_SL - turn * count_S1) / np.sqrt(np.maximum(count_S1 * turn * (1 - turn), 1e-9))
    often_SL = is_often(late_SL / count_S1.clip(1), members) & (beyond_SL >= _BEYOND_TURN)
    found_LK = np.zeros(share_LK.shape, dtype=np.bool_)
    found_LK[late] = (often_SL & (count_S1 >= _FEWEST_AT_SITE))[site_K].T
    return found_LK


def is_often(often: Floats | float, members: int) -> NDArray[np.bool_]:
    """Return whether members are late in clearly more iterations or executions than their turn would be, as `often`."""
    return np.asarray(often >= max(OFTEN, 1 / members + BEYOND_CHANCE), dtype=np.bool_)


def nearly_last(duration_MK: Floats, skew_us: float) -> NDArray[np.bool_]:
    """Return which members came last, or waited only a small share of what the other members waited. bool [M, K].

    Two who are late come last in turns; the order of those who wait for nearly nothing is chance.
    """
    waited_MK = duration_MK - duration_MK.min(axis=0)
    usual_K = np.median(np.sort(waited_MK, axis=0)[1:], axis=0) if len(waited_MK) > 1 else waited_MK[0]
    near_MK = waited_MK <= np.maximum(skew_us, _NEARLY_LAST * usual_K)
    return np.asarray(near_MK & (near_MK.sum(axis=0) <= max(1, int(_LATE_TOGETHER * len(near_MK)))), dtype=np.bool_)


def measured_skew(end_MK: Floats, floor_us: float) -> float:
    """Measure how unevenly members leave from recorded ends: two members may be off in opposite directions.

    Args:
        end_MK: Ends on each member's own clock, microseconds. float64 [M, K].
        floor_us: Least skew.
    """
    return max(2 * float(np.quantile(end_residuals(end_MK), _MOST_ENDS)), floor_us)
