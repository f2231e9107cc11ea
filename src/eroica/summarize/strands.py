"""Who ran what when, one strand a thread or device stream: what timelines and traces for other viewers are drawn from.

Nothing is concluded from strands. A thread's operators, calls and notes nest as they did. Sampled Python fills the
moments in which no operator was open: calls last as long as consecutive samples show them, frames that all samples of
the thread share are left out, and so are frames of torch and the standard library that only pass on to one other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import FunctionKey, FunctionKind, Phase, ThreadRole
from eroica.summarize.activity import GARBAGE_COLLECTION, Outline, is_allocation, is_transport
from eroica.summarize.call_trees import CallTrees
from eroica.summarize.calls import call_frame
from eroica.summarize.codes import distinct_codes, rows_by_thread
from eroica.summarize.collectives import Execution
from eroica.summarize.functions import UNNAMED, Functions
from eroica.summarize.host import clean_note
from eroica.summarize.marks import LOADER_PREFIX
from eroica.summarize.phases import PHASES, phases_at, split_frame, stack_phase
from eroica.summarize.sampled import OtherThread, ThreadSamples
from eroica.summarize.sampled_calls import sampled_calls
from eroica.summarize.sweep import Layer, Numbers, Times, first_come, inside, nest, unite
from eroica.trace.kineto import is_collective_kernel
from eroica.trace.table import Category, EventTable

#: Threads of the engine, process groups, streams and loader processes that get a strand each, the busiest ones.
_MOST_OF_A_KIND = 8
#: A frame of a library hands all its time on if one call below it lasts this share of it.
_HANDED_ON = 0.97
_LIBRARY = ("torch/", "multiprocessing/", "concurrent/", "threading.py", "runpy.py", "contextlib.py")
_STEP = "ProfilerStep"
_SECOND_DEVICE = 40
_BACKWARD = PHASES.index("backward")


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
    """What the stages of a summary know of a window; times are wall clock.

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
        """By number."""
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
        """Which of these are frames of libraries."""
        passing = np.zeros(len(self.keys) + 1, dtype=np.bool_)
        passing[list(self._passing)] = True
        return passing[function]


def find_strands(staged: Staged, span: tuple[int, int]) -> Strands:
    """All strands of a worker.

    Args:
        staged: The window.
        span: Start and end of what is wanted; executions are cut there.
    """
    names = Names()
    rows = _touching(staged.events, span)
    critical = Strand("critical path", "training", _critical(staged, span, names), is_flat=True)
    others = (
        Strand("training thread", "training", _training(staged, rows, span, names)),
        *_autograd(staged, rows, span, names),
        *_collectives(staged, span, names),
        *_streams(staged, rows, span, names),
        *_loaders(staged, span, names),
    )
    kept = tuple(strand for strand in others if len(strand.spans) or strand is others[0])
    return Strands(names.keys, critical, kept)


def _touching(events: EventTable, span: tuple[int, int]) -> NDArray[np.int64]:
    """Rows of events that last, and reach into the span, in order of start."""
    begin, end = np.searchsorted(events.start_ns, span)
    rows = np.concatenate((np.flatnonzero(events.end_ns[:begin] > span[0]), np.arange(begin, end)))
    lasting: NDArray[np.int64] = rows[events.start_ns[rows] < events.end_ns[rows]]
    return lasting


def _cut(spans: Spans, span: tuple[int, int]) -> Spans:
    start, end = np.maximum(spans.start, span[0]), np.minimum(spans.end, span[1])
    return Spans(start, end, spans.function).chosen(start < end)


def _joined(parts: Sequence[Spans]) -> Spans:
    return Spans(
        np.concatenate([np.empty(0, np.int64), *(part.start for part in parts)]),
        np.concatenate([np.empty(0, np.int64), *(part.end for part in parts)]),
        np.concatenate([np.empty(0, np.int32), *(part.function for part in parts)]),
    )


def _nested(spans: Spans, names: Names) -> Spans:
    """In order, cut where they cross, without libraries' frames that only pass on; of equal ones the first is outer."""
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


def _busiest(strands: Sequence[Strand]) -> Iterator[Strand]:
    """Those with most time, in the order given."""
    time = np.array([int((one.spans.end - one.spans.start).sum()) for one in strands])
    for at in sorted(np.argsort(-time, kind="stable")[:_MOST_OF_A_KIND].tolist()):
        yield strands[at]


