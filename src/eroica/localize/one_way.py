"""Waiting that goes one way: a receive for its sender, members of a broadcast for the root.

Array suffixes: K matched executions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.localize.fleet import Fleet
from eroica.localize.leaving import SKEW_FLOOR_OTHER_US
from eroica.localize.ledger import Ledger
from eroica.localize.meetings import MeetingBlock
from eroica.model.pattern import CollectiveRecord
from eroica.summarize.series import decode_series, decode_together

Floats = NDArray[np.float64]
_Pair = tuple[str, "_Side", "_Side"]
Records = Mapping[tuple[str, str], Mapping[int, CollectiveRecord]]
#: Members wait for the root alone, and the root for nobody.
FROM_ROOT = frozenset({"broadcast", "scatter"})
#: What a transfer takes by itself shows in the executions where nobody waited: the quickest of its kind.
_QUICKEST = 0.1
#: What was issued as one ends within this.
_TOGETHER_US = 50.0


class _Side(msgspec.Struct, frozen=True, eq=False):
    """One worker's part in executions that go one way."""

    worker: int
    duration: Floats
    critical: Floats
    end: Floats
    iteration: NDArray[np.int32]
    elements: NDArray[np.int64]

    def at(self, places: NDArray[np.intp]) -> _Side:
        """Some of the executions."""
        return _Side(
            self.worker,
            self.duration[places],
            self.critical[places],
            self.end[places] if self.end.size else self.end,
            self.iteration[places],
            self.elements[places],
        )


def book_receives(ledger: Ledger, fleet: Fleet, records: Records) -> None:
    """A receive waits for its sender: the n-th from a rank for that rank's n-th send to here."""
    workers = {rank: worker for worker, rank in enumerate(fleet.ranks)}
    pairs: list[_Pair] = []
    for (group, kind), receivers in sorted(records.items()):
        if kind != "recv":
            continue
        senders = records.get((group, "send"), {})
        sides = _decoded(receivers, senders)
        for receiver, record in sorted(receivers.items()):
            for rank in _named(record):
                sender = workers.get(rank, -1)
                if sender in senders:
                    ends = (receiver, record), (sender, senders[sender])
                    pairs += _pair(ledger, group, *ends, fleet, sides)
    transfers = _transfers(pairs)
    for (group, waiting, leading), transfer in zip(pairs, transfers, strict=True):
        book_one_way(ledger, group, waiting, leading, transfer)


def _named(record: CollectiveRecord) -> Sequence[int]:
    """The ranks that a record's receives come from, rising."""
    peers = decode_series(record.peers, np.int32)
    if peers.size and (peers == peers[0]).all():
        return [int(peers[0])]
    return [int(rank) for rank in np.unique(peers)]


def _decoded(
    receivers: Mapping[int, CollectiveRecord], senders: Mapping[int, CollectiveRecord]
) -> dict[tuple[int, str], _Side]:
    """Both kinds of every worker, each decoded once."""
    sides = {(side.worker, "recv"): side for side in _sides(receivers)}
    sides |= {(side.worker, "send"): side for side in _sides(senders)}
    for worker in receivers.keys() & senders.keys():
        recv, send = _disentangled(sides[worker, "recv"], sides[worker, "send"])
        sides[worker, "recv"], sides[worker, "send"] = recv, send
    return sides


def _disentangled(recv: _Side, send: _Side) -> tuple[_Side, _Side]:
    """A send and a receive issued as one end together; what the worker waits then is the receive's."""
    if not recv.end.size or not send.end.size:
        return recv, send
    order = np.argsort(recv.end, kind="stable")
    ends = recv.end[order]
    after = np.searchsorted(ends, send.end).clip(max=ends.size - 1)
    before = (after - 1).clip(min=0)
    nearest = np.where(np.abs(ends[after] - send.end) <= np.abs(ends[before] - send.end), after, before)
    other = order[nearest]
    together = (np.abs(recv.end[other] - send.end) <= _TOGETHER_US) & (
        recv.end[other] - recv.duration[other] < send.end
    )
    moved = np.where(together, send.critical, 0.0)
    critical = recv.critical + np.bincount(other, weights=moved, minlength=recv.critical.size)
    return (
        msgspec.structs.replace(recv, critical=np.minimum(critical, np.maximum(recv.duration, recv.critical))),
        msgspec.structs.replace(send, critical=send.critical - moved),
    )


