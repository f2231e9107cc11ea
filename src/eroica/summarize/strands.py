"""Lay out the work of each thread and stream as one strand, for timelines and other viewers of traces.

A thread's operators, calls and notes nest as they did. Sampled Python fills the moments in which no operator was open.
Calls last as long as consecutive samples show them. Frames that all samples share are left out, and so are frames of
torch and the standard library that only call one other. Nothing is concluded from strands.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import FunctionKey, FunctionKind, Phase, ThreadRole
from eroica.summarize.activity import GARBAGE_COLLECTION, is_allocation, is_transport
from eroica.summarize.calls import call_frame
from eroica.summarize.collectives import Execution
from eroica.summarize.host import clean_note
from eroica.summarize.phases import LOADER_PREFIX, PHASES, phases_at, stack_phase
from eroica.summarize.sampled import OtherThread, ThreadSamples
from eroica.summarize.spans import (
    MOST_OF_A_KIND,
    Names,
    Spans,
    Staged,
    Strand,
    Strands,
    busiest,
    cut,
    join,
    nested,
    numbered,
    sampled_calls,
)
from eroica.summarize.sweep import UNNAMED, Numbers, Times, distinct_codes, first_come, inside, rows_by_thread, unite
from eroica.trace.schema import Category
from eroica.trace.table import EventTable

_STEP = "ProfilerStep"
_BACKWARD = PHASES.index("backward")
_SECOND_DEVICE = 40


def training_spans(staged: Staged, rows: NDArray[np.int64], span: tuple[int, int], names: Names) -> Spans:
    """Spans of the training thread: operators, notes, calls, the collector's runs, and Python between them."""
    events, outline = staged.events, staged.outline
    mine = rows[events.thread[rows] == outline.training_thread]
    mine = mine[_is_host(events, mine, staged)]
    phase = phases_at(events.start_ns[mine], outline.parts)
    own = _of_rows(staged, mine, phase, span, names)
    number = names.number("gc", GARBAGE_COLLECTION.name, "other")
    begin, end = unite(*staged.collections)
    collected = cut(Spans(begin, end, np.full(len(begin), number, np.int32)), span)
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
    return nested(join(parts), names)


def autograd_strands(staged: Staged, rows: NDArray[np.int64], span: tuple[int, int], names: Names) -> Iterator[Strand]:
    """One strand a thread of the engine, the busiest ones."""
    events = staged.events
    mine = rows[np.isin(events.thread[rows], staged.outline.autograd_threads)]
    mine = mine[_is_host(events, mine, staged)]
    found = []
    for _, own in rows_by_thread(events, mine):
        phase = np.full(len(own), _BACKWARD, dtype=np.int8)
        spans = nested(_of_rows(staged, own, phase, span, names, "autograd"), names)
        found.append(Strand("autograd thread", "autograd", spans))
    yield from numbered(list(busiest(found)))


def loader_strands(staged: Staged, span: tuple[int, int], names: Names) -> Iterator[Strand]:
    """Main threads of the loader's processes, in order of their ids."""
    nothing = np.empty(0, dtype=np.int64)
    children = sorted((one for one in staged.threads if one.is_loader), key=lambda one: one.process_id)
    main: dict[int, OtherThread] = {}
    for one in children:
        best = main.get(one.process_id)
        if best is None or len(one.samples.time_ns) > len(best.samples.time_ns):
            main[one.process_id] = one
    found = []
    for one in list(main.values())[:MOST_OF_A_KIND]:
        spans = _sampled(staged, one.samples, ((nothing, nothing), nothing), span, names, "loader")
        found.append(Strand("loader process", "loader", nested(spans, names)))
    yield from numbered(found)


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
    return cut(Spans(events.start_ns[rows], events.end_ns[rows], function).chosen(keep), span)


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
    """Leave out callers of the loader, where the loader's note is around what they called."""
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
    yield from busiest(found)


def _streams(staged: Staged, rows: NDArray[np.int64], span: tuple[int, int], names: Names) -> Iterator[Strand]:
    """One strand a stream of the device, without collectives, which have their own."""
    events = staged.events
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