# --- the critical path ---


def _critical(staged: Staged, span: tuple[int, int], names: Names) -> Spans:
    """Stretches of one function, joined where they follow each other."""
    layer = staged.critical.within(*span)
    layer = layer.where(layer.function >= 0)
    if not len(layer.start):
        return _joined(())
    kinds, inverse = distinct_codes(layer.function.astype(np.int64))
    keys = _named_keys(staged, kinds.tolist())
    numbers = [names.number(key.kind, key.name, key.phase, key.thread) for key in keys]
    function = np.array(numbers, dtype=np.int32)[inverse]
    begins = np.append(True, (function[1:] != function[:-1]) | (layer.start[1:] != layer.end[:-1]))
    return Spans(layer.start[begins], layer.end[np.append(begins[1:], True)], function[begins])


def _named_keys(staged: Staged, numbers: Sequence[int]) -> list[FunctionKey]:
    keys = {number: staged.functions.keys[number] for number in numbers}
    nameless = {number for number, key in keys.items() if key is UNNAMED}
    if nameless:
        for tree in staged.trees:
            keys |= tree.keys(nameless)
    return [keys[number] for number in numbers]


# --- threads of the host ---


def _training(staged: Staged, rows: NDArray[np.int64], span: tuple[int, int], names: Names) -> Spans:
    events, outline = staged.events, staged.outline
    mine = rows[events.thread[rows] == outline.training_thread]
    mine = mine[_is_host(events, mine, staged)]
    phase = phases_at(events.start_ns[mine], outline.parts)
    own = _of_rows(staged, mine, phase, span, names)
    number = names.number("gc", GARBAGE_COLLECTION.name, "other")
    begin, end = unite(*staged.collections)
    collected = _cut(Spans(begin, end, np.full(len(begin), number, np.int32)), span)
    parts = [own, collected]
    if staged.training is not None:
        noted = events.category[mine] == Category.ANNOTATION
        work = mine[~noted]
        busy = unite(
            np.concatenate((events.start_ns[work], collected.start)),
            np.concatenate((events.end_ns[work], collected.end)),
        )
        borders = np.concatenate((events.start_ns[mine[noted]], events.end_ns[mine[noted]]))
        sampled = _sampled(staged, staged.training, (busy, borders), span, names)
        parts.append(_without_callers(staged, sampled, names))
    return _nested(_joined(parts), names)


def _is_host(events: EventTable, rows: NDArray[np.int64], staged: Staged) -> NDArray[np.bool_]:
    wanted = [Category.OPERATOR, Category.ANNOTATION]
    wanted += [Category.RUNTIME] if staged.outline.has_accelerator else []
    wanted += [Category.PYTHON] if staged.training is None else []
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
    events = staged.events
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
    return _cut(Spans(events.start_ns[rows], events.end_ns[rows], function).chosen(keep), span)


def _number(
    staged: Staged, name: int, category: Category, phase: Phase, is_memory: bool, names: Names, thread: ThreadRole
) -> int:
    """The function that an event of this name is; -1 for the profiler's own steps."""
    text = staged.events.strings[name]
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
    only_launches = staged.outline.has_accelerator or is_transport(text)
    return names.number("other" if only_launches else "compute", text, phase, thread)


def _autograd(staged: Staged, rows: NDArray[np.int64], span: tuple[int, int], names: Names) -> Iterator[Strand]:
    events = staged.events
    mine = rows[np.isin(events.thread[rows], staged.outline.autograd_threads)]
    mine = mine[_is_host(events, mine, staged)]
    found = []
    for _, own in rows_by_thread(events, mine):
        phase = np.full(len(own), _BACKWARD, dtype=np.int8)
        spans = _nested(_of_rows(staged, own, phase, span, names, "autograd"), names)
        found.append(Strand("autograd thread", "autograd", spans))
    yield from _numbered(list(_busiest(found)))


def _numbered(strands: Sequence[Strand]) -> Iterator[Strand]:
    """Under names that differ."""
    for number, one in enumerate(strands, start=1):
        name = f"{one.name} {number}" if len(strands) > 1 else one.name
        yield Strand(name, one.thread, one.spans, one.is_flat)


# --- sampled Python ---


