"""Lay out the work of each thread and stream as one strand, for viewers of traces. Nothing is concluded from strands.

A thread's operators, calls and notes nest as they did. Sampled Python fills the moments in which no operator was open.
Calls last as long as consecutive samples show them. Frames that all samples share are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import FunctionKey, FunctionKind, Phase, ThreadRole
from eroica.summarize.activity import GARBAGE_COLLECTION, is_transport
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
    empty_layer,
    first_come,
    nest,
    paint,
    rows_by_thread,
    split_at,
    stretches,
    unite,
)
from eroica.trace.table import ALLOCATIONS, Category, EventTable

_STEP = "ProfilerStep"
_BACKWARD = PHASES.index("backward")
_SECOND_DEVICE = 40
#: Threads of the engine, process groups, streams and loader processes that get a strand each, the busiest ones.
MOST_OF_A_KIND = 8
#: A sample stands for at most so many sampling periods to each side, as in `sampled.sample_runs`.
_REACH_PERIODS = 10
#: Between things that were measured, samples say nothing of stretches far shorter than their period.
_SHORTEST_PERIODS = 0.02
_BUSY = np.int32(2**31 - 1)


class Strand(NamedTuple):
    """One thread or stream.

    Attributes:
        name: For people.
        spans: Executions in order of start, the longer first; they nest. `function` is a number in the keys.
    """

    name: str
    spans: Layer


class Strands(NamedTuple):
    """All of one worker.

    Attributes:
        keys: Functions by number, without stacks.
        critical: The critical path, without what is idle.
        others: The training thread first, then by kind.
    """

    keys: Sequence[FunctionKey]
    critical: Strand
    others: tuple[Strand, ...]


def find_strands(staged: Staged, span: tuple[int, int]) -> Strands:
    """All strands of a worker.

    Args:
        staged: The window.
        span: Start and end of what is wanted; executions are cut there.
    """
    functions = Functions()
    rows = _touching(staged.scene.events, span)
    critical = Strand("critical path", _critical(staged, span, functions))
    others = (
        Strand("training thread", training_spans(staged, rows, span, functions)),
        *autograd_strands(staged, rows, span, functions),
        *_collectives(staged, span, functions),
        *_streams(staged, rows, span, functions),
        *loader_strands(staged, span, functions),
    )
    kept = tuple(strand for strand in others if len(strand.spans.start) or strand is others[0])
    return Strands(functions.keys, critical, kept)


def _key(kind: FunctionKind, name: str, phase: Phase, thread: ThreadRole = "training") -> FunctionKey:
    return FunctionKey(kind=kind, name=name[:200], phase=phase, thread=thread)


def _cut(spans: Layer, span: tuple[int, int]) -> Layer:
    start, end = np.maximum(spans.start, span[0]), np.minimum(spans.end, span[1])
    return spans._replace(start=start, end=end).where(start < end)


def _join(parts: Sequence[Layer]) -> Layer:
    start, end, function, execution = map(np.concatenate, zip(empty_layer(), *parts, strict=True))
    return Layer(start, end, function, execution)


def _nested(spans: Layer) -> Layer:
    """Order spans and cut them where they cross; of equal spans the first is the outer one."""
    order = np.lexsort((-spans.end, spans.start))
    spans = Layer(spans.start[order], spans.end[order], spans.function[order], spans.execution[order])
    if not len(order):
        return spans
    spans = spans._replace(end=nest(spans.start, spans.end).end_N)
    return spans.where(spans.end > spans.start)


def _busiest(strands: Sequence[Strand]) -> Iterator[Strand]:
    """Yield the strands with most time, in the order given, numbered where they have one name."""
    time = np.array([int((one.spans.end - one.spans.start).sum()) for one in strands])
    kept = [strands[at] for at in sorted(np.argsort(-time, kind="stable")[:MOST_OF_A_KIND].tolist())]
    is_one_name = len(kept) > 1 and len({one.name for one in kept}) == 1
    for number, one in enumerate(kept, start=1):
        yield one._replace(name=f"{one.name} {number}") if is_one_name else one


def _touching(events: EventTable, span: tuple[int, int]) -> NDArray[np.int64]:
    """Rows of events that last, and reach into the span, in order of start."""
    begin, end = np.searchsorted(events.start_ns, span)
    rows = np.concatenate((np.flatnonzero(events.end_ns[:begin] > span[0]), np.arange(begin, end)))
    lasting: NDArray[np.int64] = rows[events.start_ns[rows] < events.end_ns[rows]]
    return lasting


def _critical(staged: Staged, span: tuple[int, int], functions: Functions) -> Layer:
    """Stretches of one function, joined where they follow each other."""
    layer = staged.critical.within(*span)
    layer = layer.where(layer.function >= 0)
    if not len(layer.start):
        return empty_layer()
    keys = staged.scene.functions.keys
    function = functions.numbers(
        layer.function.astype(np.int64), lambda one: msgspec.structs.replace(keys[one], stack=(), group="")
    )
    begins = np.append(True, (function[1:] != function[:-1]) | (layer.start[1:] != layer.end[:-1]))
    return stretches(layer.start[begins], layer.end[np.append(begins[1:], True)], function[begins])


def training_spans(staged: Staged, rows: NDArray[np.int64], span: tuple[int, int], functions: Functions) -> Layer:
    """Spans of the training thread: operators, notes, calls, the collector's runs, and Python between them."""
    events, outline = staged.scene.events, staged.scene.outline
    mine = rows[events.thread[rows] == outline.training_thread]
    mine = mine[_is_host(events, mine, staged)]
    own = _of_rows(staged, mine, phases_at(events.start_ns[mine], outline.parts), span, functions)
    number = functions.number(GARBAGE_COLLECTION)
    begin, end = unite(*staged.scene.collections)
    collected = _cut(stretches(begin, end, number), span)
    parts = [own, collected]
    if staged.python.training is not None:
        noted = events.category[mine] == Category.ANNOTATION
        work = mine[~noted]
        busy = unite(
            np.concatenate((events.start_ns[work], collected.start)),
            np.concatenate((events.end_ns[work], collected.end)),
        )
        borders = np.concatenate((events.start_ns[mine[noted]], events.end_ns[mine[noted]]))
        parts.append(_sampled(staged, staged.python.training, (busy, borders), span, functions))
    return _nested(_join(parts))


