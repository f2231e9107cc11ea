"""Replays the graph: computes when each rank reaches and leaves each call.

A call that all members have launched ends together after its cost; calls of one group one after the other; messages
are rendezvous, as gloo's and NCCL's large ones are. Blocks of alike ranks move as arrays. Time that never comes is
infinite: a hang is a segment without end, and every rank that needs it waits for ever.

Shapes: W ranks of the job, n ranks of a block, M events of a class, S operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from prismllm.costs import Costs, operation_seconds
from prismllm.errors import DeadlockError
from prismllm.graph import Block, Graph, RankClass
from prismllm.whatif import Busy, Change, Compute, Cut, Hang, Network, Slow, check_changes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass
class Track:
    """The times of the ranks of one block in one iteration.

    Attributes:
        begin_s: When the iteration began; float64 [n].
        at_s: When each event was reached, own work before it done; float64 [M, n].
        left_s: When it was over; float64 [M, n].
        end_s: When the iteration ended; float64 [n].
        launches: Event at which each call is launched.
    """

    block: Block
    begin_s: Floats
    at_s: Floats
    left_s: Floats
    end_s: Floats
    launches: list[int]


@dataclass
class Iteration:
    """One replayed iteration.

    Attributes:
        ready_s: When the last member had launched; float64 [S].
        done_s: When the call ended; inf for what never does; float64 [S].
        cost_s: Seconds from there to the end; float64 [S].
    """

    tracks: list[Track]
    ready_s: Floats
    done_s: Floats
    cost_s: Floats

    def end_s(self, world: int) -> Floats:
        """Return when each rank ended the iteration; float64 [W]."""
        ends = np.zeros(world)
        for track in self.tracks:
            ends[track.block.ranks] = track.end_s
        return ends


def replay(
    graph: Graph,
    costs: Costs,
    changes: Sequence[Change] = (),
    iterations: int = 3,
    *,
    noise: int | None = None,
    keep: int = 1,
) -> tuple[list[Iteration], list[float]]:
    """Replay iterations of the graph with times drawn from those measured by the seed `noise`; None for medians.

    Returns:
        The last `keep` iterations, and the seconds of each from the last rank's end of one to that of the next.

    Raises:
        DeadlockError: Ranks wait for each other in a cycle; ranks and calls are named.
        InputError: A change is about something that does not exist.
    """
    job = graph.job
    check_changes(changes, job)
    cost_s = costs_of_operations(graph, costs, changes)
    segments = [samples_of(rank_class) for rank_class in job.classes]
    random = None if noise is None else np.random.default_rng(noise)
    now_W = np.zeros(job.world)
    queue_free = np.full(graph.queues, -np.inf)
    kept: list[Iteration] = []
    seconds: list[float] = []
    before = 0.0
    is_uneven = any(rank_class.sizes for rank_class in job.classes)
    for number in range(iterations):
        drawn = [draw(job.classes[block.rank_class], len(block.ranks), random) for block in graph.blocks]
        own = [own_seconds(graph, block, segments[block.rank_class], changes, number, which)
               for block, which in zip(graph.blocks, drawn, strict=True)]  # fmt: skip
        if is_uneven and random is not None:
            cost_s = costs_of_operations(graph, costs, changes, drawn)
        iteration = _run(graph, own, cost_s, now_W, queue_free)
        now_W = iteration.end_s(job.world)
        free_queues(graph, iteration.done_s, queue_free)
        seconds.append(float(now_W.max() - before) if np.isfinite(before) else float("inf"))
        before = float(now_W.max())
        if number >= iterations - keep:
            kept.append(iteration)
    return kept, seconds


def samples_of(rank_class: RankClass) -> Floats:
    """Return the segments of timed iterations in seconds; float64 [samples, M + 1]."""
    return np.array(rank_class.samples_ns or [rank_class.step.segments_ns], float) / 1e9


def draw(rank_class: RankClass, ranks: int, random: np.random.Generator | None) -> Ints | None:
    """Draw a timed iteration for each segment of each rank, or for each rank where times follow uneven sizes.

    Returns:
        Index of the sample; int64 [M + 1, ranks]; None without a generator, for medians.
    """
    if random is None:
        return None
    count, segments = max(1, len(rank_class.samples_ns)), len(rank_class.step.segments_ns)
    which: Ints = random.integers(count, size=(1 if rank_class.sizes else segments, ranks))
    return np.broadcast_to(which, (segments, ranks))


def bytes_of_operations(graph: Graph, drawn: Sequence[Ints | None]) -> Ints:
    """Return each operation's payload; of an uneven call the largest of its members', drawn or median; int64 [S]."""
    nbytes: Ints = np.array([nbytes for _, nbytes, _ in graph.calls], np.int64)[graph.call_of]
    seen: list[tuple[Ints, Ints]] = []
    for block, which in zip(graph.blocks, drawn, strict=True):
        rank_class = graph.job.classes[block.rank_class]
        if not rank_class.sizes:
            continue
        uneven = [at for at, call in enumerate(rank_class.step.calls) if call.is_uneven]
        sizes = np.array(rank_class.sizes, np.int64)
        for column, at in enumerate(uneven):
            mine = np.median(sizes[:, [column]], axis=0).astype(np.int64) if which is None else sizes[which[0], column]
            seen.append((block.operations[at], mine))
    for operations, _ in seen:
        nbytes[operations] = 0
    for operations, mine in seen:
        np.maximum.at(nbytes, operations, mine)
    return nbytes


def costs_of_operations(
    graph: Graph, costs: Costs, changes: Sequence[Change], drawn: Sequence[Ints | None] | None = None
) -> Floats:
    """Return each operation's seconds under these changes, with the samples that were drawn, if any; float64 [S]."""
    local = graph.job.local_world
    count = len(graph.members)
    is_remote = np.zeros(count, bool)
    bandwidth = np.ones(count)
    sizes = np.full(count, 2, np.int64)
    family_of = np.array([family for _, _, family in graph.calls], np.int64)[graph.call_of]
    cuts = [change for change in changes if isinstance(change, Cut)]
    for family, ranks_GM in enumerate(graph.layout.families):
        mine = np.flatnonzero(family_of == family)
        if not len(mine):
            continue
        hosts_GM = ranks_GM // local
        spans = hosts_GM.min(axis=1) != hosts_GM.max(axis=1)
        rows = graph.row_of[mine]
        sizes[mine] = ranks_GM.shape[1]
        is_remote[mine] = spans[rows]
        for cut in cuts:
            has = (hosts_GM == cut.host).any(axis=1) & spans
            if cut.other >= 0:
                has &= (hosts_GM == cut.other).any(axis=1)
            bandwidth[mine[has[rows]]] *= cut.by
    messages = np.flatnonzero(family_of < 0)
    ends = graph.pair[messages] // local
    is_remote[messages] = ends[:, 0] != ends[:, 1]
    for cut in cuts:
        has = (ends == cut.host).any(axis=1) & is_remote[messages]
        if cut.other >= 0:
            has &= (ends == cut.other).any(axis=1)
        bandwidth[messages[has]] *= cut.by
    ops = [op for op, _, _ in graph.calls]
    nbytes = bytes_of_operations(graph, drawn or [None] * len(graph.blocks))
    seconds = operation_seconds(costs, ops, graph.call_of, nbytes, sizes, is_remote, bandwidth)
    for change in changes:
        if isinstance(change, Network):
            seconds = seconds / change.by
    return seconds


