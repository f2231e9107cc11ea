"""Find places in pipelines whose process groups do not tell them: from the order of sends and receives.

An iteration begins with activations that run forward: towards its neighbours a stage receives from the one before it
first, and sends to the one after it first. Gradients come back later. Members of a ring (context parallelism) send and
receive at once, each to one side, and so have no such order; where neighbours exchange their borders, every other one
sending first, nobody lies between two stages. (Two or three neighbours on a line look like stages all the same.)
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from eroica.errors import InputError
from eroica.model.pattern import CollectiveRecord, WorkerPattern
from eroica.model.series import decode_series

#: Of the iterations in which two workers talk, so many must show the same order.
_MOST = 0.6


def order_stages(patterns: Sequence[WorkerPattern]) -> list[int] | None:
    """Find the place of each worker in its pipeline, 0 = first stage; None unless sends and receives tell it of all.

    Args:
        patterns: One per worker; of them sends and receives with known peers are read: their order by start where ends
            were written down, else by the group's own sequence numbers. Never how long anything took.
    """
    if not all(any(record.kind in ("send", "recv") for record in pattern.collectives) for pattern in patterns):
        return None
    try:
        leads = {pattern.worker.global_rank: _leads(pattern) for pattern in patterns}
    except InputError:  # a damaged record costs the order, no more
        return None
    after = _edges(leads)
    if _is_exchange(after):
        return None
    places = _distances([rank for rank in leads if leads[rank].get(-1)], after)
    ranks = [pattern.worker.global_rank for pattern in patterns]
    return [places[rank] for rank in ranks] if all(rank in places for rank in ranks) and any(after.values()) else None


def _leads(pattern: WorkerPattern) -> dict[int, bool]:
    """Tell for each peer whether this worker sends to it before receiving from it; -1 stands for all peers together."""
    votes: dict[int, list[bool]] = defaultdict(list)
    for sends, receives in _both_ways(pattern.collectives):
        for peer in (*np.intersect1d(sends[0], receives[0]).tolist(), -1):
            votes[peer] += _votes(sends, receives, peer)
    shares = {peer: sum(own) / len(own) for peer, own in votes.items() if own}
    return {peer: share >= _MOST for peer, share in shares.items() if share >= _MOST or share <= 1 - _MOST}


_Moves = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]


def _both_ways(records: Sequence[CollectiveRecord]) -> Iterator[tuple[_Moves, _Moves]]:
    """Peers, iterations and times of the sends and of the receives of each group with both."""
    groups: dict[str, dict[str, CollectiveRecord]] = defaultdict(dict)
    for record in records:
        if record.kind in ("send", "recv") and record.peers:
            groups[record.group][record.kind] = record
    for both in groups.values():
        if len(both) == 2:
            timed = all(record.end_us for record in both.values())
            if timed or all(record.paired_by == "sequence" for record in both.values()):
                yield _moves(both["send"], timed), _moves(both["recv"], timed)


def _moves(record: CollectiveRecord, timed: bool) -> _Moves:
    peers, iterations = decode_series(record.peers, np.int32), decode_series(record.iteration, np.int32)
    if timed:
        end_us = decode_series(record.end_us, np.float64)
        return peers, iterations, end_us - decode_series(record.duration_us, np.float32)
    return peers, iterations, decode_series(record.sequence, np.int64).astype(np.float64)


def _votes(sends: _Moves, receives: _Moves, peer: int) -> list[bool]:
    """Iteration by iteration, whether the first move is a send; iterations without both are left out."""
    first = [_first(moves, peer) for moves in (sends, receives)]
    return [first[0][at] < first[1][at] for at in first[0].keys() & first[1].keys()]


def _first(moves: _Moves, peer: int) -> Mapping[int, float]:
    peers, iterations, times = moves
    chosen = (iterations >= 0) & ((peers == peer) if peer >= 0 else True)
    found: dict[int, float] = {}
    for iteration, time in zip(iterations[chosen].tolist(), times[chosen].tolist(), strict=True):
        found[iteration] = min(time, found.get(iteration, time))
    return found


def _edges(leads: Mapping[int, Mapping[int, bool]]) -> dict[int, set[int]]:
    """Map each worker to the workers after it; two workers that contradict each other have no order."""
    after: dict[int, set[int]] = defaultdict(set)
    for rank, peers in leads.items():
        for peer, first in peers.items():
            back = leads.get(peer, {}).get(rank)
            if peer >= 0 and back is not first:
                after[rank if first else peer].add(peer if first else rank)
    return after


def _is_exchange(after: Mapping[int, set[int]]) -> bool:
    """Return whether each worker either leads or follows, and leaders share followers without sharing all of them.

    In two stages of which each worker sends to each of the next, leaders share all followers: no exchange.
    """
    before = Counter(rank for followers in after.values() for rank in followers)
    several = any(before[rank] > 1 for followers in after.values() if len(followers) > 1 for rank in followers)
    same = len({frozenset(followers) for followers in after.values()}) == 1  # two stages, each worker to each
    return several and not same and not before.keys() & after.keys()


def _distances(sources: Sequence[int], after: Mapping[int, set[int]]) -> dict[int, int]:
    """Steps from the nearest first stage; interleaved stages come back to it, which counts no further."""
    places = dict.fromkeys(sources, 0)
    queue = deque(sources)
    while queue:
        rank = queue.popleft()
        for peer in sorted(after.get(rank, ())):
            if peer not in places:
                places[peer] = places[rank] + 1
                queue.append(peer)
    return places