def _sampled(
    staged: Staged,
    samples: ThreadSamples,
    around: tuple[tuple[Times, Times], Times],
    span: tuple[int, int],
    names: Names,
    thread: ThreadRole = "training",
) -> Spans:
    """Calls that samples of one thread show, where it does nothing else."""
    keys = staged.functions.keys

    def number(function: int, frames: int) -> int:
        stack = keys[function].stack
        is_whole = frames == len(stack) or thread == "loader"
        return names.frame(stack[frames - 1], keys[function].phase if is_whole else stack_phase(stack[:frames]), thread)

    stacks = {one: keys[one].stack for one in np.unique(samples.function).tolist()}
    start, end, function = sampled_calls(samples, stacks, around, span, staged.rate_hz, number)
    return Spans(start, end, function)


def _without_callers(staged: Staged, spans: Spans, names: Names) -> Spans:
    """Without those who called the loader, where its note is around what they called."""
    keys = staged.functions.keys
    assert staged.training is not None
    stacks = [keys[one].stack for one in np.unique(staged.training.function).tolist() if keys[one].phase == "input"]
    callers = {
        names.frame(stack[at], stack_phase(stack[: at + 1]), "training")
        for stack in stacks
        for at in range(len(stack))
        if stack_phase(stack[: at + 1]) != "input"
    }
    noted = inside(spans.start, *staged.outline.parts.input)
    return spans.chosen(~(noted & np.isin(spans.function, list(callers))))


def _loaders(staged: Staged, span: tuple[int, int], names: Names) -> Iterator[Strand]:
    """Main threads of the loader's processes, in order of their ids."""
    nothing = np.empty(0, dtype=np.int64)
    children = sorted((one for one in staged.threads if one.is_loader), key=lambda one: one.process_id)
    main: dict[int, OtherThread] = {}
    for one in children:
        best = main.get(one.process_id)
        if best is None or len(one.samples.time_ns) > len(best.samples.time_ns):
            main[one.process_id] = one
    found = []
    for one in list(main.values())[:_MOST_OF_A_KIND]:
        spans = _sampled(staged, one.samples, ((nothing, nothing), nothing), span, names, "loader")
        found.append(Strand("loader process", "loader", _nested(spans, names)))
    yield from _numbered(found)


# --- collectives and streams ---


def _collectives(staged: Staged, span: tuple[int, int], names: Names) -> Iterator[Strand]:
    """One strand a process group; of executions under way at once the earlier one is shown."""
    groups: dict[str, list[Execution]] = defaultdict(list)
    for one in staged.executions:
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
        words = staged.groups.get(group) or group
        name = f"collectives of {words}"[:80] if words and len(groups) > 1 else "collectives"
        found.append(Strand(name, "collective", spans, is_flat=True))
    yield from _busiest(found)


def _streams(staged: Staged, rows: NDArray[np.int64], span: tuple[int, int], names: Names) -> Iterator[Strand]:
    """One strand a stream of the device, without collectives, which have their own."""
    events = staged.events
    is_kernel = events.category[rows] == Category.KERNEL
    on_device = rows[is_kernel | (events.category[rows] == Category.MEMORY)]
    collective = np.array([is_collective_kernel(name) for name in events.strings], dtype=np.bool_)
    on_device = on_device[~collective[events.name[on_device]]] if len(on_device) else on_device
    found = []
    for stream, mine in rows_by_thread(events, on_device):
        start, end = np.maximum(events.start_ns[mine], span[0]), np.minimum(events.end_ns[mine], span[1])
        low, high, which = first_come(start, end)
        spans = Spans(low, high, _device_functions(events, mine[which], names))
        device, number = stream >> _SECOND_DEVICE, stream & ((1 << _SECOND_DEVICE) - 1)
        name = f"stream {number} of device {device + 1}" if device > 0 else f"stream {stream}"
        found.append(Strand(name, "device", spans, is_flat=True))
    yield from _busiest(found)


def _device_functions(events: EventTable, rows: NDArray[np.int64], names: Names) -> Numbers:
    code = events.name[rows].astype(np.int64) * 2 + (events.category[rows] == Category.MEMORY)
    codes, inverse = distinct_codes(code)
    kinds: tuple[FunctionKind, FunctionKind] = ("compute", "memory")
    numbers = [names.number(kinds[one % 2], events.strings[one // 2], "other", "device") for one in codes.tolist()]
    return np.array(numbers, dtype=np.int32)[inverse] if numbers else np.empty(0, np.int32)