def _pair(
    ledger: Ledger,
    group: str,
    receiving: tuple[int, CollectiveRecord],
    sending: tuple[int, CollectiveRecord],
    fleet: Fleet,
    sides: Mapping[tuple[int, str], _Side],
) -> list[_Pair]:
    """The receives of one worker from another with their sends; none, and a note why, where they do not pair."""
    (receiver, recv), (sender, send) = receiving, sending
    at_recv = np.flatnonzero(decode_series(recv.peers, np.int32) == fleet.ranks[sender])
    at_send = (
        np.flatnonzero(decode_series(send.peers, np.int32) == fleet.ranks[receiver]) if send.peers else at_recv[:0]
    )
    if recv.dropped or send.dropped:
        at_recv, at_send = _in_whole_iterations(fleet, receiving, sending, at_recv, at_send)
    if at_recv.size != at_send.size or not at_recv.size or "none" in (recv.paired_by, send.paired_by):
        way = f"receives of worker {fleet.ranks[receiver]} from worker {fleet.ranks[sender]}"
        ledger.notes.append(f"{way} do not pair with the sends: nobody is blamed for them")
        return []
    return [(group, sides[receiver, "recv"].at(at_recv), sides[sender, "send"].at(at_send))]


def _in_whole_iterations(
    fleet: Fleet,
    receiving: tuple[int, CollectiveRecord],
    sending: tuple[int, CollectiveRecord],
    at_recv: NDArray[np.intp],
    at_send: NDArray[np.intp],
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Executions in iterations of which both records hold all; none unless both have equally many in each of them."""
    sides = []
    for (worker, record), at in ((receiving, at_recv), (sending, at_send)):
        iteration = decode_series(record.iteration, np.int32).astype(np.int64)
        iteration += fleet.patterns[worker].first_iteration
        sides.append((iteration[at], int(iteration.min()) + 1 if record.dropped and iteration.size else 0, at))
    whole_from = max(first for _, first, _ in sides)
    (ours, _, at_recv), (theirs, _, at_send) = sides
    at_recv, at_send = at_recv[ours >= whole_from], at_send[theirs >= whole_from]
    if not np.array_equal(ours[ours >= whole_from], theirs[theirs >= whole_from]):
        return at_recv[:0], at_send[:0]
    return at_recv, at_send


def book_from_root(
    ledger: Ledger,
    fleet: Fleet,
    group: str,
    owners: Mapping[int, CollectiveRecord],
    members: Sequence[int],
    places: Sequence[NDArray[np.intp]],
) -> bool:
    """Members of a broadcast or scatter wait for its root, if every member names the same one.

    Returns:
        Whether the root is known.
    """
    if not all(owners[worker].peers for worker in members):
        return False
    root_MK = np.stack([decode_series(owners[w].peers, np.int32)[at] for w, at in zip(members, places, strict=True)])
    if not root_MK.size or (root_MK != root_MK[0]).any() or not np.isin(root_MK[0], fleet.ranks).all():
        return False
    for rank in np.unique(root_MK[0]):
        root = fleet.ranks.index(int(rank))
        if root not in members:
            return False
        mine = root_MK[0] == rank
        own = _side(root, owners[root]).at(places[list(members).index(root)][mine])
        for worker, at in zip(members, places, strict=True):
            if worker != root:
                waiting = _side(worker, owners[worker]).at(at[mine])
                book_one_way(ledger, group, waiting, own, _transfer(waiting, own), members)
    return True


def _sides(owners: Mapping[int, CollectiveRecord]) -> list[_Side]:
    """All executions of each worker's record; decoded in one go where all have equally many."""
    records = list(owners.values())
    durations = decode_together([one.duration_us for one in records], np.float32)
    criticals = decode_together([one.critical_us for one in records], np.float32)
    ends = decode_together([one.end_us for one in records], np.float64)
    if durations is None or criticals is None or ends is None or durations.shape != criticals.shape:
        return [_side(worker, record) for worker, record in owners.items()]
    columns = durations.astype(np.float64), criticals.astype(np.float64), ends
    return [
        _Side(worker, duration, critical, end, decode_series(record.iteration, np.int32), _elements(record))
        for (worker, record), duration, critical, end in zip(owners.items(), *columns, strict=True)
    ]


def _elements(record: CollectiveRecord) -> NDArray[np.int64]:
    elements = decode_series(record.elements, np.int64)
    return elements if elements.size else np.zeros(record.executions, dtype=np.int64)


def _side(worker: int, record: CollectiveRecord) -> _Side:
    """All executions of one worker's record."""
    return _Side(
        worker=worker,
        duration=decode_series(record.duration_us, np.float32).astype(np.float64),
        critical=decode_series(record.critical_us, np.float32).astype(np.float64),
        end=decode_series(record.end_us, np.float64),
        iteration=decode_series(record.iteration, np.int32),
        elements=_elements(record),
    )


def book_one_way(
    ledger: Ledger, group: str, waiting: _Side, leading: _Side, transfer: Floats, members: Sequence[int] = ()
) -> None:
    """One side waits for the other, by what it spends longer in the execution; short waits blame nobody."""
    wait = np.minimum(np.maximum(waiting.duration - transfer, 0.0), waiting.critical)
    columns = ledger.columns_of([waiting.worker, leading.worker], np.stack([waiting.iteration, leading.iteration]))
    nothing = np.zeros_like(wait)
    share = np.stack([nothing, (wait > SKEW_FLOOR_OTHER_US).astype(np.float64)])
    both = [waiting.worker, leading.worker]
    block = None
    first = ledger.first_chained(columns)
    if first < wait.size and waiting.end.size and leading.end.size:
        block = MeetingBlock(
            members=np.asarray(both, dtype=np.intp),
            group=ledger.queue(group),
            team=ledger.team(members or both),
            duration_us=np.stack([waiting.duration[first:], leading.duration[first:]]),
            critical_us=np.stack([waiting.critical[first:], leading.critical[first:]]),
            end_us=np.stack([waiting.end[first:], leading.end[first:]]),
            waits=np.asarray([True, False]),
            transfer_us=transfer[first:],
        )
    ledger.enter(both, np.stack([wait, nothing]), share, columns, block)


def _transfers(pairs: Sequence[_Pair]) -> list[Floats]:
    """What each transfer of each pair takes by itself; pairs with equally many, all of one size, in one go."""
    found: list[Floats] = [np.zeros(0)] * len(pairs)
    alike: dict[int, list[int]] = defaultdict(list)
    for at, (_, waiting, leading) in enumerate(pairs):
        if _is_one_size(np.maximum(waiting.elements, leading.elements)):
            alike[waiting.duration.size].append(at)
        else:
            found[at] = _transfer(waiting, leading)
    for places in alike.values():
        both = ((pairs[at][1].duration, pairs[at][2].duration) for at in places)
        shorter_PK = np.stack([np.minimum(waiting, leading) for waiting, leading in both])
        usual_P1 = np.quantile(shorter_PK, _QUICKEST, axis=1, keepdims=True)
        for at, transfer in zip(places, np.minimum(shorter_PK, usual_P1), strict=True):
            found[at] = transfer
    return found


def _is_one_size(size_K: NDArray[np.int64]) -> bool:
    return bool((size_K == size_K[0]).all())


def _transfer(waiting: _Side, leading: _Side) -> Floats:
    """What each transfer takes by itself, at most what the quickest ones of its size do. float64 [K]."""
    shorter = np.minimum(waiting.duration, leading.duration)
    size = np.maximum(waiting.elements, leading.elements)
    found = shorter.copy()
    for one in np.unique(size):
        mine = size == one
        found[mine] = np.minimum(shorter[mine], np.quantile(shorter[mine], _QUICKEST))
    return found