def autograd_strands(
    staged: Staged, rows: NDArray[np.int64], span: tuple[int, int], functions: Functions
) -> Iterator[Strand]:
    """One strand a thread of the engine, the busiest ones."""
    events = staged.scene.events
    mine = rows[np.isin(events.thread[rows], staged.scene.outline.autograd_threads)]
    mine = mine[_is_host(events, mine, staged)]
    found = []
    for _, own in rows_by_thread(events, mine):
        phase = np.full(len(own), _BACKWARD, dtype=np.int8)
        spans = _of_rows(staged, own, phase, span, functions, "autograd")
        found.append(Strand("autograd thread", _nested(spans)))
    yield from _busiest(found)


def loader_strands(staged: Staged, span: tuple[int, int], functions: Functions) -> Iterator[Strand]:
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
        spans = _sampled(staged, one.samples, ((nothing, nothing), nothing), span, functions, "loader")
        found.append(Strand("loader process", _nested(spans)))
    yield from _busiest(found)


def _collectives(staged: Staged, span: tuple[int, int], functions: Functions) -> Iterator[Strand]:
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
        number = [functions.number(_key("collective", one.name, "other", "collective")) for one in members]
        low, high, which = first_come(start, end)
        words = staged.scene.groups.get(group) or group
        name = f"collectives of {words}"[:80] if words and len(groups) > 1 else "collectives"
        found.append(Strand(name, stretches(low, high, np.array(number, dtype=np.int32)[which])))
    yield from _busiest(found)


def _streams(staged: Staged, rows: NDArray[np.int64], span: tuple[int, int], functions: Functions) -> Iterator[Strand]:
    """One strand a stream of the device, without collectives, which have their own."""
    events = staged.scene.events
    is_device = np.isin(events.category[rows], (Category.KERNEL, Category.MEMORY))
    on_device = rows[is_device & ~events.communication()[rows]]
    found = []
    for stream, mine in rows_by_thread(events, on_device):
        start, end = np.maximum(events.start_ns[mine], span[0]), np.minimum(events.end_ns[mine], span[1])
        low, high, which = first_come(start, end)
        device, number = stream >> _SECOND_DEVICE, stream & ((1 << _SECOND_DEVICE) - 1)
        name = f"stream {number} of device {device + 1}" if device > 0 else f"stream {stream}"
        found.append(Strand(name, stretches(low, high, _device_functions(events, mine[which], functions))))
    yield from _busiest(found)