def own_seconds(
    graph: Graph,
    block: Block,
    samples_s: Floats,
    changes: Sequence[Change],
    number: int,
    which: Ints | None,
) -> Floats:
    """Return the own work of each rank in each segment of an iteration; float64 [M + 1, n], or [M + 1, 1] if alike."""
    events = samples_s.shape[1]
    n = len(block.ranks)
    own = np.median(samples_s, axis=0)[:, None] if which is None else samples_s[which, np.arange(events)[:, None]]
    for change in changes:
        if isinstance(change, Compute):
            own = own * change.by
        if isinstance(change, Busy):
            busy_ns = graph.job.classes[block.rank_class].step.busy_ns
            own = own + (change.by - 1) * (np.minimum(own, np.array(busy_ns)[:, None] / 1e9) if busy_ns else own)
        if isinstance(change, Slow | Hang) and change.rank in block.ranks:
            at = np.flatnonzero(block.ranks == change.rank)
            own = np.broadcast_to(own, (events, n)).copy()
            if isinstance(change, Hang) and number == change.since:
                own[graph.job.classes[block.rank_class].step.events.index(change.op), at] = np.inf
            elif isinstance(change, Slow) and number >= change.since:
                own[:, at] *= change.by
    return own


def free_queues(graph: Graph, done_s: Floats, queue_free: Floats) -> None:
    """After an iteration, note when each group's last call ended; in place."""
    has = graph.last >= 0
    np.maximum.at(queue_free, graph.last[has], done_s[has])


