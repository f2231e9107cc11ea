"""The whole of a worker's window as its pattern: the last stage of this room, and its only public one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.errors import InputError
from eroica.hardware.store import Samples
from eroica.model.pattern import CollectiveRecord, WorkerPattern
from eroica.model.window import Capture, FlightEntry
from eroica.settings import Settings
from eroica.summarize.activity import Durations, Outline, collective_durations, find_outline, gather_activity
from eroica.summarize.alignment import find_shift
from eroica.summarize.budget import attach_series, fit_collectives, fit_rows, fit_syncs, wire_size
from eroica.summarize.call_trees import CallTrees, new_trees
from eroica.summarize.calls import Calls, read_calls
from eroica.summarize.clock import WallClock
from eroica.summarize.collectives import Execution, find_executions
from eroica.summarize.critical import CriticalPath, find_critical_path
from eroica.summarize.facts import channel_rates, host_facts
from eroica.summarize.functions import Functions
from eroica.summarize.host import read_host
from eroica.summarize.links import link_uses
from eroica.summarize.neighbors import find_neighbors
from eroica.summarize.records import MOST_RECORDS, ONLINE_GRAIN_NS, RECORDED_GRAIN_NS, collective_series
from eroica.summarize.rows import build_rows
from eroica.summarize.sampled import (
    OtherThread,
    Runs,
    SampleCount,
    StackReader,
    ThreadSamples,
    other_threads,
    sample_runs,
    training_samples,
)
from eroica.summarize.series import encode_series
from eroica.summarize.setup import bounded_setup
from eroica.summarize.slices import MOST_EVENTS, cut_slices
from eroica.summarize.strands import Staged
from eroica.summarize.sweep import Layer, Times
from eroica.summarize.syncs import find_syncs
from eroica.summarize.tally import Tally
from eroica.summarize.threads import disk_facts, measure_threads
from eroica.summarize.timeline import add_timeline, shown_iteration
from eroica.summarize.utilization import Use, find_resources, measure_use
from eroica.trace.stacks import StackTimeline
from eroica.trace.table import Category, EventTable

_COLLECTIVES_SHARE = 4
_SYNCS_SHARE = 8
_HEADER_BYTES = 1500


def summarize_worker(
    capture: Capture,
    events: EventTable,
    stacks: StackTimeline | None,
    samples: Samples | None,
    flight: Sequence[FlightEntry],
    settings: Settings,
    recorded: bool = False,
) -> WorkerPattern:
    """Boil one worker's window down to its pattern.

    Args:
        capture: What the worker handed over.
        events: Its trace.
        stacks: Sampled stacks of the worker and its children. None if there are none; then Python calls count that the
            trace itself holds.
        samples: Hardware channels, None if there are none.
        flight: The Flight Recorder's entries.
        settings: `pattern_bytes`, `collective_executions` and `critical_share` count here.
        recorded: The trace is all there is: the host's own events explain what nothing else does, and records of
            collectives tell when each ended.

    Returns:
        The pattern. Critical seconds of its rows, `dropped_critical_s` and `idle_s` add up to `duration_s`.

    Raises:
        InputError: The capture has no clock pairs or boundaries that do not rise.
    """
    began = time.perf_counter()
    clock = WallClock(capture.clocks)
    scene = _scene(capture, events, flight, clock)
    tally = scene.tally
    python = _read_python(capture, scene, stacks, clock)
    at_once = stacks is not None or samples is not None
    shown = shown_iteration(scene.tally.edges_ns)
    path, critical = _walk(scene, python, len(events) if at_once else MOST_EVENTS, recorded, shown)
    rows, series, left_out_s = build_rows(
        scene.functions,
        tally,
        _uses(capture, samples, scene.functions, path, python, clock, settings),
        _beta_errors(path, len(scene.functions)),
        scene.trees,
    )
    neighbors, setup = find_neighbors(capture, samples), bounded_setup(capture.setup)
    found = find_syncs(events, scene.outline, tally.edges_ns, python.training, scene.functions)
    syncs = fit_syncs(found, settings.pattern_bytes // _SYNCS_SHARE)
    budget = settings.pattern_bytes - _HEADER_BYTES - len(msgspec.msgpack.encode((neighbors, setup))) - wire_size(syncs)
    duration_s = (scene.window[1] - scene.window[0]) / 1e9
    kept, dropped_s = fit_rows(attach_series(rows, series, budget), budget, duration_s)
    pattern = WorkerPattern(
        worker=capture.worker,
        window_id=capture.window_id,
        first_iteration=capture.first_iteration,
        last_iteration=capture.last_iteration,
        duration_s=duration_s,
        iteration_us=encode_series((np.diff(tally.edges_ns) / 1000.0).astype(np.float32), exact=True),
        wait_us=encode_series(_wait_us(scene), exact=True),
        functions=kept,
        collectives=_records(capture, scene, settings, recorded),
        process_groups=capture.process_groups,
        idle_s=tally.idle_ns / 1e9,
        dropped_critical_s=dropped_s + left_out_s,
        samples_used=python.count.used,
        samples_dropped=python.count.dropped,
        has_accelerator=scene.outline.has_accelerator,
        channels=channel_rates(capture, samples),
        host_facts={**host_facts(capture, samples), **disk_facts(capture, samples, python.threads)},
        links=link_uses(capture, samples),
        syncs=syncs,
        neighbors=neighbors,
        setup=setup,
        stall_s=capture.stall_s,
        notes=(*capture.notes, *_notes(capture, events, stacks, samples), *_cuts(scene)),
    )
    staged = _staged(capture, scene, python, critical)
    pattern = add_timeline(pattern, staged, capture, samples, settings)
    return msgspec.structs.replace(pattern, summarize_s=time.perf_counter() - began)


def stage_window(
    capture: Capture,
    events: EventTable,
    stacks: StackTimeline | None,
    flight: Sequence[FlightEntry],
    recorded: bool = False,
) -> Staged:
    """A worker's whole window for viewers of traces, instead of its pattern; arguments are those of `summarize_worker`.

    Returns:
        What strands are drawn from.

    Raises:
        InputError: As `summarize_worker`.
    """
    clock = WallClock(capture.clocks)
    scene = _scene(capture, events, flight, clock)
    python = _read_python(capture, scene, stacks, clock)
    _, critical = _walk(scene, python, len(events) if stacks is not None else MOST_EVENTS, recorded, scene.window)
    return _staged(capture, scene, python, critical)


@dataclass(frozen=True)
class _Scene:
    """All that the stages of one summary share."""

    events: EventTable
    executions: Sequence[Execution]
    collections: tuple[Times, Times]
    outline: Outline
    functions: Functions
    trees: CallTrees
    tally: Tally

    @property
    def window(self) -> tuple[int, int]:
        return int(self.tally.edges_ns[0]), int(self.tally.edges_ns[-1])


def _scene(capture: Capture, events: EventTable, flight: Sequence[FlightEntry], clock: WallClock) -> _Scene:
    edges = _edges(capture, clock)
    executions = find_executions(events, flight, capture.process_groups, (int(edges[0]), int(edges[-1])))
    functions = Functions()
    return _Scene(
        events=events,
        executions=executions,
        collections=_collections(capture, clock),
        outline=find_outline(events, capture.training_thread_id),
        functions=functions,
        trees=new_trees(functions),
        tally=Tally(edges, len(executions)),
    )


def _walk(
    scene: _Scene, python: _Python, most: int, recorded: bool, shown: tuple[int, int]
) -> tuple[CriticalPath, Layer]:
    """Add up the window, slice by slice.

    Returns:
        The critical path of the last slice (of all, if there is only one), and of what is shown of the window.
    """
    executions, functions = scene.executions, scene.functions
    seen: list[Layer] = []
    for part in cut_slices(scene.events, scene.window, most):
        window = (part.start_ns, part.end_ns)
        activity = gather_activity(part.events, executions, scene.collections, scene.outline, window, functions)
        scene.tally.add_durations(activity.durations, part)
        calls: Calls | None = None
        host: tuple[Layer, ...] = ()
        if python.training is None:
            calls = read_calls(part.events, scene.outline, window, scene.trees)
            scene.tally.add_durations(calls.durations, part)
        if recorded:
            host, durations = read_host(part.events, scene.outline, window, functions)
            scene.tally.add_durations(durations, part)
        inner = scene.tally.edges_ns
        inner = inner[(inner > window[0]) & (inner < window[1])]
        edges = np.concatenate((window[:1], inner, window[1:])).astype(np.int64)
        path = find_critical_path(activity, python.training, python.rate_hz, edges, calls, host)
        scene.tally.add_segments(path.segments, activity.collectives)
        seen.append(path.segments.within(*shown))
    scene.tally.add_durations(collective_durations(executions, scene.collections, scene.window, functions))
    for runs in python.runs:
        scene.tally.add_durations(Durations(runs.function, runs.length_ns, np.full(len(runs.function), -1, np.int32)))
    return path, Layer(*(np.concatenate(columns) for columns in zip(*seen, strict=True)))


def _staged(capture: Capture, scene: _Scene, python: _Python, critical: Layer) -> Staged:
    return Staged(
        events=scene.events,
        outline=scene.outline,
        executions=scene.executions,
        collections=scene.collections,
        functions=scene.functions,
        trees=scene.trees,
        critical=critical,
        training=python.training,
        threads=python.threads,
        rate_hz=python.rate_hz,
        groups={group.name: group.description for group in capture.process_groups},
        edges_ns=scene.tally.edges_ns,
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
class _Python:
    """Everything sampled: the training thread, runs of all threads, the others' samples, how many counted."""

    training: ThreadSamples | None
    runs: tuple[Runs, ...]
    threads: tuple[OtherThread, ...]
    count: SampleCount
    rate_hz: float


