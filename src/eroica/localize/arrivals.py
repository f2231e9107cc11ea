"""Who waits for whom, without comparing clocks.

Members of one execution of an all-reduce leave it together, so whoever spent least time in it came last and the others
waited for him. That needs executions that pair, and a gap that the members' uneven leaving cannot explain.

Array suffixes: M members of a group, K matched executions, W workers, I iterations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.localize.fleet import Fleet
from eroica.model.pattern import CollectiveRecord
from eroica.summarize.series import decode_series

Floats = NDArray[np.float64]
#: Nobody leaves before everybody has come.
SYNCHRONIZING = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
#: Least exit skew: members of one host under NCCL leave within microseconds, gloo's threads within scheduling slices.
_SKEW_FLOOR_US = {"nccl": 20.0}
_SKEW_FLOOR_OTHER_US = 500.0
#: Share of a group's executions that must pair, or none is used (a sampled trace pairs by accident).
_LEAST_PAIRED = 0.8
#: Share of iterations in which a latecomer must be late again, at least, and beyond its turn.
_OFTEN = 0.35
_BEYOND_CHANCE = 0.2
#: At most this share of the members can come last together.
_LATE_TOGETHER = 0.5


class Arrivals(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Waiting on the critical path, and whom it is laid at.

    `blamed_us.sum() + withheld_us == waited_us.sum()`: blame handed out plus what nobody is blamed for is what was
    waited.

    Attributes:
        waited_us: Critical waiting of each worker in each iteration. float64 [W, I].
        blamed_us: Waiting of others laid at each worker. float64 [W, I].
        withheld_us: Waiting nobody is blamed for (nobody clearly last, or somebody else each time).
        executions: Executions that paired.
        last: Executions in which each worker came last beyond the exit skew, and does so again and again. float64 [W];
            those who come last together share one.
        skew_us: Exit skew of each (group, kind).
        notes: What did not pair and why.
    """

    waited_us: Floats
    blamed_us: Floats
    withheld_us: float = 0.0
    executions: int = 0
    last: Floats = msgspec.field(default_factory=lambda: np.zeros(0))
    skew_us: dict[tuple[str, str], float] = {}
    notes: tuple[str, ...] = ()

    def blame_share(self, workers: Sequence[int]) -> float | None:
        """Share of all blame that lies on these workers (indices), 0-1; None if nobody was blamed."""
        total = float(self.blamed_us.sum())
        return float(self.blamed_us[list(workers)].sum()) / total if total > 0 else None

    def waiting_for(self, workers: Sequence[int]) -> float:
        """Share of all waiting that is laid at these workers (indices), 0-1."""
        waited = float(self.waited_us.sum())
        return float(self.blamed_us[list(workers)].sum()) / waited if waited > 0 else 0.0


class _Ledger:
    """Adds up waiting and blame over groups."""

    def __init__(self, fleet: Fleet) -> None:
        shape = fleet.iteration_us.shape
        self.waited = np.zeros(shape)
        self.blamed = np.zeros(shape)
        self.last = np.zeros(shape[0])
        self.withheld = 0.0
        self.executions = 0
        self.skew: dict[tuple[str, str], float] = {}
        self.notes: list[str] = []
        self._places = [{int(col): place for place, col in enumerate(columns)} for columns in fleet.columns]

    def columns(self, worker: int, iterations_K: NDArray[np.int32]) -> NDArray[np.intp]:
        """Column of each execution, -1 for iterations that do not count."""
        places = self._places[worker]
        return np.asarray([places.get(int(iteration), -1) for iteration in iterations_K], dtype=np.intp)

    def enter(self, members: Sequence[int], wait_MK: Floats, share_MK: Floats, columns_MK: NDArray[np.intp]) -> None:
        """Book waits, and lay each execution's sum at those who came last.

        Args:
            members: Indices of the workers.
            wait_MK: Critical waiting.
            share_MK: Each member's share of the blame; a column of zeros blames nobody.
            columns_MK: Iteration each member counts the execution in; executions with any -1 are left out.
        """
        counted = (columns_MK >= 0).all(axis=0)
        wait_MK, share_MK, columns_MK = wait_MK[:, counted], share_MK[:, counted], columns_MK[:, counted]
        blame_MK = share_MK * wait_MK.sum(axis=0)
        for row, worker in enumerate(members):
            np.add.at(self.waited[worker], columns_MK[row], wait_MK[row])
            np.add.at(self.blamed[worker], columns_MK[row], blame_MK[row])
            self.last[worker] += share_MK[row].sum()
        self.withheld += float(wait_MK.sum() - blame_MK.sum())
        self.executions += int(counted.sum())


