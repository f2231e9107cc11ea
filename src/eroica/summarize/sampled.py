"""Sampled Python: from stretches of stacks to samples, and from samples to the time they stand for.

The sampler's file keeps only changes, so the samples in between are put back at the sampling period. A sample counts
for the critical path only where nothing of a higher class ran at its moment. Such a sample shows Python in the time
that the higher classes leave, and each of these moments belongs to the nearest counted sample. So a stack reaches half
a period to both sides, not a whole one forward. Samples taken while an operator ran show only its caller; were they
counted, Python that is shorter than a period would be understated. Where no sample of any kind is near, no function is
named: that time stays idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import ASIDE, FunctionKey, Phase, ThreadRole
from eroica.summarize.clock import WallClock
from eroica.summarize.phases import is_apply_frame, is_engine_frame, split_frame, stack_phase
from eroica.summarize.sweep import (
    Durations,
    Functions,
    Layer,
    Times,
    distinct,
    empty_layer,
    find_interval,
    inside,
    paint,
    stretches,
    unite,
    without_rows,
)
from eroica.trace.stacks import StackTimeline

_REACH_PERIODS = 10
_LEAST_REACH_NS = 250_000_000
_ROOT_SHARE = 0.8
_MOST = 0.5
_LOADER_LOOP = "_worker_loop (torch/utils/data/_utils/worker.py"
#: Function and file in which a child of `multiprocessing` begins.
_CHILD_BEGINS = ("_bootstrap", "multiprocessing/process.py")
_OWN_FRAMES = ("eroica/worker/", "eroica/auto.py")


class ThreadSamples(NamedTuple):
    """Samples of one thread, in order of time.

    Attributes:
        time_ns: Wall clock. int64 [S].
        function: int32 [S].
        kind: What the stack's leaf means for the engine's operators: PLAIN, ENGINE (waits in the autograd engine), HOOK
            (Python below the engine, or inside a user's function of it, which is an operator). int8 [S].
    """

    time_ns: Times
    function: NDArray[np.int32]
    kind: NDArray[np.int8]

    def count_in(self, window: tuple[int, int]) -> int:
        """Count the samples in a window."""
        return int(((self.time_ns >= window[0]) & (self.time_ns < window[1])).sum())


PLAIN, ENGINE, HOOK = 0, 1, 2


class OtherThread(NamedTuple):
    """A sampled thread that is not the training one.

    Attributes:
        process_id: Its process.
        thread_id: Kernel thread id.
        is_loader: It belongs to a data loader's process.
        samples: Its samples, wall clock.
    """

    process_id: int
    thread_id: int
    is_loader: bool
    samples: ThreadSamples


class StackReader:
    """Functions of sampled stacks, remembered per stack."""

    def __init__(self, functions: Functions) -> None:
        self._functions = functions
        self._known: dict[tuple[ThreadRole, tuple[str, ...]], tuple[int, int]] = {}

    def identify(self, stack: tuple[str, ...], role: ThreadRole) -> tuple[int, int]:
        """Function number and kind (PLAIN, ENGINE, HOOK) of a stack."""
        key = (role, stack)
        if key not in self._known:
            self._known[key] = (self._functions.number(stack_function(stack, role)), _stack_kind(stack))
        return self._known[key]


def stack_function(stack: tuple[str, ...], role: ThreadRole) -> FunctionKey:
    """Identity of a sampled stack.

    Frames of Eroica's own hooks are left out unless they are the leaf. A child's stack begins where the child began:
    above it stand the frames its parent had when it forked.
    """
    kept = tuple(frame for frame in stack[:-1] if not split_frame(frame)[1].startswith(_OWN_FRAMES)) + stack[-1:]
    if role in ASIDE:
        plain = [(function.rpartition(".")[2], file) for function, file in map(split_frame, kept)]
        begins = [place for place, one in enumerate(plain) if one == _CHILD_BEGINS]
        kept = kept[begins[-1] :] if begins else kept
    phase: Phase = stack_phase(kept)
    if role in ASIDE and any("torch/utils/data/" in frame for frame in kept):
        phase = "input"
    return FunctionKey(kind="python", name=split_frame(stack[-1])[0][:200], stack=kept, phase=phase, thread=role)


def _stack_kind(stack: tuple[str, ...]) -> int:
    if is_engine_frame(stack[-1]):
        return ENGINE
    return HOOK if any(is_engine_frame(frame) or is_apply_frame(frame) for frame in stack[:-1]) else PLAIN


# --- stretches -> samples ---


def restore_samples(
    stack_H: NDArray[np.int32], start_H: Times, end_H: Times, rate_hz: float
) -> tuple[Times, NDArray[np.int32]]:
    """Moments and stacks of the samples behind stretches that hold several equal ones.

    Args:
        stack_H: Stack numbers. int32 [H].
        start_H: First sample of each stretch, nanoseconds. int64 [H].
        end_H: First sample of the next one. int64 [H].
        rate_hz: Samples per second.

    Returns:
        Moments, int64 [S], and stacks, int32 [S]; S >= H.
    """
    count = np.maximum(1, np.rint((end_H - start_H) * (rate_hz / 1e9))).astype(np.int64)
    stretch = np.repeat(np.arange(len(count)), count)
    place = np.arange(len(stretch)) - np.repeat(np.cumsum(count) - count, count)
    time = start_H[stretch] + place * (end_H - start_H)[stretch] // count[stretch]
    return time, stack_H[stretch]


def training_samples(
    timeline: StackTimeline,
    process_id: int,
    thread_id: int,
    autograd: Sequence[int],
    clock: WallClock,
    reader: StackReader,
) -> ThreadSamples:
    """Samples of the training thread that make sense.

    While its leaf waits in the autograd engine, the Python frames of the engine's own threads, if any, stand below it.
    """
    numbers = {(one.process_id, one.thread_id): number for number, one in enumerate(timeline.threads)}
    mine = numbers.get((process_id, thread_id))
    if mine is None:
        return ThreadSamples(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int8))
    monotonic, stack = restore_samples(*timeline.of_thread(mine), timeline.rate_hz)
    readable = _rooted(timeline, stack)
    monotonic = monotonic[readable]
    stacks = [timeline.stacks[number] for number in stack[readable].tolist()]
    for thread in autograd:
        if (process_id, thread) in numbers:
            stacks = _continue_below(stacks, monotonic, timeline, numbers[process_id, thread])
    identified = np.array([reader.identify(one, "training") for one in stacks], dtype=np.int64).reshape(-1, 2)
    return ThreadSamples(
        clock.from_monotonic(monotonic), identified[:, 0].astype(np.int32), identified[:, 1].astype(np.int8)
    )


def _rooted(timeline: StackTimeline, stack: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return which samples begin with the outermost frame that nearly all have: others were read while they changed."""
    numbers: dict[str, int] = {}
    of_stack = [numbers.setdefault(one[0], len(numbers)) for one in timeline.stacks]
    roots = np.array(of_stack, dtype=np.int64)[stack]
    counts = np.bincount(roots)
    if not len(stack) or counts.max() < _ROOT_SHARE * len(stack):
        return np.ones(len(stack), dtype=np.bool_)
    usual: NDArray[np.bool_] = roots == counts.argmax()
    return usual


def _continue_below(
    stacks: list[tuple[str, ...]], time: Times, timeline: StackTimeline, thread: int
) -> list[tuple[str, ...]]:
    stack, start, end = timeline.of_thread(thread)
    place = np.searchsorted(start, time, side="right") - 1
    continued = []
    for one, row, moment in zip(stacks, place.tolist(), time.tolist(), strict=True):
        if row >= 0 and moment < end[row] and is_engine_frame(one[-1]):
            continued.append(one + timeline.stacks[int(stack[row])])
        else:
            continued.append(one)
    return continued


# --- samples -> time ---


class Stratum(NamedTuple):
    """Time that was divided by the samples taken in it.

    Attributes:
        function: Functions of the samples. int32 [n].
        length_ns: The time.
    """

    function: NDArray[np.int32]
    length_ns: int


class PythonCells(NamedTuple):
    """Time that counted samples stand for.

    Attributes:
        hooks: Python inside operators that wrap others, such as hooks of the backward pass; comes before the wrapper.
        others: All other Python.
        strata: What was divided how; its parts do not overlap.
    """

    hooks: Layer
    others: Layer
    strata: tuple[Stratum, ...]


def spread_samples(
    samples: ThreadSamples, busy: tuple[Times, Times], wrappers: Layer, window: tuple[int, int], rate_hz: float
) -> PythonCells:
    """Give the time that higher classes leave to the nearest sample taken in it.

    The own time of wrapping operators is divided apart, for each wrapper by the samples taken in it: short hooks would
    otherwise lose to the wrapper all the runs that no sample hit. Where most of its samples show a hook, a wrapper has
    no time of its own: it takes microseconds without one, and a sampler on a busy host is off by milliseconds now and
    then. A wrapper in which no hook was sampled keeps its time.

    Args:
        samples: Of the training thread.
        busy: When something of a higher class ran; disjoint, in order.
        wrappers: Own time of operators that wrap others.
        window: Start and end.
        rate_hz: Samples per second.
    """
    time = samples.time_ns
    inner = (time >= window[0]) & (time < window[1])
    free = inner & ~inside(time, *busy)
    place = find_interval(time, wrappers.start, wrappers.end)
    plain = np.flatnonzero(free & (place < 0))
    chosen = plain if len(plain) else np.flatnonzero(inner)
    near = _reach(time, rate_hz)
    others = _clipped(_cells(samples, chosen, window), near, window)
    covered = unite(np.concatenate((busy[0], wrappers.start)), np.concatenate((busy[1], wrappers.end)))
    left = window[1] - window[0] - _overlap(covered, (np.array(window[:1]), np.array(window[1:])))
    strata = [Stratum(samples.function[plain], left)]
    hooks = []
    caught = np.flatnonzero(free & (place >= 0))
    wrapper = wrappers.function[place[caught]]
    for number in np.unique(wrapper[samples.kind[caught] >= HOOK]).tolist():
        own = wrappers.where(wrappers.function == number)
        taken = caught[wrapper == number]
        hooks.append(_hook_time(samples, taken, own, window))
        strata.append(_hook_stratum(samples, taken, own, busy))
    return PythonCells(_in_order(hooks), others, tuple(strata))


def _hook_time(samples: ThreadSamples, taken: NDArray[np.int64], own: Layer, window: tuple[int, int]) -> Layer:
    """Give the parts of wrappers' own time to the nearest samples of Python; all of it if most samples are Python."""
    is_hook = samples.kind[taken] >= HOOK
    cells = _cells(samples, taken[is_hook] if is_hook.mean() > _MOST else taken, window, HOOK)
    edges = distinct(np.concatenate((own.start, own.end, cells.start, cells.end)))
    place = find_interval(edges[:-1], cells.start, cells.end)
    both = inside(edges[:-1], own.start, own.end) & (place >= 0)
    return stretches(edges[:-1][both], edges[1:][both], cells.function[place[both]])


def _hook_stratum(samples: ThreadSamples, taken: NDArray[np.int64], own: Layer, busy: tuple[Times, Times]) -> Stratum:
    spans = (own.start, own.end)
    hooks = taken[samples.kind[taken] >= HOOK]
    function = np.concatenate((samples.function[hooks], np.full(len(taken) - len(hooks), own.function[0])))
    return Stratum(function.astype(np.int32), int((own.end - own.start).sum()) - _overlap(busy, spans))


def _overlap(first: tuple[Times, Times], second: tuple[Times, Times]) -> int:
    edges = distinct(np.concatenate((*first, *second)))
    both = inside(edges[:-1], *first) & inside(edges[:-1], *second)
    return int(np.diff(edges)[both].sum())


def _cells(
    samples: ThreadSamples, chosen: NDArray[np.int64], window: tuple[int, int], least_kind: int = PLAIN
) -> Layer:
    """The time nearest to each chosen sample, within the window; of hooks only if asked."""
    if not len(chosen):
        return empty_layer()
    moment = samples.time_ns[chosen]
    middle = moment[:-1] + (moment[1:] - moment[:-1]) // 2
    start = np.concatenate(([window[0]], middle)).astype(np.int64)
    end = np.concatenate((middle, [window[1]])).astype(np.int64)
    keep = start < end
    keep &= samples.kind[chosen] >= least_kind
    return stretches(start[keep], end[keep], samples.function[chosen][keep])


def _in_order(layers: Sequence[Layer]) -> Layer:
    """Layers that do not overlap as one."""
    if not layers:
        return empty_layer()
    start, end, function, execution = map(np.concatenate, zip(*layers, strict=True))
    order = np.argsort(start, kind="stable")
    return Layer(start[order], end[order], function[order], execution[order])


def _reach(time: Times, rate_hz: float) -> tuple[Times, Times]:
    """Unite the stretches of time near some sample."""
    reach = max(_LEAST_REACH_NS, round(_REACH_PERIODS * 1e9 / rate_hz))
    return unite(time - reach, time + reach)


def _clipped(cells: Layer, to: tuple[Times, Times], window: tuple[int, int]) -> Layer:
    near = unite(np.maximum(to[0], window[0]), np.minimum(to[1], window[1]))
    if len(near[0]) == 1 and near[0][0] <= window[0] and near[1][0] >= window[1]:
        return cells
    cuts = distinct(np.concatenate((window, *near)).astype(np.int64))
    painted = paint([cells], cuts)
    return painted.where((painted.function >= 0) & inside(painted.start, *near))


def sample_runs(samples: ThreadSamples, window: tuple[int, int], rate_hz: float) -> Durations:
    """Runs of equal functions; each sample stands for half the way to its neighbours, at most ten periods."""
    inner = (samples.time_ns >= window[0]) & (samples.time_ns < window[1])
    time, function = samples.time_ns[inner], samples.function[inner]
    if not len(time):
        return without_rows(function, time)
    limit = round(_REACH_PERIODS * 1e9 / rate_hz)
    middle = time[:-1] + (time[1:] - time[:-1]) // 2
    low = np.maximum(np.concatenate(([window[0]], middle)), time - limit)
    high = np.minimum(np.concatenate((middle, [window[1]])), time + limit)
    begins = np.concatenate(([True], function[1:] != function[:-1]))
    run = np.cumsum(begins) - 1
    length = np.bincount(run, weights=(high - low).astype(np.float64)).astype(np.int64)
    return without_rows(function[begins], length)


def other_threads(
    timeline: StackTimeline,
    process_id: int,
    training_thread: int,
    autograd: Sequence[int],
    clock: WallClock,
    window: tuple[int, int],
    reader: StackReader,
) -> tuple[list[Durations], list[OtherThread], int]:
    """Runs on background threads and in children: never critical, kept to explain waits; and their samples.

    Also return how many of the samples lie in the window.
    """
    loaders = _loader_processes(timeline)
    runs: list[Durations] = []
    threads: list[OtherThread] = []
    used = 0
    for number, thread in enumerate(timeline.threads):
        if thread.process_id == process_id and thread.thread_id in (training_thread, *autograd):
            continue
        role: ThreadRole = "loader" if thread.process_id in loaders else "child"
        role = "background" if thread.process_id == process_id else role
        monotonic, stack = restore_samples(*timeline.of_thread(number), timeline.rate_hz)
        identified = [reader.identify(timeline.stacks[one], role)[0] for one in stack.tolist()]
        time = clock.from_monotonic(monotonic)
        function = np.array(identified, dtype=np.int32)
        samples = ThreadSamples(time, function, np.zeros(len(time), dtype=np.int8))
        used += samples.count_in(window)
        runs.append(sample_runs(samples, window, timeline.rate_hz))
        threads.append(OtherThread(thread.process_id, thread.thread_id, role == "loader", samples))
    return runs, threads, used


def _loader_processes(timeline: StackTimeline) -> set[int]:
    """Processes that were seen in torch's loader loop; other children may be anything."""
    looping = [any(frame.startswith(_LOADER_LOOP) for frame in stack) for stack in timeline.stacks]
    threads = np.unique(timeline.thread[np.array(looping, dtype=np.bool_)[timeline.stack]]) if looping else ()
    return {timeline.threads[int(number)].process_id for number in threads}
