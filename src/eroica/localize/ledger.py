"""Books of waiting: that of each worker in each iteration, and the workers that it is laid at.

Array suffixes: G groups of M members, K matched executions, W workers, I iterations, J boundaries of iterations, E
executions (one worker in one meeting) or edges (a pair of workers). All times are microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.localize.fleet import Fleet, cut_out, shared_iterations
from eroica.localize.graph import MOST_AT_ONCE, MOST_EXECUTIONS, Meetings, join_meetings
from eroica.localize.matching import Matched, is_contradiction
from eroica.model.series import decode_series

Floats = NDArray[np.float64]
Places = NDArray[np.intp]
Scalar = TypeVar("Scalar", bound=np.generic)
#: Who came last in one group, and more than these others did: a stage that shares the blame among a thousand would make
#: millions of edges.
_MOST_LAST = 8
#: Blame is passed on so many times at most; what is on its way then stays where it is.
_MOST_HOPS = 200
#: Blame on its way that is no longer worth a pass, a share of all waiting.
_LEAST_ON_ITS_WAY = 1e-6
#: Times that differ by less are the same: online, ends travel in steps of 8 microseconds.
_ROUNDED_US = 10.0


class DirectWaits(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Time that each worker waited directly for each other worker it met, before blame is passed on.

    Sparse: only those who came last are waited for. They are few in each group, or share the blame, so that each is
    waited for a little; then those with most of it stand for the others.

    Attributes:
        waiter: Indices of the workers that waited. intp [E].
        on: Of the ones that came last, in each group's executions of one kind the 8 with most of the blame. intp [E].
        wait_us: Critical waiting over all iterations that count, above 0. float64 [E].
    """

    waiter: Places = msgspec.field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    on: Places = msgspec.field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    wait_us: Floats = msgspec.field(default_factory=lambda: np.zeros(0))


class Timed(NamedTuple):
    """Places in time of executions of one kind, equally many in each of some groups.

    Attributes:
        groups: Names of the process groups.
        end_us: Ends on each member's own clock, from the start of its window. float64 [G, M, K].
        duration_us: float64 [G, M, K].
        critical_us: Critical part of each. float64 [G, M, K].
        transfer_us: What the execution takes once all have come. float64 [G, K].
        waits: Whether a member waits for the others; else it leaves once it is done itself. bool [G, M, K]; None = all.
        is_one_way: Whether the first member alone is known to wait, for the second one.
    """

    groups: Sequence[str]
    end_us: Floats
    duration_us: Floats
    critical_us: Floats
    transfer_us: Floats
    waits: NDArray[np.bool_] | None = None
    is_one_way: bool = False


