"""Lay out the work of each thread and stream as one strand, for timelines and other viewers of traces.

A thread's operators, calls and notes nest as they did. Sampled Python fills the moments in which no operator was open.
Calls last as long as consecutive samples show them. Frames that all samples share are left out, and so are frames of
torch and the standard library that only call one other. Nothing is concluded from strands.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import FunctionKey, FunctionKind, Phase, ThreadRole
from eroica.summarize.activity import GARBAGE_COLLECTION, is_allocation, is_transport
from eroica.summarize.calls import call_frame
from eroica.summarize.collectives import Execution
from eroica.summarize.host import clean_note
from eroica.summarize.phases import LOADER_PREFIX, PHASES, phases_at, split_frame, stack_phase
from eroica.summarize.sampled import OtherThread, ThreadSamples
from eroica.summarize.staging import Staged
from eroica.summarize.sweep import (
    Functions,
    Layer,
    Numbers,
    Times,
    distinct,
    distinct_codes,
    first_come,
    inside,
    nest,
    paint,
    rows_by_thread,
    split_at,
    unite,
)
from eroica.trace.table import Category, EventTable

_STEP = "ProfilerStep"
_BACKWARD = PHASES.index("backward")
_SECOND_DEVICE = 40
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
    """Yield the strands with most time, in the order given, numbered where they have one name."""
    time = np.array([int((one.spans.end - one.spans.start).sum()) for one in strands])
    kept = [strands[at] for at in sorted(np.argsort(-time, kind="stable")[:MOST_OF_A_KIND].tolist())]
    is_one_name = len(kept) > 1 and len({one.name for one in kept}) == 1
    for number, one in enumerate(kept, start=1):
        yield replace(one, name=f"{one.name} {number}") if is_one_name else one


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


def _runs(cells: Layer, node_K: NDArray[np.int64], joins_K: NDArray[np.bool_], functions: NDArray[np.int32]) -> Spans:
    """Calls of one level: consecutive cells with the same node."""
    begins = ~joins_K
    begins[1:] |= node_K[1:] != node_K[:-1]
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(node_K)) - 1
    keep = node_K[first] >= 0
    return Spans(cells.start[first[keep]], cells.end[last[keep]], functions[node_K[first[keep]]])


def training_spans(staged: Staged, rows: NDArray[np.int64], span: tuple[int, int], names: Names) -> Spans:
    """Spans of the training thread: operators, notes, calls, the collector's runs, and Python between them."""
    events, outline = staged.scene.events, staged.scene.outline
    mine = rows[events.thread[rows] == outline.training_thread]
    mine = mine[_is_host(events, mine, staged)]
    phase = phases_at(events.start_ns[mine], outline.parts)
    own = _of_rows(staged, mine, phase, span, names)
    number = names.number("gc", GARBAGE_COLLECTION.name, "other")
    begin, end = unite(*staged.scene.collections)
    collected = cut(Spans(begin, end, np.full(len(begin), number, np.int32)), span)
    parts = [own, collected]
    if staged.python.training is not None:
        noted = events.category[mine] == Category.ANNOTATION
        work = mine[~noted]
        busy = unite(
            np.concatenate((events.start_ns[work], collected.start)),
            np.concatenate((events.end_ns[work], collected.end)),
        )
        borders = np.concatenate((events.start_ns[mine[noted]], events.end_ns[mine[noted]]))
        sampled = _sampled(staged, staged.python.training, (busy, borders), span, names)
        parts.append(_without_callers(staged, sampled, names))
    return nested(join(parts), names)


def autograd_strands(staged: Staged, rows: NDArray[np.int64], span: tuple[int, int], names: Names) -> Iterator[Strand]:
    """One strand a thread of the engine, the busiest ones."""
    events = staged.scene.events
    mine = rows[np.isin(events.thread[rows], staged.scene.outline.autograd_threads)]
    mine = mine[_is_host(events, mine, staged)]
    found = []
    for _, own in rows_by_thread(events, mine):
        phase = np.full(len(own), _BACKWARD, dtype=np.int8)
        spans = nested(_of_rows(staged, own, phase, span, names, "autograd"), names)
        found.append(Strand("autograd thread", "autograd", spans))
    yield from busiest(found)


def loader_strands(staged: Staged, span: tuple[int, int], names: Names) -> Iterator[Strand]:
    """Main threads of the loader's processes, in order of their ids."""
    nothing = np.empty(0, dtype=np.int64)
    children = sorted((one for one in staged.python.threads if one.is_loader), key=lambda one: one.process_id)
    main: dict[int, OtherThread] = {}
    for one in children:
        best = main.get(one.process_id)
        if best is None or len(one.samples.time_ns) > len(best.samples.time_ns):
            main[one.process_id] = one
    found = []
    for one in main.values():
        spans = _sampled(staged, one.samples, ((nothing, nothing), nothing), span, names, "loader")
        found.append(Strand("loader process", "loader", nested(spans, names)))
    yield from busiest(found)