def read_arrivals(fleet: Fleet) -> Arrivals:
    """Book all waiting of a window.

    In all-reduce, all-gather, reduce-scatter, all-to-all and barrier: wait = duration - shortest duration in the group.
    A receive waits for its sender alone. Broadcast, reduce, gather and scatter release some members early and the
    record does not say who the root was: their waiting is not judged. Only the part on the waiter's critical path
    counts. Executions pair by the group's own sequence numbers, or by their order where every member has equally many;
    unpaired, nobody is blamed.
    """
    ledger = _Ledger(fleet)
    groups = _groups(fleet)
    records = _records(fleet)
    for (group, kind), owners in sorted(records.items()):
        members = groups.get(group)
        if kind in SYNCHRONIZING and members is not None:
            _book_synchronizing(ledger, fleet, (group, kind), members, owners)
        elif kind in SYNCHRONIZING:
            ledger.notes.append(f"members of process group {group!r} are unknown: nobody is blamed for its {kind}")
    _book_receives(ledger, fleet, records)
    return Arrivals(
        waited_us=ledger.waited,
        blamed_us=ledger.blamed,
        withheld_us=ledger.withheld,
        executions=ledger.executions,
        last=ledger.last,
        skew_us=ledger.skew,
        notes=tuple(ledger.notes),
    )


def _groups(fleet: Fleet) -> dict[str, tuple[int, ...]]:
    """Global ranks of each group with more than one member."""
    groups = {group.name: group.ranks for pattern in fleet.patterns for group in pattern.process_groups}
    return {name: ranks for name, ranks in groups.items() if len(ranks) > 1}


def _records(fleet: Fleet) -> dict[tuple[str, str], dict[int, CollectiveRecord]]:
    """Records by (group, kind), then by worker index."""
    found: dict[tuple[str, str], dict[int, CollectiveRecord]] = defaultdict(dict)
    for worker, pattern in enumerate(fleet.patterns):
        for record in pattern.collectives:
            found[record.group, record.kind][worker] = record
    return found


def _book_synchronizing(
    ledger: _Ledger,
    fleet: Fleet,
    name: tuple[str, str],
    ranks: tuple[int, ...],
    owners: Mapping[int, CollectiveRecord],
) -> None:
    present = {fleet.ranks[worker]: worker for worker in owners}
    missing = [rank for rank in ranks if rank not in present]
    if missing:
        absent = f"{len(missing)} of {len(ranks)} members of process group {name[0]!r}"
        ledger.notes.append(f"{absent} show no {name[1]}: nobody is blamed for it")
        return
    members = [present[rank] for rank in ranks]
    places, reason = pair_executions([owners[worker] for worker in members])
    if reason:
        ledger.notes.append(f"{name[1]} in process group {name[0]!r} does not pair ({reason}): nobody is blamed for it")
        return
    duration_MK = _stacked(owners, members, places, "duration_us")
    critical_MK = _stacked(owners, members, places, "critical_us")
    columns_MK = np.stack(
        [
            ledger.columns(worker, decode_series(owners[worker].iteration, np.int32)[at])
            for worker, at in zip(members, places, strict=True)
        ]
    )
    skew = exit_skew(duration_MK, _skew_floor(fleet, name[0]))
    ledger.skew[name] = skew
    wait_MK = np.minimum(duration_MK - duration_MK.min(axis=0), critical_MK)
    share_MK = keep_repeated(shares_of_blame(duration_MK, skew), wait_MK, columns_MK)
    ledger.enter(members, wait_MK, share_MK, columns_MK)


def _stacked(
    owners: Mapping[int, CollectiveRecord], members: Sequence[int], places: Sequence[NDArray[np.intp]], name: str
) -> Floats:
    """One array of the records, matched executions only. float64 [M, K]."""
    rows = [
        decode_series(getattr(owners[worker], name), np.float32)[at].astype(np.float64)
        for worker, at in zip(members, places, strict=True)
    ]
    return np.stack(rows)


def _skew_floor(fleet: Fleet, group: str) -> float:
    found = (own for pattern in fleet.patterns for own in pattern.process_groups if own.name == group)
    return _SKEW_FLOOR_US.get(next((own.backend for own in found), ""), _SKEW_FLOOR_OTHER_US)


def pair_executions(records: Sequence[CollectiveRecord]) -> tuple[list[NDArray[np.intp]], str]:
    """Match the executions of all members of a group.

    Args:
        records: One per member.

    Returns:
        For each member the positions of the matched executions, in the same order; and why there are none, else "".
    """
    if any(record.paired_by == "none" for record in records):
        return [], "without sequence numbers"
    ways = {record.paired_by for record in records}
    if len(ways) > 1:
        return [], "sequence numbers on some members only"
    sequences = [decode_series(record.sequence, np.int64) for record in records]
    most = max(sequence.size for sequence in sequences)
    if ways == {"order"} and (any(sequence.size != most for sequence in sequences) or any(r.dropped for r in records)):
        return [], "unequal numbers of executions"
    shared = sequences[0]
    for sequence in sequences[1:]:
        shared = np.intersect1d(shared, sequence)
    if most == 0 or shared.size < _LEAST_PAIRED * min(sequence.size for sequence in sequences):
        return [], f"only {shared.size} of {most} executions found on all members"
    places = [_positions(sequence, shared) for sequence in sequences]
    return (places, "") if _sizes_agree(records, places) else ([], "members moved different amounts under one number")