class Operations:
    """Calls under way in one iteration.

    Args:
        cost_s: Of each operation; float64 [S].
        queue_free: When each group's queue was free at last; float64 [queues].
    """

    def __init__(self, graph: Graph, cost_s: Floats, queue_free: Floats) -> None:
        self._members, self._before, self._last = graph.members, graph.before, graph.last
        self._cost_s, self._queue_free = cost_s, queue_free
        count = len(graph.members)
        self.ready_s = np.full(count, -np.inf)
        self.done_s = np.full(count, np.nan)
        self._come = np.zeros(count, np.int64)

    def launch(self, operations: NDArray[np.int64], now_s: Floats) -> None:
        """Ranks come to operations; int64 [n], float64 [n]."""
        np.maximum.at(self.ready_s, operations, now_s)
        np.add.at(self._come, operations, 1)

    def lacking(self, operations: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of these operations still lack a member; bool [n]."""
        return self._come[operations] < self._members[operations]

    def settle(self, operations: NDArray[np.int64]) -> bool:
        """Compute when these operations end; return True if all members have come to them and to those before them."""
        chain = [np.unique(operations[np.isnan(self.done_s[operations])])]
        while len(chain[-1]):
            here = chain[-1]
            if np.any(self._come[here] < self._members[here]):
                return False
            before = self._before[here]
            before = before[before >= 0]
            chain.append(np.unique(before[np.isnan(self.done_s[before])]))
        for here in reversed(chain):
            before = self._before[here]
            first = np.where(self._last[here] >= 0, self._queue_free[self._last[here]], -np.inf)
            free = np.where(before >= 0, self.done_s[before], first)
            self.done_s[here] = np.maximum(self.ready_s[here], free) + self._cost_s[here]
        return True


class Walker:
    """A block on its way through an iteration.

    Args:
        own_s: Own work in each segment; float64 [M + 1, n or 1].
        begin_s: When each rank begins; float64 [n].
    """

    def __init__(self, graph: Graph, block: Block, own_s: Floats, begin_s: Floats) -> None:
        self.block = block
        self.events = graph.job.classes[block.rank_class].step.events
        count = len(self.events)
        self._own_s = own_s
        self.next = 0
        self.is_inside = False
        self.now_s = begin_s.copy()
        shape = count, len(block.ranks)
        launches = [at for at, event in enumerate(self.events) if event >= 0]
        self.track = Track(block, begin_s, np.empty(shape), np.empty(shape), begin_s, launches)

    def advance(self, operations: Operations) -> bool:
        """Advance until a call is not over; return True if the block has moved."""
        begun = self.next
        while self.next < len(self.events):
            event = self.events[self.next]
            if not self.is_inside:
                self.now_s = self.now_s + self._own_s[self.next]
                self.track.at_s[self.next] = self.now_s
                self.is_inside = True
            if event >= 0:
                operations.launch(self.block.operations[event], self.now_s)
            else:
                mine = self.block.operations[-1 - event]
                if not operations.settle(mine):
                    return self.next > begun
                self.now_s = np.maximum(self.now_s, operations.done_s[mine])
            self.track.left_s[self.next] = self.now_s
            self.is_inside = False
            self.next += 1
        if self.next == len(self.events):
            self.track.end_s = self.now_s + self._own_s[self.next]
            self.next += 1
        return self.next > begun

    @property
    def is_through(self) -> bool:
        """True if the iteration is over for this block."""
        return self.next > len(self.events)


def _run(graph: Graph, own: list[Floats], cost_s: Floats, now_W: Floats, queue_free: Floats) -> Iteration:
    operations = Operations(graph, cost_s, queue_free)
    walkers = [Walker(graph, block, own_s, now_W[block.ranks]) for block, own_s in zip(graph.blocks, own, strict=True)]
    waiting = walkers
    while waiting:
        moved = [walker.advance(operations) for walker in waiting]
        waiting = [walker for walker in waiting if not walker.is_through]
        if not any(moved):
            apart = _apart(graph, own)
            if apart is None:
                raise DeadlockError(_cycle(graph, waiting, operations))
            return _run(*apart, cost_s, now_W, queue_free)
    everything = np.arange(len(cost_s))
    operations.settle(everything)
    return Iteration([walker.track for walker in walkers], operations.ready_s, operations.done_s, cost_s)


def _apart(graph: Graph, own: list[Floats]) -> tuple[Graph, list[Floats]] | None:
    """Make every rank a block of its own; return None if it is so already."""
    if all(len(block.ranks) == 1 for block in graph.blocks):
        return None
    blocks, times = [], []
    for block, own_s in zip(graph.blocks, own, strict=True):
        for at in range(len(block.ranks)):
            blocks.append(
                Block(block.rank_class, block.ranks[at : at + 1], [one[at : at + 1] for one in block.operations])
            )
            times.append(own_s if own_s.shape[1] == 1 else own_s[:, at : at + 1])
    return replace(graph, blocks=blocks), times


def _cycle(graph: Graph, waiting: list[Walker], operations: Operations) -> str:
    """Describe which rank waits for which, until a rank comes again."""
    at: dict[int, Walker] = {int(walker.block.ranks[0]): walker for walker in waiting}
    rank = next(iter(at))
    chain: list[int] = []
    words: list[str] = []
    while rank not in chain:
        chain.append(rank)
        walker = at[rank]
        place = -1 - walker.events[walker.next]
        call = graph.job.classes[walker.block.rank_class].step.calls[place]
        operation = int(walker.block.operations[place][0])
        if not operations.lacking(np.array([operation]))[0]:  # what its group does before is lacking
            operation = int(graph.before[operation])
        missing = next((other for other, one in at.items() if other != rank and _will_come(one, operation)), None)
        words.append(f"rank {rank} waits in {call.op} at {call.site} for rank {missing}")
        if missing is None:
            break
        rank = missing
    return "nobody can go on: " + "; ".join(words) + ". Change the order of these calls, or make them asynchronous."


def _will_come(walker: Walker, operation: int) -> bool:
    later = walker.events[walker.next :]
    return any(event >= 0 and int(walker.block.operations[event][0]) == operation for event in later)
