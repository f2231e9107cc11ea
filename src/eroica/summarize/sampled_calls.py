"""Samples of one thread as calls that last: what a flame chart shows.

A sample stands for the time up to half the way to its neighbors. A call lasts as long as consecutive samples have it at
the same place of their stacks; where something that was measured exactly lies in between, it is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from eroica.summarize.sampled import ThreadSamples
from eroica.summarize.sweep import Layer, Numbers, Times, distinct, paint, split_at

#: A sample stands for at most so many sampling periods to each side, as in `sampled.sample_runs`.
_REACH_PERIODS = 10
#: Between things that were measured, samples say nothing of stretches far shorter than their period.
_SHORTEST_PERIODS = 0.02
#: Deeper stacks keep their innermost frame and so many outer ones.
_MOST_LEVELS = 40
_BUSY = np.int32(2**31 - 1)


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