def _is_host(events: EventTable, rows: NDArray[np.int64], staged: Staged) -> NDArray[np.bool_]:
    wanted = [Category.OPERATOR, Category.ANNOTATION]
    wanted += [Category.RUNTIME] if staged.scene.outline.has_accelerator else []
    wanted += [Category.PYTHON] if staged.python.training is None else []
    return np.isin(events.category[rows], [int(one) for one in wanted])


def _of_rows(
    staged: Staged,
    rows: NDArray[np.int64],
    phase: NDArray[np.int8],
    span: tuple[int, int],
    names: Names,
    thread: ThreadRole = "training",
) -> Spans:
    """Events as spans under their names; what only wraps the whole span is left out."""
    events = staged.scene.events
    category = events.category[rows].astype(np.int64)
    code = (events.name[rows].astype(np.int64) * len(Category) + category) * len(PHASES) + phase
    codes, inverse = distinct_codes(code)
    allocating = is_allocation(events)
    memory = set(np.unique(events.name[allocating]).tolist())
    numbers = []
    for one in codes.tolist():
        rest, at = divmod(one, len(PHASES))
        name, kind = divmod(rest, len(Category))
        numbers.append(_number(staged, name, Category(kind), PHASES[at], name in memory, names, thread))
    function = np.array(numbers, dtype=np.int32)[inverse] if numbers else np.empty(0, np.int32)
    wraps = (category == Category.PYTHON) | (function < 0)
    wraps &= (events.start_ns[rows] <= span[0]) & (events.end_ns[rows] >= span[1])
    keep = ~wraps & (function >= 0)
    return cut(Spans(events.start_ns[rows], events.end_ns[rows], function).chosen(keep), span)


def _number(
    staged: Staged, name: int, category: Category, phase: Phase, is_memory: bool, names: Names, thread: ThreadRole
) -> int:
    """The function that an event of this name is; -1 for the profiler's own steps."""
    text = staged.scene.events.strings[name]
    if category == Category.PYTHON:
        return names.frame(call_frame(text) or text, phase, thread)
    if category == Category.ANNOTATION:
        if text.startswith(_STEP):
            return -1
        if text.startswith(LOADER_PREFIX):
            return names.number("python", text[len(LOADER_PREFIX) :], "input", thread)
        return names.number("other", clean_note(text), phase, thread)
    if category == Category.RUNTIME:
        return names.number("memory" if is_memory else "other", text, phase, thread)
    only_launches = staged.scene.outline.has_accelerator or is_transport(text)
    return names.number("other" if only_launches else "compute", text, phase, thread)


# --- sampled Python ---


def _sampled(
    staged: Staged,
    samples: ThreadSamples,
    around: tuple[tuple[Times, Times], Times],
    span: tuple[int, int],
    names: Names,
    thread: ThreadRole = "training",
) -> Spans:
    """Calls that samples of one thread show; outer calls before those that they made.

    Args:
        staged: The window.
        samples: Of the thread, in order of time.
        around: What was measured exactly: when the thread did something else (disjoint, in order), and moments at
            which a call is cut in two.
        span: Start and end of what is wanted.
        names: Takes the functions found.
        thread: Which threads.
    """
    (busy, borders), rate_hz = around, staged.python.rate_hz
    shared = _shared([staged.scene.functions.keys[one].stack for one in np.unique(samples.function).tolist()])
    cells = _free(_cells(samples, span, rate_hz), busy, borders, span)
    cells = cells.where(cells.end - cells.start >= _SHORTEST_PERIODS * 1e9 / max(rate_hz, 1e-9))
    kinds, which = np.unique(cells.function, return_inverse=True)
    node_SL, functions = _levels([staged.scene.functions.keys[kind] for kind in kinds.tolist()], shared, names, thread)
    joins = np.append(False, (cells.start[1:] == cells.end[:-1]) & ~np.isin(cells.start[1:], borders))
    return join([_runs(cells, node_L[which], joins[: len(which)], functions) for node_L in node_SL.T])


