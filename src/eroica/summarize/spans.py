"""Executions on threads and streams in order, and samples as calls that last: what strands are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import FunctionKey, FunctionKind, Phase, ThreadRole
from eroica.summarize.activity import Outline
from eroica.summarize.calls import CallTrees
from eroica.summarize.collectives import Execution
from eroica.summarize.phases import split_frame
from eroica.summarize.sampled import OtherThread, ThreadSamples
from eroica.summarize.sweep import Functions, Layer, Numbers, Times, distinct, nest, paint, split_at
from eroica.trace.table import EventTable

#: Threads of the engine, process groups, streams and loader processes that get a strand each, the busiest ones.
MOST_OF_A_KIND = 8
#: A frame of a library hands all its time on if one call below it lasts this share of it.
_HANDED_ON = 0.97
_LIBRARY = ("torch/", "multiprocessing/", "concurrent/", "threading.py", "runpy.py", "contextlib.py")
#: A sample stands for at most so many sampling periods to each side, as in `sampled.sample_runs`.
_REACH_PERIODS = 10
#: Between things that were measured, samples say nothing of stretches far shorter than their period.
_SHORTEST_PERIODS = 0.02
#: Deeper stacks keep their innermost frame and so many outer ones.
_MOST_LEVELS = 40
_BUSY = np.int32(2**31 - 1)


@dataclass(frozen=True, eq=False)
class Spans:
    """Executions with their functions. N of them.

    Attributes:
        start: int64 [N].
        end: After `start`. int64 [N].
        function: Number in the `Functions` given along. int32 [N].
    """

    start: Times
    end: Times
    function: Numbers

    def __len__(self) -> int:
        return len(self.start)

    def chosen(self, keep: NDArray[np.bool_] | NDArray[np.intp]) -> Spans:
        """Only some of them."""
        return Spans(self.start[keep], self.end[keep], self.function[keep])


@dataclass(frozen=True, eq=False)
class Strand:
    """One thread or stream.

    Attributes:
        name: For people.
        thread: Which threads.
        spans: In order of start, the longer first; they nest.
        is_flat: None lies in another.
    """

    name: str
    thread: ThreadRole
    spans: Spans
    is_flat: bool = False


@dataclass(frozen=True, eq=False)
class Strands:
    """All of one worker.

    Attributes:
        keys: Functions by number, without stacks.
        critical: The critical path, without what is idle.
        others: The training thread first, then by kind.
    """

    keys: Sequence[FunctionKey]
    critical: Strand
    others: tuple[Strand, ...]


@dataclass(frozen=True, eq=False)
class Staged:
    """Facts of a window that the stages of a summary have gathered; times are wall clock.

    Attributes:
        events: The trace.
        outline: Of it.
        executions: Collectives, in order of start.
        collections: Starts and ends of the collector's runs on the training thread.
        functions: Numbers used by `critical` and by samples.
        trees: Call stacks that have no names yet.
        critical: Critical path; function -1 is idle.
        training: Samples of the training thread, None if nothing was sampled.
        threads: Samples of other threads.
        rate_hz: Samples per second.
        groups: Process groups by name, in words.
        edges_ns: Boundaries of the iterations. int64 [I + 1].
    """

    events: EventTable
    outline: Outline
    executions: Sequence[Execution]
    collections: tuple[Times, Times]
    functions: Functions
    trees: CallTrees
    critical: Layer
    training: ThreadSamples | None
    threads: Sequence[OtherThread]
    rate_hz: float
    groups: Mapping[str, str]
    edges_ns: Times


class Names:
    """Numbers for the functions of strands, which have no stacks."""

    def __init__(self) -> None:
        self._functions = Functions()
        self._passing: set[int] = set()

    @property
    def keys(self) -> list[FunctionKey]:
        """Function keys by number."""
        return self._functions.keys

    def number(self, kind: FunctionKind, name: str, phase: Phase, thread: ThreadRole = "training") -> int:
        """The function's number."""
        return self._functions.number(FunctionKey(kind=kind, name=name[:200], phase=phase, thread=thread))

    def frame(self, frame: str, phase: Phase, thread: ThreadRole) -> int:
        """The number of a frame of Python; libraries' frames are remembered."""
        function, file = split_frame(frame)
        number = self.number("python", function, phase, thread)
        if file.startswith(_LIBRARY):
            self._passing.add(number)
        return number

    def is_library(self, function: Numbers) -> NDArray[np.bool_]:
        """Return which of these functions are frames of libraries."""
        passing = np.zeros(len(self.keys) + 1, dtype=np.bool_)
        passing[list(self._passing)] = True
        return passing[function]


def cut(spans: Spans, span: tuple[int, int]) -> Spans:
    """The part of them between start and end of `span`."""
    start, end = np.maximum(spans.start, span[0]), np.minimum(spans.end, span[1])
    return Spans(start, end, spans.function).chosen(start < end)


def join(parts: Sequence[Spans]) -> Spans:
    """All of them after each other."""
    return Spans(
        np.concatenate([np.empty(0, np.int64), *(part.start for part in parts)]),
        np.concatenate([np.empty(0, np.int64), *(part.end for part in parts)]),
        np.concatenate([np.empty(0, np.int32), *(part.function for part in parts)]),
    )


def nested(spans: Spans, names: Names) -> Spans:
    """Order spans and cut them where they cross, without libraries' frames that only pass on.

    Of equal spans the first is the outer one.
    """
    spans = spans.chosen(np.lexsort((-spans.end, spans.start)))
    if not len(spans):
        return spans
    found = nest(spans.start, spans.end)
    spans = Spans(spans.start, found.end_N, spans.function)
    length = spans.end - spans.start
    longest = np.zeros(len(spans) + 1, dtype=np.int64)
    np.maximum.at(longest, found.parent_N, length)
    passing = names.is_library(spans.function) & (longest[:-1] >= _HANDED_ON * length)
    return spans.chosen(~passing & (length > 0))