def _read_python(capture: Capture, scene: _Scene, stacks: StackTimeline | None, clock: WallClock) -> _Python:
    if stacks is None:
        return _Python(None, (), (), SampleCount(), 1.0)
    window, functions = scene.window, scene.functions
    reader = StackReader(functions)
    pid, thread, autograd = capture.worker.pid, capture.training_thread_id, scene.outline.autograd_threads
    training, torn = training_samples(stacks, pid, thread, autograd, clock, reader)
    shift = _shift(training, scene.events, thread, window, functions)
    training = training._replace(time_ns=training.time_ns + shift)
    shifted = (window[0] - shift, window[1] - shift)
    others, threads, count = other_threads(stacks, pid, thread, autograd, clock, shifted, reader)
    inner = int(((training.time_ns >= window[0]) & (training.time_ns < window[1])).sum())
    outer = len(training.time_ns) - inner
    count = SampleCount(count.used + inner, count.dropped + outer + torn + stacks.unreadable)
    runs = (sample_runs(training, window, stacks.rate_hz), *others)
    return _Python(training, runs, tuple(threads), count, stacks.rate_hz)


def _shift(
    training: ThreadSamples, events: EventTable, thread: int, window: tuple[int, int], functions: Functions
) -> int:
    inner = (training.time_ns >= window[0]) & (training.time_ns < window[1])
    phases = [functions.keys[number].phase for number in training.function[inner].tolist()]
    return find_shift(training.time_ns[inner], phases, events, thread)


