"""Where iterations begin in a trace that nobody has marked."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from eroica.summarize.sweep import Times
from eroica.trace.table import Category, EventTable

_STEP = re.compile(r"^ProfilerStep#(\d{1,9})$")


@dataclass(frozen=True, eq=False)
class Iterations:
    """The iterations of a trace.

    Attributes:
        edges_ns: Boundaries, wall clock, rising. int64 [I + 1], I >= 1.
        first: Number of the first one: the profiler's own where it has one, else 0.
        found_by: "profiler steps", "optimizer steps", "loader", "repetition" or "span".
        steps: First and last number of the profiler's steps, (-1, -1) without.
        training_thread: Kernel thread id of the thread that trains.
        notes: What was left out, and what could not be told.
    """

    edges_ns: Times
    first: int
    found_by: str
    steps: tuple[int, int]
    training_thread: int
    notes: tuple[str, ...] = ()


def find_iterations(events: EventTable) -> Iterations:
    """Find the training thread and its iterations.

    Args:
        events: At least one.
    """
    numbers = {at: int(found[1]) for at, name in enumerate(events.strings) if (found := _STEP.match(name))}
    host = (events.category == Category.ANNOTATION) | (events.category == Category.OPERATOR)
    rows = np.flatnonzero(events.names_where([at in numbers for at in range(len(events.strings))]) & host)
    if len(rows):
        first = numbers[int(events.name[rows[0]])]
        edges = np.append(events.start_ns[rows], events.end_ns[rows[-1]])
        last = numbers[int(events.name[rows[-1]])]
        return Iterations(edges, first, "profiler steps", (first, last), int(events.thread[rows[0]]))
    edges = np.array([events.start_ns.min(), events.end_ns.max()], dtype=np.int64)
    return Iterations(edges, 0, "span", (-1, -1), int(events.thread[0]))