def busiest(strands: Sequence[Strand]) -> Iterator[Strand]:
    """Yield the strands with most time, in the order given."""
    time = np.array([int((one.spans.end - one.spans.start).sum()) for one in strands])
    for at in sorted(np.argsort(-time, kind="stable")[:MOST_OF_A_KIND].tolist()):
        yield strands[at]


def numbered(strands: Sequence[Strand]) -> Iterator[Strand]:
    """Under names that differ."""
    for number, one in enumerate(strands, start=1):
        name = f"{one.name} {number}" if len(strands) > 1 else one.name
        yield Strand(name, one.thread, one.spans, one.is_flat)


def sampled_calls(
    samples: ThreadSamples,
    stacks: Mapping[int, Sequence[str]],
    around: tuple[tuple[Times, Times], Times],
    span: tuple[int, int],
    rate_hz: float,
    number: Callable[[int, int], int],
) -> tuple[Times, Times, Numbers]:
    """Calls that the samples show.

    Args:
        samples: Of one thread, in order of time.
        stacks: Function number of a sample -> its frames, outermost first.
        around: What was measured exactly: when the thread did something else (disjoint, in order), and moments at
            which a call is cut in two.
        span: Start and end of what is wanted.
        rate_hz: Samples per second.
        number: Number of a call, from a function and how many of its frames lead to it.

    Returns:
        Starts and ends, int64, and functions, int32; outer calls before those that they made.
    """
    busy, borders = around
    cells = _free(_cells(samples, span, rate_hz), busy, borders, span)
    cells = cells.where(cells.end - cells.start >= _SHORTEST_PERIODS * 1e9 / max(rate_hz, 1e-9))
    if not len(cells.start):
        return cells.start, cells.end, cells.function
    kinds, which = np.unique(cells.function, return_inverse=True)
    node_SL, functions = _levels(kinds.tolist(), stacks, number)
    joins = np.append(False, (cells.start[1:] == cells.end[:-1]) & ~np.isin(cells.start[1:], borders))
    parts = [_runs(cells, node_L[which], joins, functions) for node_L in node_SL.T]
    start, end, function = (np.concatenate([part[at] for part in parts]) for at in range(3))
    return start, end, function.astype(np.int32)


def _cells(samples: ThreadSamples, span: tuple[int, int], rate_hz: float) -> Layer:
    """The time that each sample stands for, within the span."""
    time = samples.time_ns
    limit = round(_REACH_PERIODS * 1e9 / max(rate_hz, 1e-9))
    middle = time[:-1] + (time[1:] - time[:-1]) // 2
    low = np.maximum(np.concatenate((time[:1] - limit, middle)), time - limit)
    high = np.minimum(np.concatenate((middle, time[-1:] + limit)), time + limit)
    low, high = np.maximum(low, span[0]), np.minimum(high, span[1])
    keep = low < high
    nobody = np.full(int(keep.sum()), -1, dtype=np.int32)
    return Layer(low[keep], high[keep], samples.function[keep], nobody)


def _free(cells: Layer, busy: tuple[Times, Times], borders: Times, span: tuple[int, int]) -> Layer:
    """Cut cells to the time in which nothing else was measured, and at the borders."""
    other = np.full(len(busy[0]), _BUSY, dtype=np.int32)
    painted = paint([Layer(*busy, other, other), cells], np.array(span, dtype=np.int64))
    free = painted.where((painted.function >= 0) & (painted.function != _BUSY))
    return split_at(free, distinct(borders)) if len(borders) else free


def _levels(
    kinds: Sequence[int], stacks: Mapping[int, Sequence[str]], number: Callable[[int, int], int]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Nodes of the tree of calls by stack and level, -1 where a stack has ended; and the function of each node."""
    shared = _shared(list(stacks.values()))
    below = [_shortened(range(min(shared, len(stacks[kind]) - 1), len(stacks[kind]))) for kind in kinds]
    node_SL = np.full((len(kinds), max(map(len, below), default=0)), -1, dtype=np.int64)
    nodes: dict[tuple[int, str], int] = {}
    functions: list[int] = []
    for row, (kind, places) in enumerate(zip(kinds, below, strict=True)):
        parent = -1
        for level, place in enumerate(places):
            found = nodes.setdefault((parent, stacks[kind][place]), len(functions))
            if found == len(functions):
                functions.append(number(kind, place + 1))
            node_SL[row, level] = parent = found
    return node_SL, np.array(functions, dtype=np.int32)


def _shared(stacks: Sequence[Sequence[str]]) -> int:
    """Count the outermost frames that all stacks share; of a single stack all but the innermost."""
    shortest = min(map(len, stacks), default=0)
    first = stacks[0] if stacks else ()
    same = takewhile(lambda at: all(stack[at] == first[at] for stack in stacks), range(max(shortest - 1, 0)))
    return sum(1 for _ in same)


def _shortened(places: range) -> tuple[int, ...]:
    return (*places[: _MOST_LEVELS - 1], places[-1]) if len(places) > _MOST_LEVELS else tuple(places)


def _runs(
    cells: Layer, node_K: NDArray[np.int64], joins_K: NDArray[np.bool_], functions: NDArray[np.int32]
) -> tuple[Times, Times, Numbers]:
    """Calls of one level: consecutive cells with the same node."""
    begins = ~joins_K
    begins[1:] |= node_K[1:] != node_K[:-1]
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(node_K)) - 1
    keep = node_K[first] >= 0
    return cells.start[first[keep]], cells.end[last[keep]], functions[node_K[first[keep]]]