def _positions(sequence: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.intp]:
    order = np.argsort(sequence, kind="stable")
    return np.asarray(order[np.searchsorted(sequence, wanted, sorter=order)], dtype=np.intp)


def _sizes_agree(records: Sequence[CollectiveRecord], places: Sequence[NDArray[np.intp]]) -> bool:
    """All-reduces of one number move equally much everywhere; other kinds, and unknown sizes, are not judged."""
    if records[0].kind != "all_reduce" or not all(record.elements for record in records):
        return True
    sizes = np.stack([decode_series(r.elements, np.int64)[at] for r, at in zip(records, places, strict=True)])
    known = (sizes > 0).all(axis=0)
    return bool((sizes[:, known] == sizes[0, known]).all())


def exit_skew(duration_MK: Floats, floor_us: float) -> float:
    """How unevenly members leave, from gaps that no constant latecomer explains, microseconds.

    The gap between the shortest and the next duration mixes a late arrival with uneven leaving. Gaps of executions
    whose shortest member is not the one that is shortest most often show the latter: three quarters of them lie below
    the skew.

    Args:
        duration_MK: Durations of the matched executions. float64 [M, K].
        floor_us: Least skew to be expected of this backend.
    """
    if duration_MK.shape[1] == 0:
        return floor_us
    owner_K = duration_MK.argmin(axis=0)
    usual = np.bincount(owner_K, minlength=duration_MK.shape[0]).argmax()
    shortest_2K = np.partition(duration_MK, 1, axis=0)[:2]
    gaps = (shortest_2K[1] - shortest_2K[0])[owner_K != usual]
    return max(float(np.quantile(gaps, 0.75)), floor_us) if gaps.size else floor_us


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


def keep_repeated(share_MK: Floats, wait_MK: Floats, columns_MK: NDArray[np.intp]) -> Floats:
    """Shares of those who come last again and again; who does so by chance keeps none.

    A member is among the late of an iteration if the waiting laid at it there is at least half of what is laid at
    anybody. It must be so in clearly more of the iterations than its turn would be.

    Args:
        share_MK: Shares of blame. float64 [M, K].
        wait_MK: Critical waiting. float64 [M, K].
        columns_MK: Iteration of each execution on each member, -1 = does not count. intp [M, K].
    """
    counted = (columns_MK >= 0).all(axis=0)
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
    least = max(_OFTEN, 1 / share_MK.shape[0] + _BEYOND_CHANCE)
    return np.asarray(share_MK * (often_M >= least)[:, None])


def _book_receives(
    ledger: _Ledger, fleet: Fleet, records: Mapping[tuple[str, str], Mapping[int, CollectiveRecord]]
) -> None:
    """A receive waits for its sender: the n-th from a rank for that rank's n-th send to here."""
    workers = {rank: worker for worker, rank in enumerate(fleet.ranks)}
    for (group, kind), receivers in sorted(records.items()):
        senders = records.get((group, "send"), {})
        if kind != "recv":
            continue
        for receiver, record in sorted(receivers.items()):
            for rank in np.unique(decode_series(record.peers, np.int32)) if record.peers else ():
                sender = workers.get(int(rank), -1)
                if sender in senders:
                    _book_one_way(ledger, (receiver, record), (sender, senders[sender]), fleet)


def _book_one_way(
    ledger: _Ledger, receiving: tuple[int, CollectiveRecord], sending: tuple[int, CollectiveRecord], fleet: Fleet
) -> None:
    (receiver, recv), (sender, send) = receiving, sending
    at_recv = np.flatnonzero(decode_series(recv.peers, np.int32) == fleet.ranks[sender])
    at_send = (
        np.flatnonzero(decode_series(send.peers, np.int32) == fleet.ranks[receiver]) if send.peers else at_recv[:0]
    )
    if at_recv.size != at_send.size or recv.dropped or send.dropped or "none" in (recv.paired_by, send.paired_by):
        way = f"receives of worker {fleet.ranks[receiver]} from worker {fleet.ranks[sender]}"
        ledger.notes.append(f"{way} do not pair with the sends: nobody is blamed for them")
        return
    took = decode_series(recv.duration_us, np.float32)[at_recv].astype(np.float64)
    gave = decode_series(send.duration_us, np.float32)[at_send].astype(np.float64)
    critical = decode_series(recv.critical_us, np.float32)[at_recv].astype(np.float64)
    wait = np.minimum(np.maximum(took - gave, 0.0), critical)
    columns = np.stack(
        [
            ledger.columns(receiver, decode_series(recv.iteration, np.int32)[at_recv]),
            ledger.columns(sender, decode_series(send.iteration, np.int32)[at_send]),
        ]
    )
    nothing = np.zeros_like(wait)
    share = np.stack([nothing, (wait > _SKEW_FLOOR_OTHER_US).astype(np.float64)])
    ledger.enter([receiver, sender], np.stack([wait, nothing]), share, columns)
