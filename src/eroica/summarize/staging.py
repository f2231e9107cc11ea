"""Give each moment of a window to one function: the critical path (EROICA, section 4.2).

Compute comes before memory operations, these before collectives, these before Python: at each moment the highest class
that runs is critical. Where the paper is silent or would count a moment twice, each moment has one owner here.

- Of several of one class at once, the one that started first has the moment.
- A collector run takes the place of what it interrupts: of an open operator on the training thread, else of Python.
- Python sampled inside a wrapping operator (a hook in the backward pass) comes before the wrapper's own time, which in
  turn comes before all other Python. Traced calls take the place of samples.
- A device without work, for which the host is about to launch some, waits for that before any Python (`launching`).
  Where Python was traced, the operators or driver calls that launch have these moments, as without Python.
- Collectives that threads of the host run count only as far as the training thread waits for them (`activity`).
- In recorded traces the host's own events come last (`host`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from eroica.errors import InputError
from eroica.hardware.store import Samples
from eroica.model.window import Capture, FlightEntry
from eroica.summarize.activity import (
    Activity,
    Outline,
    collective_durations,
    find_outline,
    gather_activity,
    waits_elsewhere,
)
from eroica.summarize.calls import Calls, CallTrees, new_trees, read_calls
from eroica.summarize.clock import WallClock, find_shift
from eroica.summarize.collectives import Execution, find_executions
from eroica.summarize.host import launching_moments, read_host, read_launching, within
from eroica.summarize.rows import Tally
from eroica.summarize.sampled import (
    OtherThread,
    PythonCells,
    StackReader,
    Stratum,
    ThreadSamples,
    other_threads,
    sample_runs,
    spread_samples,
    training_samples,
)
from eroica.summarize.sweep import (
    Durations,
    Functions,
    Layer,
    Times,
    empty_layer,
    join_durations,
    paint,
    unite,
)
from eroica.summarize.utilization import awake_moments
from eroica.trace.stacks import StackTimeline
from eroica.trace.table import EventTable


def find_critical_path(
    activity: Activity,
    samples: ThreadSamples | None,
    rate_hz: float,
    edges_ns: Times,
    calls: Calls | None = None,
    host: Sequence[Layer] = (),
    launching: Layer | None = None,
    launched_by: Sequence[Layer] = (),
) -> tuple[Layer, tuple[Stratum, ...]]:
    """Give every moment of the window to one function or to none.

    Args:
        activity: What the trace has.
        samples: Python of the training thread, None if nothing was sampled.
        rate_hz: Samples per second.
        edges_ns: Boundaries of the iterations, wall clock, rising. int64 [I + 1].
        calls: Python that was traced, where nothing was sampled.
        host: What the host's own events say where all else is silent; earlier layers first.
        launching: When the host launches, where Python was sampled beside an accelerator.
        launched_by: The host's own events shortly before it launches, where Python was traced beside an accelerator.

    Returns:
        The window in segments, cut at every boundary (function -1 is idle), and what samples its time was divided by.
    """
    above = (
        activity.collections_in_operators,
        activity.compute,
        activity.memory,
        activity.collectives,
        activity.collections,
        *(() if launching is None else (launching,)),
    )
    window = (int(edges_ns[0]), int(edges_ns[-1]))
    if samples is None:
        cells = PythonCells(empty_layer(), empty_layer(), ())
    else:
        starts, ends = (np.concatenate([getattr(layer, side) for layer in above]) for side in ("start", "end"))
        cells = spread_samples(samples, unite(starts, ends), activity.wrappers, window, rate_hz)
    hooks, others = (calls.hooks, calls.others) if calls is not None else ((cells.hooks,), cells.others)
    return paint([*above, *hooks, activity.wrappers, *launched_by, others, *host], edges_ns), cells.strata


def stage_window(
    capture: Capture,
    events: EventTable,
    stacks: StackTimeline | None,
    flight: Sequence[FlightEntry],
    recorded: bool = False,
    hardware: Samples | None = None,
) -> Staged:
    """A worker's whole window for viewers of traces, instead of its pattern; arguments are those of `summarize_worker`.

    Returns:
        What strands are drawn from.

    Raises:
        InputError: As `summarize_worker`.
    """
    clock = WallClock(capture.clocks)
    scene = set_scene(capture, events, flight, clock)
    python = read_sampled(capture, scene, stacks, clock, hardware)
    return Staged(scene, python, walk(scene, python, recorded)[0])


@dataclass(frozen=True)
class Scene:
    """All that the stages of one summary share; times are wall clock.

    Attributes:
        events: The trace.
        executions: Collectives, in order of start.
        collections: Starts and ends of the collector's runs on the training thread.
        outline: Of the trace.
        functions: Numbers of the critical path and of samples.
        trees: Call stacks of traced Python.
        edges_ns: Boundaries of the iterations. int64 [I + 1].
        groups: Process groups by name, in words.
    """

    events: EventTable
    executions: Sequence[Execution]
    collections: tuple[Times, Times]
    outline: Outline
    functions: Functions
    trees: CallTrees
    edges_ns: Times
    groups: Mapping[str, str]

    @property
    def window(self) -> tuple[int, int]:
        """Start and end of the window, wall clock."""
        return int(self.edges_ns[0]), int(self.edges_ns[-1])


def set_scene(capture: Capture, events: EventTable, flight: Sequence[FlightEntry], clock: WallClock) -> Scene:
    """The window as all stages see it.

    Raises:
        InputError: The capture has no complete iteration, or its boundaries do not rise.
    """
    edges = _edges(capture, clock)
    window = (int(edges[0]), int(edges[-1]))
    executions = find_executions(events, flight, capture.process_groups, window, capture.worker.global_rank)
    functions = Functions()
    return Scene(
        events=events,
        executions=executions,
        collections=_collections(capture, clock),
        outline=find_outline(events, capture.training_thread_id),
        functions=functions,
        trees=new_trees(functions),
        edges_ns=edges,
        groups={group.name: group.description for group in capture.process_groups},
    )


def _edges(capture: Capture, clock: WallClock) -> Times:
    if len(capture.boundaries_ns) < 2:
        raise InputError(f"the capture of rank {capture.worker.global_rank} has no complete iteration")
    edges = clock.from_monotonic(capture.boundaries_ns)
    if np.any(np.diff(edges) <= 0):
        raise InputError(f"the iteration boundaries of rank {capture.worker.global_rank} do not rise")
    return edges


def _collections(capture: Capture, clock: WallClock) -> tuple[Times, Times]:
    """Collector runs on the training thread, wall clock; they are named by either of the thread's numbers."""
    mine = (capture.training_thread_id, capture.training_thread_ident)
    runs = [one for one in capture.garbage_collections if one.thread_id in mine]
    start = np.array([one.start_ns for one in runs], dtype=np.int64)
    end = np.array([one.end_ns for one in runs], dtype=np.int64)
    return clock.from_monotonic(start), clock.from_monotonic(end)


