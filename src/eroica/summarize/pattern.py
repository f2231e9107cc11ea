"""The whole of a worker's window as its pattern: the last stage of this room, and its only public one."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.hardware.store import Samples
from eroica.model.pattern import Timeline, Track, WorkerPattern, Workload
from eroica.model.series import encode_series
from eroica.model.window import Capture, FlightEntry, bounded_setup
from eroica.settings import Settings
from eroica.summarize.clock import WallClock
from eroica.summarize.facts import find_neighbors, host_facts, link_uses
from eroica.summarize.host import device_time
from eroica.summarize.phases import without_ranges
from eroica.summarize.rows import (
    MOST_RECORDS,
    ONLINE_GRAIN_NS,
    RECORDED_GRAIN_NS,
    attach_series,
    build_rows,
    fit_collectives,
    fit_rows,
)
from eroica.summarize.sampled import Stratum
from eroica.summarize.staging import Scene, read_sampled, set_scene, walk
from eroica.summarize.sweep import Layer
from eroica.summarize.utilization import disk_facts, find_resources, measure_threads, measure_use
from eroica.trace.stacks import StackTimeline
from eroica.trace.table import Category, EventTable
from eroica.wire.codec import encode_record

_COLLECTIVES_SHARE = 4
_HEADER_BYTES = 1500
#: The operator that adds to a parameter's gradient: once for each parameter in each backward pass.
_ACCUMULATE = "torch::autograd::AccumulateGrad"
#: Slices of a timeline, the bytes that it may take, and the steps of time in which an iteration is told.
_MOST_SLICES, _TIMELINE_BYTES, _STEPS = 400, 2000, 16_384


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
        settings: `pattern_bytes` counts here.
        recorded: The trace is all there is: the host's own events explain what nothing else does, and records of
            collectives tell when each ended.

    Returns:
        The pattern. Critical seconds of its rows, `dropped_critical_s` and `idle_s` add up to `duration_s`.

    Raises:
        InputError: The capture has no clock pairs or boundaries that do not rise.
    """
    began = time.perf_counter()
    clock = WallClock(capture.clocks)
    events = without_ranges(events) if stacks is not None else events
    scene = set_scene(capture, events, flight, clock)
    python = read_sampled(capture, scene, stacks, clock, samples)
    segments, strata, tally = walk(scene, python, recorded)
    uses = measure_use(scene.functions.keys, segments, find_resources(capture, samples), clock)
    measure_threads(python.threads, samples, clock, python.rate_hz, uses)
    count = len(scene.functions)
    device_ns = np.zeros(count)
    if python.training is not None and scene.outline.has_accelerator and not recorded:
        device_ns = device_time(scene.events, scene.outline, python.training, scene.window, count)
    rows, series, left_out_s = build_rows(
        scene.functions,
        tally,
        uses,
        _beta_errors(strata, scene.window[1] - scene.window[0], count),
        device_ns,
    )
    neighbors, setup = find_neighbors(capture, samples), bounded_setup(capture.setup)
    budget = settings.pattern_bytes - _HEADER_BYTES - len(msgspec.msgpack.encode((neighbors, setup)))
    duration_s = (scene.window[1] - scene.window[0]) / 1e9
    group = np.array([0 if key.kind == "collective" else -1 for key in scene.functions.keys], dtype=np.int64)
    kept, dropped_s = fit_rows(attach_series(rows, series, budget), budget, duration_s)
    pattern = WorkerPattern(
        worker=capture.worker,
        window_id=capture.window_id,
        first_iteration=capture.first_iteration,
        last_iteration=capture.last_iteration,
        duration_s=duration_s,
        iteration_us=encode_series((np.diff(scene.edges_ns) / 1000.0).astype(np.float32), exact=True),
        wait_us=encode_series((tally.per_iteration_ns(group, 1)[0] / 1000.0).astype(np.float32), exact=True),
        functions=kept,
        collectives=fit_collectives(
            scene.executions,
            tally.execution_ns,
            tally.edges_ns,
            capture.process_groups,
            capture.worker.global_rank,
            settings.pattern_bytes // _COLLECTIVES_SHARE,
            RECORDED_GRAIN_NS if recorded else ONLINE_GRAIN_NS,
        ),
        process_groups=capture.process_groups,
        idle_s=tally.idle_ns / 1e9,
        dropped_critical_s=dropped_s + left_out_s,
        samples_used=python.used,
        has_accelerator=scene.outline.has_accelerator,
        host_facts={**host_facts(capture, samples), **disk_facts(capture, samples, python.threads)},
        links=link_uses(capture, samples),
        neighbors=neighbors,
        setup=setup,
        workload=_workload(capture, events, scene),
        stall_s=capture.stall_s,
        timeline=_timeline(scene, segments),
        notes=(*capture.notes, *_notes(capture, scene, stacks, samples)),
    )
    return msgspec.structs.replace(pattern, summarize_s=time.perf_counter() - began)


