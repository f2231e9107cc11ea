"""Executions on threads and streams, and how they are put in order: what strands are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import FunctionKey, FunctionKind, Phase, ThreadRole
from eroica.summarize.activity import Outline
from eroica.summarize.call_trees import CallTrees
from eroica.summarize.collectives import Execution
from eroica.summarize.functions import Functions
from eroica.summarize.phases import split_frame
from eroica.summarize.sampled import OtherThread, ThreadSamples
from eroica.summarize.sweep import Layer, Numbers, Times, nest
from eroica.trace.table import EventTable

#: Threads of the engine, process groups, streams and loader processes that get a strand each, the busiest ones.
MOST_OF_A_KIND = 8
#: A frame of a library hands all its time on if one call below it lasts this share of it.
_HANDED_ON = 0.97
_LIBRARY = ("torch/", "multiprocessing/", "concurrent/", "threading.py", "runpy.py", "contextlib.py")


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