class Ledger:
    """Adds up waiting and blame over groups.

    Attributes:
        waited: Critical waiting of each worker. float64 [W, I].
        blamed: Waiting of others that began with it. float64 [W, I].
        edge_WJ: Boundaries of the common iterations on each worker's own clock.
        wait_WI: Critical time in communication in these.
        whole_from: First common iteration whose executions all are there.
        told_W: Critical time in executions with a root of which the waiting is booked.
    """

    def __init__(self, fleet: Fleet) -> None:
        shape = fleet.iteration_us.shape
        self._wait_WI = fleet.wait_us
        self.waited, self.blamed = np.zeros(shape), np.zeros(shape)
        self.withheld = 0.0
        self.executions = 0
        self.transfer_us: dict[tuple[str, str], Floats] = {}
        self.matched: list[Matched] = []
        self.told_W = np.zeros(shape[0])
        self.contradicted = ""
        self.notes: list[str] = []
        self._pairs: list[tuple[Places, Places, Floats]] = []
        self._timed: list[Meetings] = []
        self._teams: dict[tuple[int, ...], int] = {}
        self._groups: dict[str, int] = {}
        self._places_WL = _inverse(fleet.columns)
        self.edge_WJ, self.wait_WI, offset_W = _edges(fleet)
        self._first_chained, self.whole_from = _what_is_chained(fleet, offset_W)

    def refuse(self, reason: str) -> None:
        """Remember a pairing that the ends speak against."""
        if is_contradiction(reason):
            self.contradicted = self.contradicted or reason

    def columns_of(self, workers: Sequence[int] | Places, iterations: NDArray[np.int32]) -> Places:
        """Find the columns of iterations of some workers, -1 for those that do not count.

        Args:
            workers: Indices of M workers. intp [..., M].
            iterations: Of each worker, or one row for all of them. int32 [..., M, K] or [K].

        Returns:
            intp [..., M, K].
        """
        beyond = self._places_WL.shape[1] - 1
        known = (iterations >= 0) & (iterations < beyond)
        return self._places_WL[np.asarray(workers, dtype=np.intp)[..., None], np.where(known, iterations, beyond)]

    def first_chained(self, columns_GMK: Places) -> Places:
        """The first of each group's executions whose blame is passed on. intp [G]."""
        late_enough_GK = (columns_GMK >= self._first_chained).any(axis=1)
        return np.asarray((~np.logical_or.accumulate(late_enough_GK, axis=1)).sum(axis=1), dtype=np.intp)

    def enter(
        self,
        members_GM: Places,
        wait_GMK: Floats,
        share_GMK: Floats,
        columns_GMK: Places,
        timed: Timed | None = None,
    ) -> None:
        """Book waits in some groups, and lay each execution's sum at the members that came last.

        Args:
            members_GM: Indices of the workers.
            wait_GMK: Critical waiting.
            share_GMK: Each member's share of the blame; zeros blame nobody.
            columns_GMK: Iteration each member counts the execution in; executions with any -1 are left out.
            timed: The last of these executions with their places in time, if they are known: their blame is passed on.
        """
        if not self.waited.size:
            return  # no iteration that all workers have
        counted_GK = np.asarray((columns_GMK >= 0).all(axis=1))
        wait_GMK, share_GMK = (array * counted_GK[:, None] for array in (wait_GMK, share_GMK))
        first = counted_GK.shape[1] - (0 if timed is None else timed.end_us.shape[2])
        if timed is not None:
            judged = wait_GMK[..., first:], share_GMK[..., first:], columns_GMK[..., first:]
            self._timed.append(self._laid_flat(members_GM, timed, *judged))
        waited_GK = wait_GMK.sum(axis=1)
        blame_GMK = share_GMK * waited_GK[:, None]
        cells_GMK = members_GM[..., None] * self._wait_WI.shape[1] + np.where(counted_GK[:, None], columns_GMK, 0)
        np.add.at(self.waited.reshape(-1), cells_GMK.ravel(), wait_GMK.ravel())
        np.add.at(self.blamed.reshape(-1), cells_GMK[..., :first].ravel(), blame_GMK[..., :first].ravel())
        self.withheld += float((waited_GK - blame_GMK.sum(axis=1))[:, :first].sum())
        self.executions += int(counted_GK.sum())
        self._add_pairs(members_GM, wait_GMK, share_GMK)

    def _add_pairs(self, members_GM: Places, wait_GMK: Floats, share_GMK: Floats) -> None:
        last_GM = share_GMK.sum(axis=2)
        most = min(int((last_GM > 0).sum(axis=1).max(initial=0)), _MOST_LAST)
        if not most:
            return
        late_GL = np.argsort(-last_GM, axis=1, kind="stable")[:, :most]
        wait_GLM = np.take_along_axis(share_GMK, late_GL[..., None], axis=1) @ wait_GMK.swapaxes(1, 2)
        waiter = np.broadcast_to(members_GM[:, None], wait_GLM.shape)
        on = np.broadcast_to(np.take_along_axis(members_GM, late_GL, axis=1)[..., None], wait_GLM.shape)
        real = (wait_GLM > 0) & (waiter != on)
        self._pairs.append((waiter[real], on[real], wait_GLM[real]))

    def _laid_flat(
        self, members_GM: Places, timed: Timed, wait_GMK: Floats, share_GMK: Floats, columns_GMK: Places
    ) -> Meetings:
        """Lay executions out one after another, meeting by meeting."""
        groups, members, count = shape = timed.end_us.shape
        teams = [self._teams.setdefault(tuple(sorted(row)), len(self._teams)) for row in members_GM.tolist()]
        queues = [self._groups.setdefault(name, len(self._groups)) for name in timed.groups]
        leads_M = np.arange(members) == (1 if timed.is_one_way else -1)

        def flat(values: NDArray[Scalar]) -> NDArray[Scalar]:
            return np.broadcast_to(values, shape).swapaxes(1, 2).ravel()

        return Meetings(
            worker=flat(members_GM[..., None]),
            meeting=np.repeat(np.arange(groups * count), members),
            group=flat(np.asarray(queues)[:, None, None]),
            team=flat(np.asarray(teams)[:, None, None]),
            duration=flat(timed.duration_us),
            critical=flat(timed.critical_us),
            end=flat(timed.end_us),
            waits=flat(np.asarray(True) if timed.waits is None else timed.waits),
            leads=flat(leads_M[:, None]),
            wait=flat(wait_GMK),
            share=flat(share_GMK),
            column=flat(columns_GMK),
            transfer=timed.transfer_us.ravel(),
        )

    def settle(self) -> Meetings | None:
        """Pass blame on to where the delays began; return all executions with places in time."""
        meetings = join_meetings(self._timed)
        if meetings is not None:
            blamed_WI, withheld = propagate(meetings, self._wait_WI)
            self.blamed += blamed_WI
            self.withheld += withheld
        return meetings

    def direct_waits(self) -> DirectWaits:
        """Sum up all waits by pair of workers; no worker waits for itself."""
        if not self._pairs:
            return DirectWaits()
        waiter_E, on_E, wait_E = map(np.concatenate, zip(*self._pairs, strict=True))
        pairs, place_E = np.unique(waiter_E * self.told_W.size + on_E, return_inverse=True)
        waiter, on = np.divmod(pairs, self.told_W.size)
        sums = np.bincount(place_E, weights=wait_E, minlength=pairs.size)
        return DirectWaits(waiter=waiter, on=on, wait_us=np.asarray(sums, dtype=np.float64))


