"""Lay out the work of each thread and device stream as one strand, for timelines and traces of other viewers.

Nothing is concluded from strands.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import FunctionKey, FunctionKind
from eroica.summarize.codes import distinct_codes, rows_by_thread
from eroica.summarize.collectives import Execution
from eroica.summarize.functions import UNNAMED
from eroica.summarize.host_strands import autograd_strands, loader_strands, training_spans
from eroica.summarize.spans import Names, Spans, Staged, Strand, Strands, busiest, join
from eroica.summarize.sweep import Numbers, first_come
from eroica.trace.table import Category, EventTable

_SECOND_DEVICE = 40


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