# --- figures ---


def _beta_errors(strata: Sequence[Stratum], window_ns: int, count: int) -> NDArray[np.float64]:
    """Standard error of β of sampled functions: n of N samples in a stratum say which share of its time is theirs.

    A multinomial estimate; samples are taken as independent, which flatters functions that come in long runs.
    """
    variance = np.zeros(count)
    for stratum in strata:
        total = len(stratum.function)
        if total:
            share = np.bincount(stratum.function, minlength=count) / total
            variance += (stratum.length_ns / window_ns) ** 2 * share * (1.0 - share) / total
    error: NDArray[np.float64] = np.sqrt(variance)
    return error


def _workload(capture: Capture, events: EventTable, scene: Scene) -> Workload:
    """Add to the worker's own counts what the trace tells: backward passes and collectives."""
    known, iterations = capture.workload, max(len(scene.edges_ns) - 1, 1)
    named = events.named(lambda name: name == _ACCUMULATE)
    low, high = scene.window
    inside = named & (events.start_ns >= low) & (events.start_ns < high)
    return msgspec.structs.replace(
        known,
        passes=int(inside.sum()) / iterations / known.gradients if known.gradients else 0.0,
        collectives=len(scene.executions) / iterations,
        sent=sum(one.elements for one in scene.executions) / iterations,
    )


def _timeline(scene: Scene, segments: Layer) -> bytes:
    """Encode the critical path of the middle iteration, its longest slices; empty where there is nothing to show."""
    iteration = (len(scene.edges_ns) - 1) // 2
    begin, end = (int(edge) for edge in scene.edges_ns[iteration : iteration + 2])
    layer = segments.within(begin, end)
    layer = layer.where(layer.function >= 0)
    if not len(layer.start):
        return b""
    begins = np.append(True, (layer.function[1:] != layer.function[:-1]) | (layer.start[1:] != layer.end[:-1]))
    start, last = layer.start[begins], layer.end[np.append(begins[1:], True)]
    function, longest = layer.function[begins], np.argsort(start - last, kind="stable")
    grain_ns = 2.0 ** math.ceil(math.log2((end - begin) / _STEPS))
    most = _MOST_SLICES
    while most:
        kept = np.sort(longest[:most])
        used, place = np.unique(function[kept], return_inverse=True)
        keys = [scene.functions.keys[number] for number in used.tolist()]
        steps = np.rint(np.stack([start[kept] - begin, last[kept] - begin]) / grain_ns) * (grain_ns / 1e3)
        critical = Track(
            names=tuple(key.name for key in keys),
            kinds=tuple(key.kind for key in keys),
            phases=tuple(key.phase for key in keys),
            function=encode_series(place.astype(np.int32)),
            start_us=encode_series(steps[0].astype(np.float32), exact=True),
            duration_us=encode_series((steps[1] - steps[0]).astype(np.float32), exact=True),
            dropped=len(start) - len(kept),
        )
        data = encode_record(
            Timeline(
                iteration=iteration,
                start_us=(begin - int(scene.edges_ns[0])) / 1e3,
                duration_us=(end - begin) / 1e3,
                critical=critical,
            )
        )
        if len(data) <= _TIMELINE_BYTES:
            return data
        most //= 2
    return b""


def _notes(capture: Capture, scene: Scene, stacks: StackTimeline | None, samples: Samples | None) -> list[str]:
    """Note what is missing, and what summarizing left out because there was too much of it."""
    events = scene.events
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
    notes += scene.trees.losses()
    records = len({(one.group, one.kind) for one in scene.executions})
    if records > MOST_RECORDS:
        notes.append(f"collectives have {records:,} groups and kinds; only {MOST_RECORDS:,} of them are kept")
    return notes
