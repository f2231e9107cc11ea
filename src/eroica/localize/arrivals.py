"""Book waiting in communication on the workers that were waited for, without comparing clocks.

Members of one execution of an all-reduce leave it together, so whoever spent least time in it came last and the others
waited for him. That needs executions that pair, and a gap that the members' uneven leaving cannot explain. Where the
records tell when executions ended, whoever came last because it waited itself passes that on.

Array suffixes: M members of a group, K matched executions, W workers, I iterations, J boundaries of iterations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import product

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.localize.fleet import Fleet
from eroica.localize.graph import Meetings, build_graph
from eroica.localize.ledger import DirectWaits, Ledger
from eroica.localize.matching import Matched
from eroica.localize.point_to_point import book_receives, book_rooted
from eroica.localize.replay import TOLERANCE, Replay, prepare_replay
from eroica.localize.synchronizing import Paired, book_together, pair_synchronizing, pair_unnamed
from eroica.model.pattern import CollectiveRecord
from eroica.model.series import decode_series
from eroica.model.shares import percent
from eroica.summarize.collectives import EXCHANGE

Floats = NDArray[np.float64]
Records = Mapping[tuple[str, str], Mapping[int, CollectiveRecord]]
#: Nobody leaves before everybody has come.
SYNCHRONIZING = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier", EXCHANGE})
#: A replay of fewer iterations, where more were captured, is no measure: its ends are half of it.
_FEWEST_REPLAYED = 4
_TOO_FEW = "too many collectives to replay several iterations: gains are estimated from busy times"
#: Waiting for nobody knows whom spoils a replay from this share of all time on.
_MUCH_UNTOLD = 0.05
_UNTOLD = "receives name no sender, so the window is not replayed: gains are estimated from busy times"
_CIRCLE = "the order of the collectives cannot be replayed: gains are estimated from busy times"
#: Some members wait for the root, or the root for some. Captures do not tell who it is.
_ROOTED = frozenset({"broadcast", "scatter", "reduce", "gather"})
#: Sends and receives that last so many times as long as they hold their worker up go on beside its other work.
_BESIDE_WORK = 1.5
_ASYNCHRONOUS = "sends go on beside other work, so the window is not replayed: gains are estimated from busy times"
_UNJUDGED = "no record names the roots of its broadcasts or reduces: gains are estimated from busy times"


class Arrivals(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Waiting on the critical path, and the workers that it is laid at.

    `blamed_us.sum() + withheld_us == waited_us.sum()`: blame handed out plus what nobody is blamed for is what was
    waited.

    Attributes:
        waited_us: Critical waiting of each worker in each iteration. float64 [W, I].
        blamed_us: Waiting of others that began with each worker: who came last because it waited itself has passed its
            part on. float64 [W, I].
        direct: Waiting by pair of workers over all iterations, before blame is passed on.
        withheld_us: Waiting nobody is blamed for (nobody clearly last, or somebody else each time).
        executions: Executions that paired.
        transfer_us: Critical time of each execution of (group, kind) in which nobody is waited for, mean over members.
            float64 [K].
        matched: Paired executions of recorded traces, one entry per group and kind, as far as they were judged.
        replay: The window, to be run again with less in it; None where it cannot be, and a note says why.
        contradicted: Why executions that should be the same ones cannot be, by their ends; "" if all can.
        notes: What did not pair and why.
    """

    waited_us: Floats
    blamed_us: Floats
    direct: DirectWaits = DirectWaits()
    withheld_us: float = 0.0
    executions: int = 0
    transfer_us: dict[tuple[str, str], Floats] = {}
    matched: tuple[Matched, ...] = ()
    replay: Replay | None = None
    contradicted: str = ""
    notes: tuple[str, ...] = ()

    def blame_share(self, workers: Sequence[int]) -> float | None:
        """Share of all blame that lies on these workers (indices), 0-1; None if no worker was blamed."""
        total = float(self.blamed_us.sum())
        return float(self.blamed_us[list(workers)].sum()) / total if total > 0 else None

    def waiting_for(self, workers: Sequence[int]) -> float:
        """Share of all waiting that is laid at these workers (indices), 0-1."""
        waited = float(self.waited_us.sum())
        return float(self.blamed_us[list(workers)].sum()) / waited if waited > 0 else 0.0


def read_arrivals(fleet: Fleet) -> Arrivals:
    """Book all waiting of a window.

    In all-reduce, all-gather, reduce-scatter, all-to-all and barrier: wait = duration - shortest duration in the group.
    A receive waits for its sender alone. In broadcast, scatter, reduce and gather only whom all others wait for is
    judged. Only the part on the waiter's critical path counts. Executions pair by the group's
    own sequence numbers, or by their order where every member has equally many; unpaired, nobody is blamed. Nor is
    anybody where members are missing, but for recorded traces whose ends confirm the pairing: there the late among
    those present are, and what they are blamed for is a lower bound.

    Blame is passed on to where delays began (`localize.ledger`), as far as the records tell when executions ended.
    """
    records: dict[tuple[str, str], dict[int, CollectiveRecord]] = defaultdict(dict)
    for worker, pattern in enumerate(fleet.patterns):
        for record in pattern.collectives:
            records[record.group, record.kind][worker] = record
    found = _book(fleet, records, shifts=False)
    if _CIRCLE not in found.notes or not any(kind == "recv" for _, kind in records):
        return found
    shifted = _book(fleet, records, shifts=True)
    return found if shifted.replay is None else shifted


