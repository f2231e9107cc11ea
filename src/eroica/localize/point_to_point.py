"""Book waiting that goes one way, of a receive for its sender; and that for a root which no record names.

Array suffixes: M members of a group, P pairs of workers, K matched executions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eroica.localize.blame import exit_skew, keep_repeated, sites_of
from eroica.localize.fleet import Fleet
from eroica.localize.ledger import Ledger, Timed
from eroica.localize.matching import SKEW_FLOOR_OTHER_US, pair_executions, stacked, waits_in
from eroica.localize.synchronizing import Paired, common_column, exit_of, place_in_time
from eroica.model.pattern import CollectiveRecord
from eroica.model.series import decode_series

Floats = NDArray[np.float64]
Places = NDArray[np.intp]
Records = Mapping[tuple[str, str], Mapping[int, CollectiveRecord]]
#: What a transfer takes by itself shows in the executions where nobody waited: the quickest of its kind.
_QUICKEST = 0.1
#: Iterations with equally many sends and receives must be such a share of all.
_MOST_ITERATIONS = 0.6
#: Fewer receives do not tell how steady the distance to their sends is.
_FEWEST_TO_SHIFT = 10
#: What was issued as one ends within this.
_TOGETHER_US = 50.0
#: Executions that are entered together: their arrays fit into a core's cache.
_AT_ONCE = 20_000
#: Iterations from which who is last again and again shows where no root is named.
_FEWEST_UNTOLD = 3


class _Side(NamedTuple):
    """One worker's part in executions that go one way; `end` and `peers` are empty where they are unknown."""

    worker: int
    duration: Floats
    critical: Floats
    end: Floats
    iteration: NDArray[np.int32]
    elements: NDArray[np.int64]
    peers: NDArray[np.int32]

    def at(self, places: Places) -> _Side:
        """Some of the executions."""
        columns = {name: getattr(self, name) for name in self._fields[1:]}
        return self._replace(**{name: column[places] for name, column in columns.items() if column.size})


class _Pair(NamedTuple):
    """Receives of one worker from another with their sends, equally many."""

    group: str
    waiting: _Side
    leading: _Side