def _levels(
    keys: Sequence[FunctionKey], shared: int, names: Names, thread: ThreadRole
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Nodes of the tree of calls by stack and level, -1 where a stack has ended; and the function of each node."""
    below = [_shortened(range(min(shared, len(key.stack) - 1), len(key.stack))) for key in keys]
    node_SL = np.full((len(keys), max(map(len, below), default=0)), -1, dtype=np.int64)
    nodes: dict[tuple[int, str], int] = {}
    functions: list[int] = []
    for row, (key, places) in enumerate(zip(keys, below, strict=True)):
        parent = -1
        for level, place in enumerate(places):
            found = nodes.setdefault((parent, key.stack[place]), len(functions))
            if found == len(functions):
                is_whole = place + 1 == len(key.stack) or thread == "loader"
                phase = key.phase if is_whole else stack_phase(key.stack[: place + 1])
                functions.append(names.frame(key.stack[place], phase, thread))
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


def _without_callers(staged: Staged, spans: Spans, names: Names) -> Spans:
    """Leave out callers of the loader, where the loader's note is around what they called."""
    keys = staged.scene.functions.keys
    assert staged.python.training is not None
    stacks = [
        keys[one].stack for one in np.unique(staged.python.training.function).tolist() if keys[one].phase == "input"
    ]
    callers = {
        names.frame(stack[at], stack_phase(stack[: at + 1]), "training")
        for stack in stacks
        for at in range(len(stack))
        if stack_phase(stack[: at + 1]) != "input"
    }
    noted = inside(spans.start, *staged.scene.outline.parts.input)
    return spans.chosen(~(noted & np.isin(spans.function, list(callers))))


def find_strands(staged: Staged, span: tuple[int, int]) -> Strands:
    """All strands of a worker.

    Args:
        staged: The window.
        span: Start and end of what is wanted; executions are cut there.
    """
    names = Names()
    rows = _touching(staged.scene.events, span)
    critical = Strand("critical path", "training", _critical(staged, span, names), is_flat=True)
    others = (
        Strand("training thread", "training", training_spans(staged, rows, span, names)),
        *autograd_strands(staged, rows, span, names),
        *_collectives(staged, span, names),
        *_streams(staged, rows, span, names),
        *loader_strands(staged, span, names),
    )
    kept = tuple(strand for strand in others if len(strand.spans) or strand is others[0])
    return Strands(names.keys, critical, kept)


def _touching(events: EventTable, span: tuple[int, int]) -> NDArray[np.int64]:
    """Rows of events that last, and reach into the span, in order of start."""
    begin, end = np.searchsorted(events.start_ns, span)
    rows = np.concatenate((np.flatnonzero(events.end_ns[:begin] > span[0]), np.arange(begin, end)))
    lasting: NDArray[np.int64] = rows[events.start_ns[rows] < events.end_ns[rows]]
    return lasting


def _critical(staged: Staged, span: tuple[int, int], names: Names) -> Spans:
    """Stretches of one function, joined where they follow each other."""
    layer = staged.critical.within(*span)
    layer = layer.where(layer.function >= 0)
    if not len(layer.start):
        return join(())
    kinds, inverse = distinct_codes(layer.function.astype(np.int64))
    keys = [staged.scene.functions.keys[kind] for kind in kinds.tolist()]
    numbers = [names.number(key.kind, key.name, key.phase, key.thread) for key in keys]
    function = np.array(numbers, dtype=np.int32)[inverse]
    begins = np.append(True, (function[1:] != function[:-1]) | (layer.start[1:] != layer.end[:-1]))
    return Spans(layer.start[begins], layer.end[np.append(begins[1:], True)], function[begins])


def _collectives(staged: Staged, span: tuple[int, int], names: Names) -> Iterator[Strand]:
    """One strand a process group; of executions under way at once the earlier one is shown."""
    groups: dict[str, list[Execution]] = defaultdict(list)
    for one in staged.scene.executions:
        if one.start_ns < span[1] and one.end_ns > span[0]:
            groups[one.group].append(one)
    found = []
    for group, members in groups.items():
        members.sort(key=lambda one: one.start_ns)
        start = np.array([max(one.start_ns, span[0]) for one in members], dtype=np.int64)
        end = np.array([min(one.end_ns, span[1]) for one in members], dtype=np.int64)
        number = [names.number("collective", one.name, "other", "collective") for one in members]
        low, high, which = first_come(start, end)
        spans = Spans(low, high, np.array(number, dtype=np.int32)[which])
        words = staged.scene.groups.get(group) or group
        name = f"collectives of {words}"[:80] if words and len(groups) > 1 else "collectives"
        found.append(Strand(name, "collective", spans, is_flat=True))
    yield from busiest(found)


def _streams(staged: Staged, rows: NDArray[np.int64], span: tuple[int, int], names: Names) -> Iterator[Strand]:
    """One strand a stream of the device, without collectives, which have their own."""
    events = staged.scene.events
    is_kernel = events.category[rows] == Category.KERNEL
    on_device = rows[is_kernel | (events.category[rows] == Category.MEMORY)]
    collective = events.communication()
    on_device = on_device[~collective[events.name[on_device]]] if len(on_device) else on_device
    found = []
    for stream, mine in rows_by_thread(events, on_device):
        start, end = np.maximum(events.start_ns[mine], span[0]), np.minimum(events.end_ns[mine], span[1])
        low, high, which = first_come(start, end)
        spans = Spans(low, high, _device_functions(events, mine[which], names))
        device, number = stream >> _SECOND_DEVICE, stream & ((1 << _SECOND_DEVICE) - 1)
        name = f"stream {number} of device {device + 1}" if device > 0 else f"stream {stream}"
        found.append(Strand(name, "device", spans, is_flat=True))
    yield from busiest(found)


def _device_functions(events: EventTable, rows: NDArray[np.int64], names: Names) -> Numbers:
    code = events.name[rows].astype(np.int64) * 2 + (events.category[rows] == Category.MEMORY)
    codes, inverse = distinct_codes(code)
    kinds: tuple[FunctionKind, FunctionKind] = ("compute", "memory")
    numbers = [names.number(kinds[one % 2], events.strings[one // 2], "other", "device") for one in codes.tolist()]
    return np.array(numbers, dtype=np.int32)[inverse] if numbers else np.empty(0, np.int32)