def _edges(fleet: Fleet) -> tuple[Floats, Floats, NDArray[np.intp]]:
    """The common iterations on each worker's clock.

    Returns:
        Their boundaries, float64 [W, J]; critical time in communication, float64 [W, I]; and how many captured
        iterations lie before, intp [W].
    """
    offset_W, common, times, waits = shared_iterations(fleet.patterns)
    if not common:
        return np.zeros((len(times), 1)), np.zeros((len(times), 0)), offset_W
    before_W = [own[:offset].sum(dtype=np.float64) for own, offset in zip(times, offset_W.tolist(), strict=True)]
    edge_WJ = np.empty((len(times), common + 1))
    edge_WJ[:, 0] = before_W
    edge_WJ[:, 1:] = np.asarray(before_W)[:, None] + np.cumsum(cut_out(times, offset_W, common), axis=1)
    return edge_WJ, cut_out(waits, offset_W, common), offset_W


def _what_is_chained(fleet: Fleet, offset_W: NDArray[np.intp]) -> tuple[int, int]:
    """First column whose blame is passed on, and first common iteration whose executions all are there.

    Memory bounds the former: of long windows of large jobs the last iterations are taken. The latter comes after those
    in which a record lacks some that got no room.
    """
    records = [
        (record, int(offset))
        for pattern, offset in zip(fleet.patterns, offset_W, strict=True)
        for record in pattern.collectives
        if record.end_us
    ]
    executions = sum(record.executions for record, _ in records)
    iterations = fleet.columns.shape[1]
    kept = iterations if executions <= MOST_EXECUTIONS else max(iterations * MOST_EXECUTIONS // executions, 1)
    kept = kept if executions <= MOST_AT_ONCE * iterations else 0
    begins = [int(decode_series(r.iteration, np.int32)[0]) + 1 - at for r, at in records if r.dropped and r.executions]
    first_kept = int(fleet.columns[0, iterations - max(kept, 1)] - offset_W[0]) if kept < iterations else 0
    return iterations - kept, max(first_kept, *begins, 0)


def _inverse(columns_WI: NDArray[np.intp]) -> NDArray[np.intp]:
    """Place of each iteration among those that count, -1 for the others and, at the end, all beyond. intp [W, L]."""
    workers, count = columns_WI.shape
    places_WL = np.full((workers, int(columns_WI.max(initial=-1)) + 2), -1, dtype=np.intp)
    places_WL[np.arange(workers)[:, None], columns_WI] = np.arange(count)
    return places_WL


# --- blame passed on along chains: who is late because it waited passes its part on to the one it waited for ---


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
