"""Pass blame on along chains: a worker that is late because it waited passes its part on to the worker it waited for.

Array suffixes: E executions (one worker in one meeting) in order of worker and end, M meetings, W workers, I
iterations. All times are microseconds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from eroica.localize.graph import Meetings

Floats = NDArray[np.float64]
Places = NDArray[np.intp]
#: Blame is passed on so many times at most; what is on its way then stays where it is.
_MOST_HOPS = 200
#: Blame on its way that is no longer worth a pass, a share of all waiting.
_LEAST_ON_ITS_WAY = 1e-6
#: Times that differ by less are the same: online, ends travel in steps of 8 microseconds.
_ROUNDED_US = 10.0


def propagate(flat: Meetings, wait_WI: Floats) -> tuple[Floats, float]:
    """Lay waiting at the workers with which the delay began.

    The waiting in a meeting is laid at the workers that came last. A part of each such worker's blame is explained by
    its own waiting since the members last were in step, beyond what the others waited in that time. That part goes on
    to the executions that the worker waited in, by their waits, and is laid there in the same way. The part explained
    by longer waiting in communication that is not among the executions is withheld: nothing tells whom it waited for.
    The rest is the worker's own doing. Nothing is lost: blame and what is withheld add up to the waiting.

    Args:
        flat: Matched executions with places in time, waits and shares of blame.
        wait_WI: Critical time in any communication. float64 [W, I].

    Returns:
        Blame of each worker in each iteration, float64 [W, I], and what is withheld.

    Source:
        Boehme, Geimer, Wolf et al., "Identifying the root causes of wait states in large-scale parallel applications"
        (ICPP 2010). The cost of a wait state goes to the delaying process's excess time since the last synchronization,
        and its own wait states in it pass it on. Deviation: waits carry the blame in proportion to their length.
    """
    blamed_WI = np.zeros(wait_WI.shape)
    if not flat.wait.any():
        return blamed_WI, 0.0
    flat = flat.at(np.lexsort((flat.end, flat.worker)))
    passed_E, unknown_E, low_E, high_E, waited_E = _passed_on(flat, wait_WI)
    mass_M = np.bincount(flat.meeting, weights=flat.wait, minlength=flat.transfer.size)
    enough = _LEAST_ON_ITS_WAY * float(mass_M.sum())
    late = np.flatnonzero((flat.share > 0) & (flat.column >= 0))
    for hop in range(_MOST_HOPS + 1):
        part = mass_M[flat.meeting[late]] * flat.share[late]
        on_its_way = part * passed_E[late]
        is_over = hop == _MOST_HOPS or float(on_its_way.sum()) <= enough
        kept = part * (1 - unknown_E[late]) - (0.0 if is_over else on_its_way)
        np.add.at(blamed_WI, (flat.worker[late], flat.column[late]), kept)
        if is_over:
            break
        rate = on_its_way / waited_E[late].clip(1e-12)
        steps = np.bincount(low_E[late], weights=rate, minlength=flat.worker.size + 1)
        steps -= np.bincount(high_E[late], weights=rate, minlength=flat.worker.size + 1)
        mass_M = np.bincount(flat.meeting, weights=flat.wait * np.cumsum(steps)[:-1], minlength=flat.transfer.size)
        mass_M = np.maximum(mass_M, 0.0)
    return blamed_WI, max(float(flat.wait.sum() - blamed_WI.sum()), 0.0)


def _passed_on(flat: Meetings, wait_WI: Floats) -> tuple[Floats, Floats, Places, Places, Floats]:
    """Split the blame for each execution into a share to pass on and a share to withhold.

    Returns:
        The share that is passed on and the one that is withheld, the range of executions the former goes to, and their
        waits together.

    Lateness is compared since the team's last execution: own time and waiting of the late one with those of the
    members who waited now, weighted by how long they did.
    """
    size = flat.worker.size
    waited = np.concatenate([[0.0], np.cumsum(flat.wait)])
    before_E = _last_of_team(flat)
    low_E = np.where(before_E >= 0, before_E + 1, np.searchsorted(flat.worker, flat.worker))
    apart = _apart(flat)
    high_E = np.searchsorted(
        flat.end + flat.worker * apart, (flat.end - flat.duration) + flat.worker * apart + _ROUNDED_US, side="right"
    )
    high_E = np.maximum(np.minimum(high_E, np.arange(size)), low_E)
    between_E = waited[high_E] - waited[low_E]
    since_E = np.where(before_E >= 0, flat.end[before_E], 0.0)
    own_E = np.maximum((flat.end - flat.duration) - since_E, 0.0) - between_E

    def usual(value_E: Floats) -> Floats:
        weight_M = np.bincount(flat.meeting, weights=flat.wait, minlength=flat.transfer.size)
        sum_M = np.bincount(flat.meeting, weights=flat.wait * value_E, minlength=flat.transfer.size)
        usual_M = np.divide(sum_M, weight_M, out=np.zeros(flat.transfer.size), where=weight_M > 0)
        return np.asarray(usual_M[flat.meeting])

    more_own_E = np.maximum(own_E - usual(own_E), 0.0)
    more_wait_E = np.where(between_E > 0, np.maximum(between_E - usual(between_E), 0.0), 0.0)
    unrecorded_E = _unrecorded(flat, wait_WI)
    unknown_E = np.clip(unrecorded_E - usual(unrecorded_E), 0.0, more_own_E)
    explained_E = np.maximum(more_own_E + more_wait_E, usual(flat.wait))

    def share(value_E: Floats) -> Floats:
        return np.asarray(np.divide(value_E, explained_E, out=np.zeros(size), where=explained_E > 0))

    return share(more_wait_E), share(unknown_E), low_E, high_E, between_E


def _unrecorded(flat: Meetings, wait_WI: Floats) -> Floats:
    """Waiting of each execution's worker, in its iteration, in communication that none of the executions is. [E]."""
    cell_E = flat.worker * wait_WI.shape[1] + np.maximum(flat.column, 0)
    known = np.bincount(cell_E, weights=flat.critical * (flat.column >= 0), minlength=wait_WI.size)
    rest = np.maximum(wait_WI.ravel() - known, 0.0)
    return np.where(flat.column >= 0, rest[cell_E], 0.0)


def _last_of_team(flat: Meetings) -> Places:
    """The last execution of the same worker and team that was over before each began, -1 = none. intp [E].

    What was issued as one, like a send with a receive, does not count as before.
    """
    apart = _apart(flat)
    line = flat.worker * (int(flat.team.max()) + 1) + flat.team
    lines, line = np.unique(line, return_inverse=True)
    order = np.lexsort((flat.end, line))
    keys = flat.end[order] + line[order] * apart
    own = np.empty(order.size, dtype=np.intp)
    own[order] = np.arange(order.size)
    at = (
        np.minimum(np.searchsorted(keys, (flat.end - flat.duration) + line * apart + _ROUNDED_US, side="right"), own)
        - 1
    )
    first = np.searchsorted(line[order], np.arange(lines.size))[line]
    return np.where(at >= first, order[np.maximum(at, 0)], -1).astype(np.intp)


def _apart(flat: Meetings) -> float:
    """More than any two times of one worker differ by: with it, times of all lie in one sorted array."""
    return 4.0 * float(np.abs(flat.end).max() + np.abs(flat.end - flat.duration).max()) + 1e3