def _uses(
    capture: Capture,
    samples: Samples | None,
    functions: Functions,
    path: CriticalPath,
    python: _Python,
    clock: WallClock,
    settings: Settings,
) -> list[Use]:
    resources = find_resources(capture, samples)
    uses = measure_use(functions.keys, path.segments, resources, clock, settings.critical_share)
    measure_threads(python.threads, samples, clock, python.rate_hz, uses)
    return uses


# --- figures ---


def _beta_errors(path: CriticalPath, count: int) -> NDArray[np.float64]:
    """Standard error of β of sampled functions: n of N samples in a stratum say which share of its time is theirs.

    A multinomial estimate; samples are taken as independent, which flatters functions that come in long runs.
    """
    variance = np.zeros(count)
    for stratum in path.cells.strata:
        total = len(stratum.function)
        if total:
            share = np.bincount(stratum.function, minlength=count) / total
            variance += (stratum.length_ns / path.window_ns) ** 2 * share * (1.0 - share) / total
    error: NDArray[np.float64] = np.sqrt(variance)
    return error


def _wait_us(scene: _Scene) -> NDArray[np.float32]:
    """Critical collective time of each iteration, microseconds. float32 [I]."""
    group = np.array([0 if key.kind == "collective" else -1 for key in scene.functions.keys], dtype=np.int64)
    wait: NDArray[np.int64] = scene.tally.per_iteration_ns(group, 1)[0]
    return (wait / 1000.0).astype(np.float32)


def _records(capture: Capture, scene: _Scene, settings: Settings, recorded: bool) -> tuple[CollectiveRecord, ...]:
    groups, rank = capture.process_groups, capture.worker.global_rank

    tally, most = scene.tally, settings.collective_executions
    grain_ns = RECORDED_GRAIN_NS if recorded else ONLINE_GRAIN_NS
    series = collective_series(scene.executions, tally.execution_ns, tally.edges_ns, groups, rank, most, grain_ns)
    return fit_collectives(
        most,
        settings.pattern_bytes // _COLLECTIVES_SHARE,
        lambda limit: tuple(one.encode(limit) for one in series),
    )


def _notes(
    capture: Capture, events: EventTable, stacks: StackTimeline | None, samples: Samples | None
) -> tuple[str, ...]:
    notes = list(events.losses)
    if not len(events):
        notes.append("the trace holds no events")
    if events.open_events:
        notes.append(f"{events.open_events} of {len(events)} events were still open when the trace stopped")
    if stacks is None:
        if not (events.category == Category.PYTHON).any():
            notes.append("no Python stacks: Python functions are missing from this pattern")
    elif not any(
        (one.process_id, one.thread_id) == (capture.worker.pid, capture.training_thread_id) for one in stacks.threads
    ):
        notes.append("the sampled stacks do not hold the training thread")
    if samples is None:
        notes.append("no hardware channels: utilization is missing from this pattern")
    return tuple(notes)


def _cuts(scene: _Scene) -> list[str]:
    """What summarizing left out because there was too much of it."""
    notes = scene.trees.losses()
    if scene.outline.unread_threads:
        unread, read = scene.outline.unread_threads, len(scene.outline.autograd_threads)
        notes.append(f"operators of {unread:,} threads of the autograd engine are left out: only {read} are read")
    records = len({(one.group, one.kind) for one in scene.executions})
    if records > MOST_RECORDS:
        notes.append(f"collectives have {records:,} groups and kinds; only {MOST_RECORDS:,} of them are kept")
    return notes