def _device_functions(events: EventTable, rows: NDArray[np.int64], functions: Functions) -> Numbers:
    code = events.name[rows].astype(np.int64) * 2 + (events.category[rows] == Category.MEMORY)
    kinds: tuple[FunctionKind, FunctionKind] = ("compute", "memory")
    return functions.numbers(code, lambda one: _key(kinds[one % 2], events.strings[one // 2], "other", "device"))


# --- events of the host ---


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
    functions: Functions,
    thread: ThreadRole = "training",
) -> Layer:
    """Events as spans under their names, without the profiler's own steps and what only wraps the whole span."""
    events = staged.scene.events
    category = events.category[rows].astype(np.int64)
    is_step = events.named(lambda name: name.startswith(_STEP), Category.ANNOTATION)[rows]
    wraps = (events.start_ns[rows] <= span[0]) & (events.end_ns[rows] >= span[1])
    left_out = is_step | (wraps & (category == Category.PYTHON))
    rows, category, phase = rows[~left_out], category[~left_out], phase[~left_out]

    def key_of(code: int) -> FunctionKey:
        rest, at = divmod(code, len(PHASES))
        name, kind = divmod(rest, len(Category))
        return _named(staged, events.strings[name], Category(kind), PHASES[at], thread)

    code = (events.name[rows].astype(np.int64) * len(Category) + category) * len(PHASES) + phase
    return _cut(stretches(events.start_ns[rows], events.end_ns[rows], functions.numbers(code, key_of)), span)


def _named(staged: Staged, text: str, category: Category, phase: Phase, thread: ThreadRole) -> FunctionKey:
    """The function that an event of this name is."""
    if category == Category.PYTHON:
        return _key("python", split_frame(call_frame(text) or text)[0], phase, thread)
    if category == Category.ANNOTATION and text.startswith(LOADER_PREFIX):
        return _key("python", text[len(LOADER_PREFIX) :], "input", thread)
    if category == Category.ANNOTATION:
        return _key("other", clean_note(text), phase, thread)
    if category == Category.RUNTIME:
        return _key("memory" if text.startswith(ALLOCATIONS) else "other", text, phase, thread)
    only_launches = staged.scene.outline.has_accelerator or is_transport(text)
    return _key("other" if only_launches else "compute", text, phase, thread)


# --- sampled Python ---


def _sampled(
    staged: Staged,
    samples: ThreadSamples,
    around: tuple[tuple[Times, Times], Times],
    span: tuple[int, int],
    functions: Functions,
    thread: ThreadRole = "training",
) -> Layer:
    """Calls that samples of one thread show; outer calls before those that they made.

    Args:
        staged: The window.
        samples: Of the thread, in order of time.
        around: What was measured exactly: when the thread did something else (disjoint, in order), and moments at
            which a call is cut in two.
        span: Start and end of what is wanted.
        functions: Takes the functions found.
        thread: Which threads.
    """
    busy, borders = around
    period_ns = 1e9 / max(staged.python.rate_hz, 1e-9)
    other = np.full(len(busy[0]), _BUSY, dtype=np.int32)
    cells = paint([Layer(*busy, other, other), _cells(samples, span, period_ns)], np.array(span, dtype=np.int64))
    cells = cells.where((cells.function >= 0) & (cells.function != _BUSY))
    cells = split_at(cells, distinct(borders)) if len(borders) else cells
    cells = cells.where(cells.end - cells.start >= _SHORTEST_PERIODS * period_ns)
    kinds, which = np.unique(cells.function, return_inverse=True)
    node_SL, numbers = _levels([staged.scene.functions.keys[kind] for kind in kinds.tolist()], functions, thread)
    joins = np.append(False, (cells.start[1:] == cells.end[:-1]) & ~np.isin(cells.start[1:], borders))
    return _join([_runs(cells, node_L[which], joins[: len(which)], numbers) for node_L in node_SL.T])


def _cells(samples: ThreadSamples, span: tuple[int, int], period_ns: float) -> Layer:
    """The time that each sample stands for, within the span."""
    time, limit = samples.time_ns, round(_REACH_PERIODS * period_ns)
    middle = time[:-1] + (time[1:] - time[:-1]) // 2
    low = np.maximum(np.concatenate((time[:1] - limit, middle)), time - limit)
    high = np.minimum(np.concatenate((middle, time[-1:] + limit)), time + limit)
    return _cut(stretches(low, high, samples.function), span)


def _levels(
    keys: Sequence[FunctionKey], functions: Functions, thread: ThreadRole
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Nodes of the tree of calls by stack and level, -1 where a stack has ended; and the function of each node."""
    stacks = [key.stack for key in keys]
    shortest = min(map(len, stacks), default=0)
    places = takewhile(lambda at: all(stack[at] == stacks[0][at] for stack in stacks), range(max(shortest - 1, 0)))
    shared = sum(1 for _ in places)
    node_SL = np.full((len(keys), max(map(len, stacks), default=0) - shared), -1, dtype=np.int64)
    nodes: dict[tuple[int, str], int] = {}
    numbers: list[int] = []
    for row, key in enumerate(keys):
        parent = -1
        for place, frame in enumerate(key.stack[shared:], start=shared):
            found = nodes.setdefault((parent, frame), len(numbers))
            if found == len(numbers):
                is_whole = place + 1 == len(key.stack) or thread == "loader"
                phase = key.phase if is_whole else stack_phase(key.stack[: place + 1])
                numbers.append(functions.number(_key("python", split_frame(frame)[0], phase, thread)))
            node_SL[row, place - shared] = parent = found
    return node_SL, np.array(numbers, dtype=np.int32)


def _runs(cells: Layer, node_K: NDArray[np.int64], joins_K: NDArray[np.bool_], numbers: Numbers) -> Layer:
    """Calls of one level: consecutive cells with the same node."""
    begins = ~joins_K
    begins[1:] |= node_K[1:] != node_K[:-1]
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(node_K)) - 1
    keep = node_K[first] >= 0
    return stretches(cells.start[first[keep]], cells.end[last[keep]], numbers[node_K[first[keep]]])
