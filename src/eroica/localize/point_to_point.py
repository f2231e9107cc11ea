"""Book waiting that goes one way: of a receive for its sender.

Array suffixes: K matched executions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.localize.blame import Ledger, exit_skew, keep_repeated, sites_of
from eroica.localize.fleet import Fleet
from eroica.localize.matching import SKEW_FLOOR_OTHER_US, Matched, skew_floor, stacked, waits_in
from eroica.localize.meetings import MeetingBlock
from eroica.localize.synchronizing import Paired, block_of, chained_ends, columns_of_all, common_column
from eroica.model.pattern import CollectiveRecord
from eroica.model.series import decode_series, decode_together

Floats = NDArray[np.float64]
_Pair = tuple[str, "_Side", "_Side"]
Records = Mapping[tuple[str, str], Mapping[int, CollectiveRecord]]
#: What a transfer takes by itself shows in the executions where nobody waited: the quickest of its kind.
_QUICKEST = 0.1
#: Iterations with equally many sends and receives must be such a share of all.
_MOST_ITERATIONS = 0.6
#: What was issued as one ends within this.
_TOGETHER_US = 50.0
#: Executions that are entered together: their arrays fit into a core's cache.
_AT_ONCE = 20_000
_TIMES = ("end", "duration", "critical")
_COLUMNS: dict[str, np.dtype[Any]] = {
    "duration_us": np.dtype(np.float32),
    "critical_us": np.dtype(np.float32),
    "end_us": np.dtype(np.float64),
    "iteration": np.dtype(np.int32),
    "elements": np.dtype(np.int64),
    "peers": np.dtype(np.int32),
}


class _Side(msgspec.Struct, frozen=True, eq=False):
    """One worker's part in executions that go one way; `end` and `peers` are empty where they are unknown."""

    worker: int
    duration: Floats
    critical: Floats
    end: Floats
    iteration: NDArray[np.int32]
    elements: NDArray[np.int64]
    peers: NDArray[np.int32]

    def at(self, places: NDArray[np.intp]) -> _Side:
        """Some of the executions."""
        if places.size == self.duration.size and bool((places[1:] > places[:-1]).all()):
            return self
        return _Side(
            self.worker,
            self.duration[places],
            self.critical[places],
            self.end[places] if self.end.size else self.end,
            self.iteration[places],
            self.elements[places],
            self.peers[places] if self.peers.size else self.peers,
        )


def book_receives(ledger: Ledger, fleet: Fleet, records: Records) -> None:
    """A receive waits for its sender: the n-th from a rank for that rank's n-th send to here."""
    workers = {rank: worker for worker, rank in enumerate(fleet.ranks)}
    sides = _decoded(records)
    pairs: list[_Pair] = []
    for (group, kind), receivers in sorted(records.items()):
        if kind != "recv":
            continue
        senders = records.get((group, "send"), {})
        for receiver, record in sorted(receivers.items()):
            waiting = sides[group, "recv", receiver]
            for rank in _named(waiting):
                sender = workers.get(rank, -1)
                if sender in senders:
                    both = waiting, sides[group, "send", sender]
                    pairs += _pair(ledger, group, both, (record, senders[sender]), fleet)
    _book_one_way(ledger, pairs)


def _named(receives: _Side) -> Sequence[int]:
    """The ranks that a worker's receives come from, rising."""
    peers = receives.peers
    if peers.size and (peers == peers[0]).all():
        return [int(peers[0])]
    return [int(rank) for rank in np.unique(peers)]


def _decoded(records: Records) -> dict[tuple[str, str, int], _Side]:
    """All sends and receives by group, kind and worker, each decoded once."""
    moves = {
        (group, kind, worker): record
        for (group, kind), owners in records.items()
        if kind in ("send", "recv")
        for worker, record in owners.items()
    }
    sides = dict(zip(moves, _sides([worker for _, _, worker in moves], list(moves.values())), strict=True))
    both = [(group, worker) for group, kind, worker in moves if kind == "recv" and (group, "send", worker) in moves]
    timed = [at for at in both if sides[at[0], "recv", at[1]].end.size and sides[at[0], "send", at[1]].end.size]
    sizes = defaultdict[tuple[int, int], list[tuple[str, int]]](list)
    for group, worker in timed:
        ours, theirs = sides[group, "recv", worker], sides[group, "send", worker]
        sizes[ours.end.size, theirs.end.size].append((group, worker))
    for alike in sizes.values():
        receives, sends = ([sides[group, kind, worker] for group, worker in alike] for kind in ("recv", "send"))
        for (group, worker), recv, send in zip(alike, *_disentangled(receives, sends), strict=True):
            sides[group, "recv", worker], sides[group, "send", worker] = recv, send
    return sides