@dataclass(frozen=True)
class Sampled:
    """Everything sampled.

    Attributes:
        training: Samples of the training thread, None if nothing was sampled.
        runs: Of all threads.
        threads: Samples of the other ones.
        used: Samples in the window.
        rate_hz: Samples per second.
        awake: Moments at which the kernel showed the training thread to wait for no other thread.
        elsewhere: Moments at which its stack showed that it waits for something else than a collective.
    """

    training: ThreadSamples | None
    runs: tuple[Durations, ...]
    threads: tuple[OtherThread, ...]
    used: int
    rate_hz: float
    awake: Times
    elsewhere: Times


class Staged(NamedTuple):
    """A window from which strands are drawn; `critical` is its path, function -1 is idle."""

    scene: Scene
    python: Sampled
    critical: Layer


def read_sampled(
    capture: Capture,
    scene: Scene,
    stacks: StackTimeline | None,
    clock: WallClock,
    hardware: Samples | None = None,
) -> Sampled:
    """Samples of the window, on the clock of its trace; nothing of them where there are no stacks."""
    if stacks is None:
        nothing = np.empty(0, dtype=np.int64)
        return Sampled(None, (), (), 0, 1.0, nothing, nothing)
    window, functions = scene.window, scene.functions
    reader = StackReader(functions)
    pid, thread, autograd = capture.worker.pid, capture.training_thread_id, scene.outline.autograd_threads
    training = training_samples(stacks, pid, thread, autograd, clock, reader)
    shift = _shift(training, scene.events, thread, window, functions)
    training = training._replace(time_ns=training.time_ns + shift)
    shifted = (window[0] - shift, window[1] - shift)
    others, threads, used = other_threads(stacks, pid, thread, autograd, clock, shifted, reader)
    used += training.count_in(window)
    runs = (sample_runs(training, window, stacks.rate_hz), *others)
    awake = clock.from_monotonic(awake_moments(capture, hardware, stacks.rate_hz))
    waits = np.array([waits_elsewhere(key.stack) for key in functions.keys] or [False])
    elsewhere = training.time_ns[waits[training.function]]
    return Sampled(training, runs, tuple(threads), used, stacks.rate_hz, awake, elsewhere)


def _shift(
    training: ThreadSamples, events: EventTable, thread: int, window: tuple[int, int], functions: Functions
) -> int:
    inner = (training.time_ns >= window[0]) & (training.time_ns < window[1])
    phases = [functions.keys[number].phase for number in training.function[inner].tolist()]
    return find_shift(training.time_ns[inner], phases, events, thread)


def walk(scene: Scene, python: Sampled, recorded: bool) -> tuple[Layer, tuple[Stratum, ...], Tally]:
    """Return the critical path, what samples its time was divided by, and all of the window added up."""
    events, outline, window, functions = scene.events, scene.outline, scene.window, scene.functions
    signs = None if python.training is None else (python.elsewhere, python.awake)
    activity = gather_activity(events, scene.executions, scene.collections, outline, window, functions, signs)
    durations = [activity.durations]
    calls: Calls | None = None
    host: tuple[Layer, ...] = ()
    launching: Layer | None = None
    launched_by: tuple[Layer, ...] = ()
    if python.training is None:
        calls = read_calls(events, outline, window, scene.trees)
        durations.append(calls.durations)
    elif outline.has_accelerator:
        launching, launches = read_launching(events, outline, window, functions)
        durations.append(launches)
    if recorded:
        host, own = read_host(events, outline, window, functions)
        durations.append(own)
        if calls is not None and len(calls.others.start) and outline.has_accelerator:
            moments = launching_moments(events, outline)
            launched_by = tuple(within(layer, *moments) for layer in host)
    segments, strata = find_critical_path(
        activity, python.training, python.rate_hz, scene.edges_ns, calls, host, launching, launched_by
    )
    durations.append(collective_durations(scene.executions, scene.collections, window, functions))
    added = join_durations([*durations, *python.runs])
    return segments, strata, Tally(scene.edges_ns, segments, added, activity.collectives, len(scene.executions))
