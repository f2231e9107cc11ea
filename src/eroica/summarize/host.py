"""Explain by the host's own events the moments in which nothing else is known: the lowest layer of all.

Most recorded traces have no Python. With an accelerator, gaps of the device are then explained by the innermost event
of the training thread (an operator, a call of the driver, a note). Where that thread has nothing but a note, an event
of one of the engine's threads explains the gap. Without an accelerator operators are compute already, and only the own
time of notes is left. The own time of the loader's note is the loader's Python.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import FunctionKey
from eroica.summarize.activity import Durations, Outline, is_allocation, join_durations
from eroica.summarize.codes import distinct_codes, rows_by_thread
from eroica.summarize.functions import Functions
from eroica.summarize.marks import LOADER_PREFIX
from eroica.summarize.phases import PHASES, phase_borders, phases_at
from eroica.summarize.sweep import Layer, leaf_segments, split_at
from eroica.trace.table import Category, EventTable

_STEP = "ProfilerStep"
_NUMBER = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")
_BACKWARD = PHASES.index("backward")


def read_host(
    events: EventTable, outline: Outline, window: tuple[int, int], functions: Functions
) -> tuple[tuple[Layer, ...], Durations]:
    """The host's own events, as layers of which earlier ones come first, and their executions.

    Args:
        events: The trace, or the part of it that touches the window.
        outline: Of the whole trace.
        window: Start and end.
        functions: Takes the functions found.
    """
    note = events.category == Category.ANNOTATION
    work = events.category == Category.OPERATOR
    if outline.has_accelerator:
        work |= (events.category == Category.RUNTIME) & ~is_allocation(events)
    mine = (events.thread == outline.training_thread) & (note | work)
    leaves = _leaves(events, np.flatnonzero(mine), window)
    notes = split_at(leaves.where(note[leaves.execution]), phase_borders(outline.parts))
    notes = _named(events, notes, phases_at(notes.start, outline.parts), functions)
    if not outline.has_accelerator:
        return (notes,), _executions(notes)
    own = leaves.where(work[leaves.execution])
    begin = events.start_ns[own.execution]
    layers = [_named(events, own, phases_at(begin, outline.parts), functions)]
    engines = np.isin(events.thread, outline.autograd_threads)
    for _, rows in rows_by_thread(events, np.flatnonzero(work & engines)):
        found = _leaves(events, rows, window)
        backward = np.full(len(found.start), _BACKWARD, dtype=np.int8)
        layers.append(_named(events, found, backward, functions, autograd=True))
    parts = [_executions_of_one_function(layer) for layer in layers]
    return (*layers, notes), join_durations([*parts, _executions(notes)])


def _leaves(events: EventTable, rows: NDArray[np.int64], window: tuple[int, int]) -> Layer:
    """Moments in which these events of one thread are the innermost ones, with their rows as executions."""
    start, end = events.start_ns[rows], events.end_ns[rows]
    inner = rows[(start < end) & (start < window[1]) & (end > window[0])].astype(np.int32)
    low, high, leaf = leaf_segments(events.start_ns[inner], events.end_ns[inner])
    return Layer(low, high, np.full(len(low), -1, np.int32), inner[leaf]).within(*window)


def _named(
    events: EventTable, leaves: Layer, phase: NDArray[np.int8], functions: Functions, autograd: bool = False
) -> Layer:
    """Leaves under their functions: name and phase."""
    is_note = events.category[leaves.execution] == Category.ANNOTATION
    code = (events.name[leaves.execution].astype(np.int64) * 2 + is_note) * len(PHASES) + phase
    codes, inverse = distinct_codes(code)
    numbers = []
    for one in codes.tolist():
        name, noted = divmod(one // len(PHASES), 2)
        numbers.append(functions.number(_key(events.strings[name], bool(noted), one % len(PHASES), autograd)))
    function = np.array(numbers, dtype=np.int32)[inverse] if numbers else np.empty(0, dtype=np.int32)
    return leaves._replace(function=function)


def _key(name: str, is_note: bool, phase: int, autograd: bool) -> FunctionKey:
    if is_note and name.startswith(LOADER_PREFIX):
        return FunctionKey(kind="python", name=name[len(LOADER_PREFIX) :][:200], phase="input")
    plain = clean_note(name) if is_note else name
    return FunctionKey(
        kind="other", name=plain[:200], phase=PHASES[phase], thread="autograd" if autograd else "training"
    )


def clean_note(name: str) -> str:
    """A note's name without what counts up: "ProfilerStep#5" -> "ProfilerStep", "batch 7" -> "batch N"."""
    if name.startswith(_STEP):
        return _STEP
    return _NUMBER.sub("N", name[:500])


def _executions_of_one_function(layer: Layer) -> Durations:
    """Own times of events that have the same function all the time."""
    size = int(layer.execution.max(initial=-1)) + 1
    own = np.bincount(layer.execution, weights=(layer.end - layer.start).astype(np.float64), minlength=size)
    function = np.zeros(size, dtype=np.int32)
    function[layer.execution] = layer.function
    rows = np.flatnonzero(own)
    return Durations(function[rows], own[rows].astype(np.int64), rows.astype(np.int32))


def _executions(layer: Layer) -> Durations:
    """Own times of events; one whose own time lies in several phases counts in each."""
    width = int(layer.function.max(initial=0)) + 1
    codes, inverse = np.unique(layer.execution.astype(np.int64) * width + layer.function, return_inverse=True)
    length = (layer.end - layer.start).astype(np.float64)
    own = np.bincount(inverse, weights=length, minlength=len(codes)).astype(np.int64)
    return Durations((codes % width).astype(np.int32), own, (codes // width).astype(np.int32))