def _disentangled(receives: Sequence[_Side], sends: Sequence[_Side]) -> tuple[list[_Side], list[_Side]]:
    """A send and a receive issued as one end together; what the worker waits then is the receive's.

    Args:
        receives: Of N workers, R of each.
        sends: Of the same workers, S of each.
    """
    end_NR, duration_NR, critical_NR = (np.stack([getattr(one, name) for one in receives]) for name in _TIMES)
    end_NS, _, moved_NS = (np.stack([getattr(one, name) for one in sends]) for name in _TIMES)
    order_NR = np.argsort(end_NR, axis=1, kind="stable")
    sorted_NR = np.take_along_axis(end_NR, order_NR, axis=1)
    after_NS = _placed(sorted_NR, end_NS).clip(max=end_NR.shape[1] - 1)
    before_NS = (after_NS - 1).clip(min=0)
    off_after, off_before = (np.abs(np.take_along_axis(sorted_NR, at, axis=1) - end_NS) for at in (after_NS, before_NS))
    other_NS = np.take_along_axis(order_NR, np.where(off_after <= off_before, after_NS, before_NS), axis=1)
    other_end, other_duration = (np.take_along_axis(array, other_NS, axis=1) for array in (end_NR, duration_NR))
    together = (np.abs(other_end - end_NS) <= _TOGETHER_US) & (other_end - other_duration < end_NS)
    moved_NS = np.where(together, moved_NS, 0.0)
    cells = other_NS + np.arange(len(receives))[:, None] * end_NR.shape[1]
    more_NR = np.bincount(cells.ravel(), weights=moved_NS.ravel(), minlength=end_NR.size).reshape(end_NR.shape)
    new_NR = np.minimum(critical_NR + more_NR, np.maximum(duration_NR, critical_NR))
    return (
        [msgspec.structs.replace(one, critical=new) for one, new in zip(receives, new_NR, strict=True)],
        [msgspec.structs.replace(one, critical=one.critical - part) for one, part in zip(sends, moved_NS, strict=True)],
    )


def _placed(sorted_NR: Floats, value_NS: Floats) -> NDArray[np.intp]:
    """Count the numbers of its sorted row below each value: `searchsorted` of many rows at once. intp [N, S]."""
    size = value_NS.shape[1]
    order = np.argsort(np.concatenate([value_NS, sorted_NR], axis=1), axis=1, kind="stable")
    below = np.cumsum(order >= size, axis=1)
    placed = np.empty_like(order)
    np.put_along_axis(placed, order, below, axis=1)
    return placed[:, :size]


def _pair(
    ledger: Ledger,
    group: str,
    sides: tuple[_Side, _Side],
    records: tuple[CollectiveRecord, CollectiveRecord],
    fleet: Fleet,
) -> list[_Pair]:
    """Pair the receives of one worker from another with their sends; none, and a note why, where they do not pair."""
    (waiting, leading), (recv, send) = sides, records
    receiver, sender = fleet.ranks[waiting.worker], fleet.ranks[leading.worker]
    at_recv, at_send = np.flatnonzero(waiting.peers == sender), np.flatnonzero(leading.peers == receiver)
    if recv.dropped or send.dropped or at_recv.size != at_send.size:
        ends = (waiting.worker, recv), (leading.worker, send)
        at_recv, at_send = _in_whole_iterations(fleet, *ends, at_recv, at_send)
    if at_recv.size != at_send.size or not at_recv.size or "none" in (recv.paired_by, send.paired_by):
        way = f"receives of worker {receiver} from worker {sender}"
        ledger.notes.append(f"{way} do not pair with the sends: nobody is blamed for them")
        return []
    return [(group, waiting.at(at_recv), leading.at(at_send))]


