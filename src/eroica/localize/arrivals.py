"""Who waits for whom, without comparing clocks.

Members of one execution of an all-reduce leave it together, so whoever spent least time in it came last and the others
waited for him. That needs executions that pair, and a gap that the members' uneven leaving cannot explain.

Array suffixes: M members of a group, K matched executions, W workers, I iterations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.localize.blame import exit_skew, is_often, keep_repeated, measured_skew, nearly_last, shares_of_blame
from eroica.localize.fleet import Fleet
from eroica.localize.leaving import SKEW_FLOOR_OTHER_US, recorded_skew_floor, skew_floor, uneven_exit
from eroica.localize.matching import (
    FEWEST_VERIFIED,
    Matched,
    is_contradiction,
    pair_by_order,
    pair_executions,
    stacked,
    stacked_ends,
)
from eroica.model.pattern import CollectiveRecord
from eroica.summarize.series import decode_series

Floats = NDArray[np.float64]
#: Nobody leaves before everybody has come.
SYNCHRONIZING = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
_MOST_LISTED = 8


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
        matched: Paired executions of recorded traces, one entry per group and kind.
        contradicted: Why executions that should be the same ones cannot be, by their ends; "" if all can.
        notes: What did not pair and why.
    """

    waited_us: Floats
    blamed_us: Floats
    withheld_us: float = 0.0
    executions: int = 0
    last: Floats = msgspec.field(default_factory=lambda: np.zeros(0))
    skew_us: dict[tuple[str, str], float] = {}
    matched: tuple[Matched, ...] = ()
    contradicted: str = ""
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
        self.matched: list[Matched] = []
        self.pending: list[Matched] = []
        self.contradicted = ""
        self.notes: list[str] = []
        self._places = [_inverse(columns) for columns in fleet.columns]

    def book(self, part: Matched) -> None:
        """Enter matched executions, and keep those of recorded traces."""
        counted = (part.columns >= 0).all(axis=0)
        part = msgspec.structs.replace(part, share=np.where(counted, part.share, 0.0))
        self.enter(part.members, part.wait_us, part.share, part.columns)
        if part.end_us.shape[1]:
            self.matched.append(part)

    def refuse(self, reason: str) -> None:
        """Remember a pairing that the ends speak against."""
        if is_contradiction(reason):
            self.contradicted = self.contradicted or reason

    def columns(self, worker: int, iterations_K: NDArray[np.int32]) -> NDArray[np.intp]:
        """Column of each execution, -1 for iterations that do not count."""
        places = self._places[worker]
        known = (iterations_K >= 0) & (iterations_K < places.size - 1)
        return places[np.where(known, iterations_K, places.size - 1)]

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
    unpaired, nobody is blamed. Nor is anybody where members are missing, but for recorded traces whose ends confirm the
    pairing: there the late among those present are, and what they are blamed for is a lower bound.
    """
    ledger = _Ledger(fleet)
    groups = _groups(fleet)
    records = _records(fleet)
    for (group, kind), owners in sorted(records.items()):
        members = groups.get(group)
        if kind in SYNCHRONIZING and members is not None:
            _book_synchronizing(ledger, fleet, (group, kind), members, owners)
        elif kind in SYNCHRONIZING and len(owners) > 1 and _has_ends(owners.values()):
            _book_unnamed(ledger, fleet, (group, kind), owners)
        elif kind in SYNCHRONIZING:
            which = f"process group {group!r}" if group else "a process group without a name"
            ledger.notes.append(f"members of {which} are unknown: nobody is blamed for its {kind}")
    _settle(ledger)
    _book_receives(ledger, fleet, records)
    return Arrivals(
        waited_us=ledger.waited,
        blamed_us=ledger.blamed,
        withheld_us=ledger.withheld,
        executions=ledger.executions,
        last=ledger.last,
        skew_us=ledger.skew,
        matched=tuple(ledger.matched),
        contradicted=ledger.contradicted,
        notes=tuple(ledger.notes),
    )


def _inverse(columns_I: NDArray[np.intp]) -> NDArray[np.intp]:
    """Place of each iteration among those that count, -1 for the others and, at its end, for all beyond. intp."""
    places = np.full(int(columns_I.max(initial=-1)) + 2, -1, dtype=np.intp)
    places[columns_I] = np.arange(columns_I.size)
    return places


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


def _has_ends(records: Iterable[CollectiveRecord]) -> bool:
    """Whether they come from recorded traces."""
    return all(record.end_us for record in records)


def _book_synchronizing(
    ledger: _Ledger,
    fleet: Fleet,
    name: tuple[str, str],
    ranks: tuple[int, ...],
    owners: Mapping[int, CollectiveRecord],
) -> None:
    present = {fleet.ranks[worker]: worker for worker in owners}
    members = [present[rank] for rank in ranks if rank in present]
    records = [owners[worker] for worker in members]
    places, reason = pair_executions(records, uneven_exit(fleet.patterns, name[0])) if members else ([], "")
    ledger.refuse(reason)
    untraced = [rank for rank in ranks if rank not in fleet.ranks]
    if untraced and not reason and len(members) == len(ranks) - len(untraced) and _is_confirmed(records, places):
        listed = ", ".join(map(str, untraced[:_MOST_LISTED])) + (", ..." if len(untraced) > _MOST_LISTED else "")
        whom = f"{len(untraced)} of {len(ranks)} members of process group {name[0]!r} ({listed})"
        ledger.notes.append(f"there is no trace of {whom}: in its {name[1]} blame is judged among the others only")
    elif len(members) < len(ranks):
        absent = f"{len(ranks) - len(members)} of {len(ranks)} members of process group {name[0]!r}"
        apart = f", and what the others show does not pair ({reason})" if is_contradiction(reason) else ""
        ledger.notes.append(f"{absent} show no {name[1]}{apart}: nobody is blamed for it")
        return
    if reason:
        ledger.notes.append(f"{name[1]} in process group {name[0]!r} does not pair ({reason}): nobody is blamed for it")
        return
    _book(ledger, fleet, name, members, records, places)


def _is_confirmed(records: Sequence[CollectiveRecord], places: Sequence[NDArray[np.intp]]) -> bool:
    """Whether enough ends of recorded traces agree with a pairing that not all members can vouch for."""
    return len(records) > 1 and stacked_ends(records, places).shape[1] >= FEWEST_VERIFIED


def _book_unnamed(ledger: _Ledger, fleet: Fleet, name: tuple[str, str], owners: Mapping[int, CollectiveRecord]) -> None:
    """Executions of a group that no trace describes: its members are all workers, or nobody knows them."""
    members = sorted(owners)
    places, reason = pair_by_order([owners[worker] for worker in members], uneven_exit(fleet.patterns, name[0]))
    ledger.refuse(reason)
    world = max(len(fleet.ranks), *(pattern.worker.world_size for pattern in fleet.patterns))
    if not reason and len(members) < world:
        reason = f"its members are unknown, and only {len(members)} of {world} workers show it"
    if reason:
        which = f"process group {name[0]!r}" if name[0] else "a process group without a name"
        ledger.notes.append(f"{name[1]} in {which} does not pair ({reason}): nobody is blamed for it")
        return
    _book(ledger, fleet, name, members, [owners[worker] for worker in members], places)


def _book(
    ledger: _Ledger,
    fleet: Fleet,
    name: tuple[str, str],
    members: Sequence[int],
    records: Sequence[CollectiveRecord],
    places: Sequence[NDArray[np.intp]],
) -> None:
    """Book the waiting in matched executions; in a single recorded iteration once all kinds of the group are known."""
    duration_MK, end_MK = stacked(records, places, "duration_us"), stacked_ends(records, places)
    columns_MK = np.stack(
        [
            ledger.columns(worker, decode_series(record.iteration, np.int32)[at])
            for worker, record, at in zip(members, records, places, strict=True)
        ]
    )
    skew = exit_skew(duration_MK, skew_floor(fleet.patterns, name[0]))
    if end_MK.shape[1] >= FEWEST_VERIFIED:
        skew = measured_skew(end_MK, recorded_skew_floor(fleet.patterns, name[0]))
    ledger.skew[name] = skew
    wait_MK = np.minimum(duration_MK - duration_MK.min(axis=0), stacked(records, places, "critical_us"))
    share_MK = shares_of_blame(duration_MK, skew)
    alone = fleet.columns.shape[1] == 1 and end_MK.shape[1] > 0
    part = Matched(
        group=name[0],
        kind=name[1],
        members=tuple(members),
        duration_us=duration_MK,
        wait_us=wait_MK,
        share=share_MK if alone else keep_repeated(share_MK, wait_MK, columns_MK),
        nearly_last=nearly_last(duration_MK, skew) if end_MK.shape[1] else np.zeros(duration_MK.shape, np.bool_),
        end_us=end_MK,
        columns=columns_MK,
    )
    if alone:
        ledger.pending.append(part)
    else:
        ledger.book(part)


def _settle(ledger: _Ledger) -> None:
    """Book the single recorded iteration, where executions of all kinds of a group take the place of iterations."""
    groups: dict[tuple[str, tuple[int, ...]], list[Matched]] = defaultdict(list)
    for part in ledger.pending:
        groups[part.group, part.members].append(part)
    for parts in groups.values():
        often_M = np.concatenate([part.nearly_last for part in parts], axis=1).mean(axis=1)
        kept_M = is_often(often_M, often_M.size)
        for part in parts:
            ledger.book(msgspec.structs.replace(part, share=part.share * kept_M[:, None]))


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
    share = np.stack([nothing, (wait > SKEW_FLOOR_OTHER_US).astype(np.float64)])
    ledger.enter([receiver, sender], np.stack([wait, nothing]), share, columns)