def book_receives(ledger: Ledger, fleet: Fleet, records: Records, shifts: bool = False) -> None:
    """A receive waits for its sender: the n-th from a rank for that rank's n-th send to here.

    Args:
        ledger: Where it is booked.
        fleet: The window.
        records: Executions of each group and kind, by worker.
        shifts: The send may lie in the iteration before or after: whole iterations do not pair without a circle.
    """
    sizes: dict[tuple[int, bool], list[_Pair]] = defaultdict(list)
    for pair in _pairs(ledger, fleet, records, shifts):
        sizes[pair.waiting.duration.size, bool(pair.waiting.end.size and pair.leading.end.size)].append(pair)
    for (count, is_timed), alike in sizes.items():
        step = max(_AT_ONCE // max(count, 1), 1)
        for start in range(0, len(alike), step):
            _book(ledger, alike[start : start + step], is_timed)


def _pairs(ledger: Ledger, fleet: Fleet, records: Records, shifts: bool) -> Iterator[_Pair]:
    workers = {rank: worker for worker, rank in enumerate(fleet.ranks)}
    for (group, kind), receivers in sorted(records.items()):
        if kind != "recv":
            continue
        senders = records.get((group, "send"), {})
        both = {*receivers, *senders}
        sides = {worker: _both(worker, receivers.get(worker), senders.get(worker)) for worker in both}
        for receiver, (waiting, _) in sorted(sides.items()):
            for rank in np.unique(waiting.peers).tolist() if waiting is not None else ():
                sender = workers.get(rank, -1)
                leading = sides.get(sender, (None, None))[1]
                if waiting is not None and leading is not None:
                    recv, send = receivers[receiver], senders[sender]
                    at_recv, at_send = _matching(fleet, (waiting, recv), (leading, send))
                    if shifts:
                        at_recv, at_send = _shifted(waiting, leading, at_recv, at_send)
                    if at_recv.size and "none" not in (recv.paired_by, send.paired_by):
                        yield _Pair(group, waiting.at(at_recv), leading.at(at_send))
                        continue
                    way = f"receives of worker {fleet.ranks[receiver]} from worker {rank}"
                    ledger.notes.append(f"{way} do not pair with the sends: nobody is blamed for them")


def _both(
    worker: int, recv: CollectiveRecord | None, send: CollectiveRecord | None
) -> tuple[_Side | None, _Side | None]:
    """A worker's receives and sends in one group.

    A send and a receive issued as one end together; what the worker waits then is the receive's.
    """
    receives, sends = (None if record is None else _decoded(worker, record) for record in (recv, send))
    if receives is None or sends is None or not (receives.end.size and sends.end.size):
        return receives, sends
    order = np.argsort(receives.end, kind="stable")
    after = np.searchsorted(receives.end[order], sends.end).clip(max=order.size - 1)
    before = (after - 1).clip(min=0)
    off_after, off_before = (np.abs(receives.end[order[at]] - sends.end) for at in (after, before))
    other = order[np.where(off_after <= off_before, after, before)]
    together = np.abs(receives.end[other] - sends.end) <= _TOGETHER_US
    together &= receives.end[other] - receives.duration[other] < sends.end
    moved = np.where(together, sends.critical, 0.0)
    more = np.bincount(other, weights=moved, minlength=order.size)
    most = np.maximum(receives.duration, receives.critical)
    return (
        receives._replace(critical=np.minimum(receives.critical + more, most)),
        sends._replace(critical=sends.critical - moved),
    )


def _decoded(worker: int, record: CollectiveRecord) -> _Side:
    duration, critical = (
        decode_series(one, np.float32).astype(np.float64) for one in (record.duration_us, record.critical_us)
    )
    elements = decode_series(record.elements, np.int64)
    return _Side(
        worker,
        duration,
        critical,
        decode_series(record.end_us, np.float64),
        decode_series(record.iteration, np.int32),
        elements if elements.size else np.zeros(duration.size, dtype=np.int64),
        decode_series(record.peers, np.int32),
    )


def _matching(
    fleet: Fleet, receiving: tuple[_Side, CollectiveRecord], sending: tuple[_Side, CollectiveRecord]
) -> tuple[Places, Places]:
    """Places of the receives of one worker from another, and of their sends; none where they do not pair.

    Where their numbers differ, only iterations count of which both records hold all and equally many, if most are
    such: the others send or receive something more, so that nothing tells to whom.
    """
    (waiting, recv), (leading, send) = receiving, sending
    at_recv = np.flatnonzero(waiting.peers == fleet.ranks[leading.worker])
    at_send = np.flatnonzero(leading.peers == fleet.ranks[waiting.worker])
    if at_recv.size == at_send.size and not (recv.dropped or send.dropped):
        return at_recv, at_send
    firsts = [fleet.patterns[side.worker].first_iteration for side in (waiting, leading)]
    ours, theirs = waiting.iteration[at_recv] + firsts[0], leading.iteration[at_send] + firsts[1]
    whole_from = max(
        int(side.iteration.min()) + first + 1 if record.dropped and side.iteration.size else 0
        for (side, record), first in zip((receiving, sending), firsts, strict=True)
    )
    counts = [dict(zip(*np.unique(one[one >= whole_from], return_counts=True), strict=True)) for one in (ours, theirs)]
    alike = [iteration for iteration, count in counts[0].items() if counts[1].get(iteration) == count]
    if len(alike) < _MOST_ITERATIONS * len(counts[0].keys() | counts[1].keys()):
        alike = []
    return at_recv[np.isin(ours, alike)], at_send[np.isin(theirs, alike)]


def _shifted(waiting: _Side, leading: _Side, at_recv: Places, at_send: Places) -> tuple[Places, Places]:
    """Pair receives with the sends of the iteration before or after where these end at a much steadier distance.

    Each worker's iterations begin where its own code does, so a server's answer may be received in the next one.
    """
    if at_recv.size < _FEWEST_TO_SHIFT or not (waiting.end.size and leading.end.size):
        return at_recv, at_send
    each = max(round(at_recv.size / np.unique(waiting.iteration[at_recv]).size), 1)
    ways = [(at_recv, at_send), (at_recv[each:], at_send[:-each]), (at_recv[:-each], at_send[each:])]
    spread = [float((waiting.end[ours] - leading.end[theirs]).std()) for ours, theirs in ways]
    best = int(np.argmin(spread))
    return ways[best if spread[best] < spread[0] / 2 else 0]


def _book(ledger: Ledger, pairs: list[_Pair], is_timed: bool) -> None:
    """Book the waiting of receives for their sends; short waits blame no worker."""
    both_P2 = np.asarray([(pair.waiting.worker, pair.leading.worker) for pair in pairs], dtype=np.intp)
    duration_P2K, critical_P2K, iteration_P2K, elements_P2K = (
        np.stack([(getattr(pair.waiting, name), getattr(pair.leading, name)) for pair in pairs])
        for name in ("duration", "critical", "iteration", "elements")
    )
    transfer_PK = _transfers(duration_P2K.min(axis=1), elements_P2K.max(axis=1))
    wait_P2K, share_P2K = np.zeros((2, *duration_P2K.shape))
    wait_P2K[:, 0] = np.minimum(np.maximum(duration_P2K[:, 0] - transfer_PK, 0.0), critical_P2K[:, 0])
    share_P2K[:, 1] = wait_P2K[:, 0] > SKEW_FLOOR_OTHER_US
    columns_P2K = ledger.columns_of(both_P2, iteration_P2K)
    waits_P2K = np.ones(critical_P2K.shape, dtype=np.bool_)  # a send is over once it is buffered, or only when received
    waits_P2K[:, 1] = critical_P2K[:, 1] > transfer_PK + SKEW_FLOOR_OTHER_US
    first_P = ledger.first_chained(columns_P2K)
    for first in np.unique(first_P).tolist():
        timed, at = None, np.flatnonzero(first_P == first).tolist()
        if is_timed and first < duration_P2K.shape[2]:
            timed = Timed(
                groups=[pairs[pair].group for pair in at],
                end_us=np.stack([(pairs[pair].waiting.end[first:], pairs[pair].leading.end[first:]) for pair in at]),
                duration_us=duration_P2K[at, :, first:],
                critical_us=critical_P2K[at, :, first:],
                transfer_us=transfer_PK[at, first:],
                waits=waits_P2K[at, :, first:],
                is_one_way=True,
            )
        ledger.enter(both_P2[at], wait_P2K[at], share_P2K[at], columns_P2K[at], timed)


def _transfers(shorter_PK: Floats, size_PK: NDArray[np.int64]) -> Floats:
    """Estimate each transfer's own time: at most that of the quickest transfers of its size. float64 [P, K].

    Args:
        shorter_PK: The shorter duration of the two sides.
        size_PK: How much was sent.
    """
    if (size_PK == size_PK[:, :1]).all():
        return np.minimum(shorter_PK, np.quantile(shorter_PK, _QUICKEST, axis=1, keepdims=True))
    found_PK = shorter_PK.copy()
    for own_K, size_K in zip(found_PK, size_PK, strict=True):
        for size in np.unique(size_K):
            mine_K = size_K == size
            own_K[mine_K] = np.minimum(own_K[mine_K], np.quantile(own_K[mine_K], _QUICKEST))
    return found_PK


def book_rooted(
    ledger: Ledger,
    fleet: Fleet,
    name: tuple[str, str],
    ranks: tuple[int, ...],
    owners: Mapping[int, CollectiveRecord],
) -> None:
    """Book executions of broadcasts, reduces, gathers and scatters in which all but one member are seen to wait.

    No record names the root, and no worker is judged unless all members are present.
    """
    present = {fleet.ranks[worker]: worker for worker in owners}
    if not present.keys() >= set(ranks) or fleet.columns.shape[1] < _FEWEST_UNTOLD:
        return
    members = tuple(present[rank] for rank in ranks)
    records = [owners[worker] for worker in members]
    places, reason = pair_executions(records, exit_of(fleet, name[0]))
    if reason:
        return
    pair = Paired(name=name, members=members, records=records, places=places)
    duration_MK, critical_MK = (stacked(records, places, one) for one in ("duration_us", "critical_us"))
    columns_MK = pair.columns(ledger)
    site_K = sites_of(columns_MK[0])
    floor_us = max(fleet.carriers.skew_floor(name[0]), SKEW_FLOOR_OTHER_US)  # a hop of the data is no waiting
    shortest_2K = np.partition(duration_MK, 1, axis=0)[:2]
    clear_K = shortest_2K[1] - shortest_2K[0] > exit_skew(duration_MK[None], floor_us, site_K)[0]
    share_MK = (np.arange(len(members))[:, None] == duration_MK.argmin(axis=0)) & clear_K
    wait_MK = waits_in(duration_MK, critical_MK)
    share_MK = keep_repeated(share_MK[None].astype(np.float64), wait_MK[None], common_column(columns_MK), site_K)[0]
    told_K = share_MK.any(axis=0)
    if not told_K.any():
        return
    told = Paired(name=name, members=members, records=records, places=[at[told_K] for at in places])
    columns_MK = columns_MK[:, told_K]
    duration_MK, critical_MK, wait_MK, share_MK = (
        array[:, told_K] for array in (duration_MK, critical_MK, wait_MK, share_MK)
    )
    ends_MK = told.chained_ends(ledger, columns_MK)
    timed = place_in_time([name[0]], ends_MK[None], duration_MK[None], critical_MK[None])
    ledger.enter(np.asarray([members], dtype=np.intp), wait_MK[None], share_MK[None], columns_MK[None], timed)
    ledger.told_W[list(members)] += critical_MK.sum(axis=1)