def _book(fleet: Fleet, records: Records, shifts: bool) -> Arrivals:
    """Book all waiting; with `shifts`, receives may pair with the sends of the iteration before or after."""
    ledger = Ledger(fleet)
    groups = {group.name: group.ranks for pattern in fleet.patterns for group in pattern.process_groups}
    paired: list[Paired | None] = []
    for (group, kind), owners in sorted(records.items()):
        members = groups.get(group, ())
        if kind in _ROOTED and len(members) > 1:
            book_rooted(ledger, fleet, (group, kind), members, owners)
        elif kind in SYNCHRONIZING and len(members) > 1:
            paired.append(pair_synchronizing(ledger, fleet, (group, kind), members, owners))
        elif kind in SYNCHRONIZING and fleet.is_recorded and len(owners) > 1 and all(r.end_us for r in owners.values()):
            paired.append(pair_unnamed(ledger, fleet, (group, kind), owners))
        elif kind in SYNCHRONIZING:
            which = f"process group {group!r}" if group else "a process group without a name"
            ledger.notes.append(f"members of {which} are unknown: nobody is blamed for its {kind}")
    book_together(ledger, fleet, [one for one in paired if one is not None])
    book_receives(ledger, fleet, records, shifts)
    meetings = ledger.settle()
    untold = _waits_for_untold(ledger, fleet, records) or _goes_on_beside_work(fleet, records)
    replay, why = (None, (untold,)) if untold else _replay(ledger, meetings, fleet.roles)
    return Arrivals(
        waited_us=ledger.waited,
        blamed_us=ledger.blamed,
        direct=ledger.direct_waits(),
        withheld_us=ledger.withheld,
        executions=ledger.executions,
        transfer_us=ledger.transfer_us,
        matched=tuple(ledger.matched),
        replay=replay,
        contradicted=ledger.contradicted,
        notes=(*ledger.notes, *why),
    )


def _waits_for_untold(ledger: Ledger, fleet: Fleet, records: Records) -> str:
    """Tell why a window with much waiting of unknown cause cannot be replayed, "" if it can.

    In a replay nothing makes such waiting shorter, so the worker that is waited for would seem to cost nothing. A
    single root that waits is enough, for all may wait for it in turn. Of receives that name no sender recorded traces
    claim no more than what their replay shows.
    """
    receives, rooted_W = 0.0, -ledger.told_W
    for (_, kind), owners in records.items():
        for worker, record in owners.items():
            if kind in _ROOTED:
                rooted_W[worker] += float(decode_series(record.critical_us, np.float32).sum())
            elif kind == "recv" and not fleet.is_recorded:
                critical_us = decode_series(record.critical_us, np.float32)
                is_untold = decode_series(record.peers, np.int32) < 0 if record.peers else slice(None)
                receives += float(critical_us[is_untold].sum())
    time_W = np.asarray([pattern.duration_s * 1e6 for pattern in fleet.patterns])
    if receives > _MUCH_UNTOLD * float(fleet.iteration_us.sum()):
        return _UNTOLD
    if (rooted_W > _MUCH_UNTOLD * time_W).any():
        return _UNJUDGED
    return ""


def _goes_on_beside_work(fleet: Fleet, records: Records) -> str:
    """Tell why a window cannot be replayed whose senders go on working while they send, "" if it can.

    Online only; under NCCL sends hold a stream, which is all that a trace of a device is about.
    """
    if fleet.is_recorded or fleet.has_accelerator:
        return ""
    sends = [record for (_, kind), owners in records.items() if kind == "send" for record in owners.values()]
    lasting, critical = (
        sum(float(decode_series(getattr(record, name), np.float32).sum()) for record in sends)
        for name in ("duration_us", "critical_us")
    )
    is_much = lasting > _MUCH_UNTOLD * float(fleet.iteration_us.sum())
    return _ASYNCHRONOUS if is_much and lasting > _BESIDE_WORK * critical else ""


def _replay(
    ledger: Ledger, meetings: Meetings | None, roles_W: NDArray[np.intp]
) -> tuple[Replay | None, tuple[str, ...]]:
    """The window as it can be run again, or why it cannot; no word where the records do not tell ends at all.

    Senders that stand still are first taken to wait for their receivers, and waiting in communication that did not pair
    for waiting; then for time of their own if the window does not come out like that.
    """
    if meetings is None:
        return None, ()
    least, why = 1.0, ""
    readings, captured = [meetings], ledger.edge_WJ.shape[1] - 1
    if (meetings.waits & meetings.leads).any():
        readings.append(msgspec.structs.replace(meetings, waits=meetings.waits & ~meetings.leads))
    for reading, wait_WI in product(readings, (ledger.wait_WI, None)):
        graph = build_graph(reading, ledger.edge_WJ, ledger.whole_from, wait_WI)
        if graph is None:
            return None, ()
        if graph.iterations < min(_FEWEST_REPLAYED, captured):
            return None, (_TOO_FEW,)
        replay = prepare_replay(graph, roles_W)
        if replay is None:  # they wait for each other in a circle, which other readings may not
            why = _CIRCLE
            continue
        if replay.error <= TOLERANCE:
            few = f"gains come from a replay of the last {graph.iterations} of {captured} iterations"
            return replay, () if graph.iterations == captured else (few,)
        least = min(least, replay.error)
    if least < 1.0 or not why:
        why = f"a replay of the window misses its duration by {percent(least)}: gains are estimated from busy times"
    return None, (why,)