def _in_whole_iterations(
    fleet: Fleet,
    receiving: tuple[int, CollectiveRecord],
    sending: tuple[int, CollectiveRecord],
    at_recv: NDArray[np.intp],
    at_send: NDArray[np.intp],
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Executions in iterations of which both records hold all and equally many; none unless most iterations are such.

    The others send or receive something more, so that nothing tells to whom.
    """
    sides = []
    for (worker, record), at in ((receiving, at_recv), (sending, at_send)):
        iteration = decode_series(record.iteration, np.int32).astype(np.int64)
        iteration += fleet.patterns[worker].first_iteration
        sides.append((iteration[at], int(iteration.min()) + 1 if record.dropped and iteration.size else 0, at))
    whole_from = max(first for _, first, _ in sides)
    (ours, _, at_recv), (theirs, _, at_send) = sides
    counts = [dict(zip(*np.unique(one[one >= whole_from], return_counts=True), strict=True)) for one in (ours, theirs)]
    alike = [iteration for iteration, count in counts[0].items() if counts[1].get(iteration) == count]
    if len(alike) < _MOST_ITERATIONS * len(counts[0].keys() | counts[1].keys()):
        alike = []
    return at_recv[np.isin(ours, alike)], at_send[np.isin(theirs, alike)]


def _sides(workers: Sequence[int], records: Sequence[CollectiveRecord]) -> list[_Side]:
    """All executions of each record; those of records with equally many decoded in one go."""
    found: dict[int, _Side] = {}
    sizes: dict[int, list[int]] = defaultdict(list)
    for at, record in enumerate(records):
        sizes[record.executions].append(at)
    for count, alike in sizes.items():
        columns = [_column([getattr(records[at], name) for at in alike], kind) for name, kind in _COLUMNS.items()]
        for at, duration, critical, end, iteration, elements, peers in zip(alike, *columns, strict=True):
            size = elements if elements.size else np.zeros(count, dtype=np.int64)
            found[at] = _Side(workers[at], duration, critical, end, iteration, size, peers)
    return [found[at] for at in range(len(records))]


def _column(encoded: Sequence[bytes], kind: np.dtype[Any]) -> Sequence[NDArray[Any]]:
    """One series of each record; what many have in common is decoded once."""
    different = list(dict.fromkeys(encoded))
    together = decode_together(different, kind)
    rows = [decode_series(data, kind) for data in different] if together is None else together
    if kind == np.float32:
        rows = [row.astype(np.float64) for row in rows] if together is None else together.astype(np.float64)
    found = dict(zip(different, rows, strict=True))
    return [found[data] for data in encoded]


def _book_one_way(ledger: Ledger, pairs: Sequence[_Pair]) -> None:
    """Book the waiting of one side for the other, by its longer duration; short waits blame no worker.

    Args:
        ledger: Where it is entered.
        pairs: Group, who waits, and for whom; of equally many executions. Those with as many are entered together.
    """
    sizes: dict[tuple[int, bool], list[_Pair]] = defaultdict(list)
    for pair in pairs:
        sizes[pair[1].duration.size, bool(pair[1].end.size and pair[2].end.size)].append(pair)
    for (count, timed), alike in sizes.items():
        step = max(_AT_ONCE // max(count, 1), 1)
        for start in range(0, len(alike), step):
            _book(ledger, alike[start : start + step], timed)


def _book(ledger: Ledger, pairs: Sequence[_Pair], timed: bool) -> None:
    """Enter pairs P with equally many executions."""
    both_P2 = np.asarray([(waiting.worker, leading.worker) for _, waiting, leading in pairs], dtype=np.intp)
    duration_P2K, critical_P2K, iteration_P2K, elements_P2K = (
        np.stack([(getattr(waiting, name), getattr(leading, name)) for _, waiting, leading in pairs])
        for name in ("duration", "critical", "iteration", "elements")
    )
    transfer_PK = _transfers(duration_P2K.min(axis=1), elements_P2K.max(axis=1))
    wait_P2K, share_P2K = np.zeros((2, *duration_P2K.shape))
    wait_P2K[:, 0] = np.minimum(np.maximum(duration_P2K[:, 0] - transfer_PK, 0.0), critical_P2K[:, 0])
    share_P2K[:, 1] = wait_P2K[:, 0] > SKEW_FLOOR_OTHER_US
    columns_P2K = ledger.columns_of(both_P2, iteration_P2K)
    first_P = ledger.first_chained(columns_P2K)
    waits_P2K = np.ones(critical_P2K.shape, dtype=np.bool_)  # a send is over once it is buffered, or only when received
    waits_P2K[:, 1] = critical_P2K[:, 1] > transfer_PK + SKEW_FLOOR_OTHER_US
    for first in np.unique(first_P).tolist():
        block, at = None, np.flatnonzero(first_P == first).tolist()
        if timed and first < duration_P2K.shape[2]:
            block = MeetingBlock(
                members=both_P2[at],
                group=np.asarray([ledger.queue(pairs[pair][0]) for pair in at]),
                team=np.asarray([ledger.team(both_P2[pair].tolist()) for pair in at]),
                duration_us=duration_P2K[at, :, first:],
                critical_us=critical_P2K[at, :, first:],
                end_us=np.stack([(pairs[pair][1].end[first:], pairs[pair][2].end[first:]) for pair in at]),
                waits=waits_P2K[at, :, first:],
                transfer_us=transfer_PK[at, first:],
                is_one_way=True,
            )
        ledger.enter(both_P2[at], wait_P2K[at], share_P2K[at], columns_P2K[at], block)


def _transfers(shorter_PK: Floats, size_PK: NDArray[np.int64]) -> Floats:
    """Estimate each transfer's own time: at most that of the quickest transfers of its size. float64 [P, K].

    Args:
        shorter_PK: The shorter duration of the two sides.
        size_PK: How much was sent.
    """
    one_size_P = (size_PK == size_PK[:, :1]).all(axis=1)
    found_PK = shorter_PK.copy()
    if one_size_P.any():
        alike = shorter_PK[one_size_P]
        found_PK[one_size_P] = np.minimum(alike, np.quantile(alike, _QUICKEST, axis=1, keepdims=True))
    for pair in np.flatnonzero(~one_size_P):
        for size in np.unique(size_PK[pair]):
            mine = size_PK[pair] == size
            found_PK[pair, mine] = np.minimum(shorter_PK[pair, mine], np.quantile(shorter_PK[pair, mine], _QUICKEST))
    return found_PK


# --- book waiting in broadcasts, reduces, gathers and scatters whose root no record names ---


Places = NDArray[np.intp]


def book_untold(
    ledger: Ledger,
    fleet: Fleet,
    name: tuple[str, str],
    members: Sequence[int],
    places: Sequence[Places],
    records: Sequence[CollectiveRecord],
) -> Floats | None:
    """Enter the executions in which all but one wait.

    Args:
        ledger: Where they are entered.
        fleet: The window.
        name: Group and kind.
        members: Indices of all members.
        places: Positions of the matched executions, of each member.
        records: Of each member.

    Returns:
        Critical time of each member that is explained so, microseconds; None for nothing. float64 [M].
    """
    duration_MK, critical_MK = (stacked(records, places, one) for one in ("duration_us", "critical_us"))
    columns_MK = columns_of_all(ledger, members, records, places)
    site_K = sites_of(columns_MK[0])
    floor_us = max(skew_floor(fleet.carriers, name[0]), SKEW_FLOOR_OTHER_US)  # a hop of the data is no waiting
    share_MK = _last_of_all(duration_MK, float(exit_skew(duration_MK[None], floor_us, site_K)[0]))
    wait_MK = waits_in(duration_MK, critical_MK)
    share_MK = keep_repeated(share_MK[None], wait_MK[None], common_column(columns_MK), site_K)[0]
    told_K = share_MK.any(axis=0)
    if not told_K.any():
        return None
    part = Matched(
        group=name[0],
        kind=name[1],
        members=tuple(members),
        duration_us=duration_MK[:, told_K],
        wait_us=wait_MK[:, told_K],
        share=share_MK[:, told_K],
        nearly_last=np.zeros((len(members), int(told_K.sum())), np.bool_),
        end_us=np.zeros((len(members), 0)),
        columns=columns_MK[:, told_K],
    )
    told = Paired(
        name=name,
        members=part.members,
        records=records,
        places=[at[told_K] for at in places],
        timed=records,
    )
    ends_MK = chained_ends(ledger, told, part.columns)
    block = block_of(ledger, [told], ends_MK[None], part.duration_us[None], critical_MK[None, :, told_K])
    ledger.book(part, block)
    return np.asarray(critical_MK[:, told_K].sum(axis=1))


def _last_of_all(duration_MK: Floats, skew_us: float) -> Floats:
    """1 for the member that all others are seen to wait for, else 0. float64 [M, K]."""
    shortest_2K = np.partition(duration_MK, 1, axis=0)[:2]
    clear_K = shortest_2K[1] - shortest_2K[0] > skew_us
    return np.asarray((np.arange(duration_MK.shape[0])[:, None] == duration_MK.argmin(axis=0)) & clear_K, np.float64)
