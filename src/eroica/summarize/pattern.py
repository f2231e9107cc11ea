"""The whole of a worker's window as its pattern: the last stage of this room, and its only public one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eroica.errors import InputError
from eroica.hardware.store import Samples
from eroica.model.pattern import CollectiveRecord, FunctionPattern, WorkerPattern
from eroica.model.window import Capture, FlightEntry
from eroica.settings import Settings
from eroica.summarize.activity import Activity, Durations, gather_activity
from eroica.summarize.alignment import find_shift
from eroica.summarize.budget import attach_series, fit_collectives, fit_rows
from eroica.summarize.clock import WallClock
from eroica.summarize.collectives import Execution, collective_records, find_executions
from eroica.summarize.critical import CriticalPath, find_critical_path
from eroica.summarize.facts import channel_rates, host_facts
from eroica.summarize.functions import Functions
from eroica.summarize.links import link_uses
from eroica.summarize.sampled import (
    Runs,
    SampleCount,
    StackReader,
    ThreadSamples,
    other_threads,
    sample_runs,
    training_samples,
)
from eroica.summarize.series import encode_series
from eroica.summarize.sweep import Times
from eroica.summarize.utilization import Use, find_resources, measure_use
from eroica.trace.stacks import StackTimeline
from eroica.trace.table import EventTable

_COLLECTIVES_SHARE = 4
_HEADER_BYTES = 1500


def summarize_worker(
    capture: Capture,
    events: EventTable,
    stacks: StackTimeline | None,
    samples: Samples | None,
    flight: Sequence[FlightEntry],
    settings: Settings,
) -> WorkerPattern:
    """Boil one worker's window down to its pattern.

    Args:
        capture: What the worker handed over.
        events: Its trace.
        stacks: Sampled stacks of the worker and its children, None if there are none.
        samples: Hardware channels, None if there are none.
        flight: The Flight Recorder's entries.
        settings: `pattern_bytes`, `collective_executions` and `critical_share` count here.

    Returns:
        The pattern. Critical seconds of its rows, `dropped_critical_s` and `idle_s` add up to `duration_s`.

    Raises:
        InputError: The capture has no clock pairs or boundaries that do not rise.
    """
    began = time.perf_counter()
    clock = WallClock(capture.clocks)
    edges = _edges(capture, clock)
    window = (int(edges[0]), int(edges[-1]))
    functions = Functions()
    executions = find_executions(events, flight, capture.process_groups, window)
    runs = _collections(capture, clock)
    activity = gather_activity(events, executions, runs, capture.training_thread_id, window, functions)
    python = _read_python(capture, events, stacks, activity, clock, functions)
    path = find_critical_path(activity, python.training, python.rate_hz, edges)
    rows = _rows(functions, path, activity, python, _uses(capture, samples, functions, path, clock, settings))
    budget = settings.pattern_bytes - _HEADER_BYTES
    kept, dropped_s = fit_rows(attach_series(*rows, budget), budget, path.window_ns / 1e9)
    return WorkerPattern(
        worker=capture.worker,
        window_id=capture.window_id,
        first_iteration=capture.first_iteration,
        last_iteration=capture.last_iteration,
        duration_s=path.window_ns / 1e9,
        iteration_us=encode_series((np.diff(edges) / 1000.0).astype(np.float32), exact=True),
        wait_us=encode_series(_wait_us(functions, path), exact=True),
        functions=kept,
        collectives=_records(capture, executions, path, activity, settings),
        process_groups=capture.process_groups,
        idle_s=path.idle_ns / 1e9,
        dropped_critical_s=dropped_s,
        samples_used=python.count.used,
        samples_dropped=python.count.dropped,
        has_accelerator=activity.has_accelerator,
        channels=channel_rates(capture, samples),
        host_facts=host_facts(capture, samples),
        links=link_uses(capture, samples),
        stall_s=capture.stall_s,
        summarize_s=time.perf_counter() - began,
        notes=(*capture.notes, *_notes(capture, events, stacks, samples)),
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
    """Everything sampled: the training thread, runs of all threads, how many samples counted."""

    training: ThreadSamples | None
    runs: tuple[Runs, ...]
    count: SampleCount
    rate_hz: float


def _read_python(
    capture: Capture,
    events: EventTable,
    stacks: StackTimeline | None,
    activity: Activity,
    clock: WallClock,
    functions: Functions,
) -> _Python:
    if stacks is None:
        return _Python(None, (), SampleCount(), 1.0)
    edges = _edges(capture, clock)
    window = (int(edges[0]), int(edges[-1]))
    reader = StackReader(functions)
    pid, thread, autograd = capture.worker.pid, capture.training_thread_id, activity.autograd_threads
    training, torn = training_samples(stacks, pid, thread, autograd, clock, reader)
    shift = _shift(training, events, thread, window, functions)
    training = training._replace(time_ns=training.time_ns + shift)
    shifted = (window[0] - shift, window[1] - shift)
    others, count = other_threads(stacks, pid, thread, autograd, clock, shifted, reader)
    inner = int(((training.time_ns >= window[0]) & (training.time_ns < window[1])).sum())
    outer = len(training.time_ns) - inner
    count = SampleCount(count.used + inner, count.dropped + outer + torn + stacks.unreadable)
    runs = (sample_runs(training, window, stacks.rate_hz), *others)
    return _Python(training, runs, count, stacks.rate_hz)


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
    clock: WallClock,
    settings: Settings,
) -> list[Use]:
    resources = find_resources(capture, samples)
    return measure_use(functions.keys, path.segments, resources, clock, settings.critical_share)


# --- rows ---


@dataclass(frozen=True)
class _Totals:
    """Counts and durations of functions. F of them."""

    count: NDArray[np.int64]
    total_ns: NDArray[np.float64]
    longest_ns: NDArray[np.int64]


def _totals(parts: Sequence[Durations | Runs], count: int) -> _Totals:
    function = np.concatenate([np.empty(0, np.int32), *(part.function for part in parts)])
    length = np.concatenate([np.empty(0, np.int64), *(part.length_ns for part in parts)])
    longest = np.zeros(count, dtype=np.int64)
    np.maximum.at(longest, function, length)
    return _Totals(
        count=np.bincount(function, minlength=count),
        total_ns=np.bincount(function, weights=length.astype(np.float64), minlength=count).astype(np.float64),
        longest_ns=longest,
    )


def _rows(
    functions: Functions, path: CriticalPath, activity: Activity, python: _Python, uses: list[Use]
) -> tuple[tuple[FunctionPattern, ...], list[bytes]]:
    """All rows in order of falling beta, then total, and the encoded series of each."""
    per_iteration = path.per_iteration_ns(len(functions))
    critical = per_iteration.sum(axis=1)
    totals = _totals([activity.durations, *python.runs], len(functions))
    errors = _beta_errors(path, len(functions))
    seen = np.flatnonzero((critical > 0) | (totals.total_ns > 0))
    order = seen[np.lexsort((-totals.total_ns[seen], -critical[seen]))]
    rows = tuple(
        FunctionPattern(
            key=functions.keys[number],
            beta=_short(critical[number] / path.window_ns),
            mu=_short(uses[number].mean),
            sigma=_short(uses[number].deviation),
            resource=uses[number].resource,
            resource_samples=uses[number].samples,
            critical_s=int(critical[number]) / 1e9,
            total_s=_short(totals.total_ns[number] / 1e9),
            count=int(totals.count[number]),
            max_s=_short(totals.longest_ns[number] / 1e9),
            active_iterations=int(np.count_nonzero(per_iteration[number])),
            beta_error=_short(errors[number]),
        )
        for number in order.tolist()
    )
    series = [
        encode_series((per_iteration[number] / 1000.0).astype(np.float32)) if critical[number] else b""
        for number in order.tolist()
    ]
    return rows, series


def _short(value: float) -> float:
    """Six significant digits: what is not measured need not travel."""
    return float(f"{float(value):.6g}")


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


def _wait_us(functions: Functions, path: CriticalPath) -> NDArray[np.float32]:
    """Critical collective time of each iteration, microseconds. float32 [I]."""
    collective = [number for number, key in enumerate(functions.keys) if key.kind == "collective"]
    wait: NDArray[np.int64] = path.per_iteration_ns(len(functions))[collective].sum(axis=0)
    return (wait / 1000.0).astype(np.float32)


def _records(
    capture: Capture, executions: Sequence[Execution], path: CriticalPath, activity: Activity, settings: Settings
) -> tuple[CollectiveRecord, ...]:
    critical = path.per_execution_ns(activity.collectives, len(executions))

    def build(limit: int) -> tuple[CollectiveRecord, ...]:
        return collective_records(
            executions, critical, path.edges_ns, capture.process_groups, capture.worker.global_rank, limit
        )

    return fit_collectives(settings.collective_executions, settings.pattern_bytes // _COLLECTIVES_SHARE, build)


def _notes(
    capture: Capture, events: EventTable, stacks: StackTimeline | None, samples: Samples | None
) -> tuple[str, ...]:
    notes = []
    if not len(events):
        notes.append("the trace holds no events")
    if events.open_events:
        notes.append(f"{events.open_events} of {len(events)} events were still open when the trace stopped")
    if stacks is None:
        notes.append("no Python stacks: Python functions are missing from this pattern")
    elif not any(
        (one.process_id, one.thread_id) == (capture.worker.pid, capture.training_thread_id) for one in stacks.threads
    ):
        notes.append("the sampled stacks do not hold the training thread")
    if samples is None:
        notes.append("no hardware channels: utilization is missing from this pattern")
    return tuple(notes)
