"""Measure how much of its resource a function used while it was critical: μ and σ (EROICA, equations 4 and 5).

The resource follows the function. For operators and Python it is the training thread's CPU, for device kernels the
GPU's clock. For collectives it is the traffic that the worker's own GPU sends over PCIe (the paper's charts show the
same), else a network interface with a stated capacity, which all workers of a host share. Memory operations have none
(the paper is silent).

A channel renews itself every few milliseconds and most executions are shorter. So μ weighs the channel by time over all
critical stretches, which for short executions is equation 4 with L(e) = e. Algorithm 1 picks the critical duration
of executions that hold at least four values of the channel, the longest 1,000 of a worker; σ comes from these alone,
and is 0 where there are none. An execution in which the resource was not used at all (S = 0) counts whole, with 0.

Loader processes and background threads are never critical; their processor use explains why the training thread waits.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eroica.hardware.cpu import ASLEEP, HIDDEN, NAPPING
from eroica.hardware.store import Samples, Series
from eroica.model.pattern import ASIDE, FunctionKey
from eroica.model.window import Capture
from eroica.model.worker import Worker
from eroica.summarize.clock import WallClock
from eroica.summarize.sampled import OtherThread
from eroica.summarize.sweep import Layer

_LEAST_VALUES = 4
#: Share of its use that a critical duration holds (EROICA, Algorithm 1).
_CRITICAL_SHARE = 0.8
_MOST_EXECUTIONS = 1000
_AWAKE = [float(code) for code in (*b"RD", NAPPING)]
_SLEEPS = [float(code) for code in (ASLEEP, NAPPING, HIDDEN)]
#: States that end so much earlier than the window, or begin so much later, say too little of it.
_MISSED = 0.05
_FEWEST = 2
#: Or where they are so many times as rare as stacks.
_RARER = 2.0
#: Nor do they where this share of its sleep is hidden.
_MOSTLY_HIDDEN = 0.5


@dataclass(frozen=True)
class Resource:
    """A channel under the name that rows show."""

    name: str
    series: Series


@dataclass(frozen=True)
class Use:
    """Utilization of one function.

    Attributes:
        resource: Name, empty if none was sampled.
        mean: μ, 0–1.
        deviation: σ, 0–1.
        samples: Distinct values of the channel behind them.
    """

    resource: str = ""
    mean: float = 0.0
    deviation: float = 0.0
    samples: int = 0


def find_resources(capture: Capture, samples: Samples | None) -> dict[str, Resource]:
    """Resource of each class of function: "training", "collective", "device"; missing where nothing bounds it."""
    if samples is None:
        return {}
    worker = capture.worker
    found = {
        "training": _resource("cpu", samples.find("cpu", f"{worker.pid}/{capture.training_thread_id}")),
        "collective": _resource("pcie", of_device(samples.named("gpu_pcie_tx"), worker))
        or _resource("nic", _busiest([*samples.named("rdma"), *samples.named("net")])),
        "device": _resource("sm", of_device(samples.named("gpu_sm_clock"), worker)),
    }
    return {role: resource for role, resource in found.items() if resource is not None}


def _resource(name: str, series: Series | None) -> Resource | None:
    return Resource(name, series) if series is not None and series.channel.unit == "fraction" else None


def _busiest(candidates: Sequence[Series]) -> Series | None:
    """The sending side with a stated capacity that moved most; the loopback interface never states one."""
    fit = [one for one in candidates if one.channel.unit == "fraction" and one.channel.device.endswith("/tx")]
    span = [(one, float(one.mean_over(one.t_ns[0], one.t_ns[-1]))) for one in fit if len(one.t_ns) > 1]
    return max(span, key=lambda pair: pair[1])[0] if span else None


def of_device(candidates: Sequence[Series], worker: Worker) -> Series | None:
    """Choose from one channel's series that of the worker's own device; None where there is none."""
    named = [one.channel.device.partition("/") for one in candidates]
    at = own_device([(name, uuid) for name, _, uuid in named], worker)
    return None if at is None else candidates[at]


def own_device(devices: Sequence[tuple[str, str]], worker: Worker) -> int | None:
    """Find the worker's device among (name, uuid): by its uuid where both sides know it, else by index."""
    kind, _, index = worker.device.partition(":")
    if kind != "cuda":
        return None
    known = {uuid: at for at, (_, uuid) in enumerate(devices) if uuid}
    if worker.device_uuid and known and ":" not in worker.device_uuid:  # torch < 2.4 tells a PCI address instead
        return known.get(worker.device_uuid)
    return next((at for at, (name, _) in enumerate(devices) if name == f"gpu{index or 0}"), None)


def role_of(key: FunctionKey) -> str:
    """Tell the class of resource that bounds a function, "" for none."""
    if key.thread in ASIDE or key.thread == "autograd" or key.kind in ("memory", "other"):
        return ""
    if key.kind == "collective":
        return "collective"
    return "device" if key.thread == "device" else "training"


def measure_use(
    keys: Sequence[FunctionKey], segments: Layer, resources: dict[str, Resource], clock: WallClock
) -> list[Use]:
    """Utilization of every function over its critical time.

    Args:
        keys: Functions, F of them.
        segments: The critical path.
        resources: From `find_resources`.
        clock: Samples are on CLOCK_MONOTONIC.
    """
    uses = [Use() for _ in keys]
    roles = np.array([role_of(key) for key in keys] or [""])
    for role, resource in resources.items():
        mine = segments.where((segments.function >= 0) & (roles[np.maximum(segments.function, 0)] == role))
        if len(mine.start):
            _measure_role(mine, resource, clock, uses)
    return uses


def _measure_role(mine: Layer, resource: Resource, clock: WallClock, uses: list[Use]) -> None:
    start, end = clock.to_monotonic(mine.start), clock.to_monotonic(mine.end)
    mean = resource.series.mean_over(start, end)
    weight = np.where(np.isnan(mean), 0.0, (end - start).astype(np.float64))
    value = np.nan_to_num(mean)
    inside, function, (length, part_mean, deviation) = _long_executions(mine, start, end, resource)
    weight[inside] = 0.0

    def summed(functions: NDArray[np.int32], weights: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.bincount(functions, weights=weights, minlength=len(uses)).astype(np.float64)

    spread_weight = summed(function, length)
    sums = summed(mine.function, weight * value) + summed(function, length * part_mean)
    weights = summed(mine.function, weight) + spread_weight
    spread = summed(function, length * deviation) / np.where(spread_weight > 0, spread_weight, 1.0)
    for number in np.flatnonzero(weights > 0).tolist():
        uses[number] = Use(
            resource=resource.name,
            mean=float(np.clip(sums[number] / weights[number], 0.0, 1.0)),
            deviation=float(np.clip(spread[number], 0.0, 1.0)),
            samples=int(weights[number] / max(resource.series.channel.resolution_ns, 1)),
        )


def _long_executions(
    mine: Layer, start: NDArray[np.int64], end: NDArray[np.int64], resource: Resource
) -> tuple[NDArray[np.bool_], NDArray[np.int32], NDArray[np.float64]]:
    """Find unbroken critical stretches of one execution that hold at least four values of the channel.

    Returns:
        Segments that belong to one of them, bool [K]; the function of each, int32 [E]; length in nanoseconds, mean and
        standard deviation over its L(e), float64 [3, E].
    """
    begins = np.ones(len(start), dtype=np.bool_)
    begins[1:] = (mine.start[1:] != mine.end[:-1]) | (mine.function[1:] != mine.function[:-1])
    begins[1:] |= mine.execution[1:] != mine.execution[:-1]
    run = np.cumsum(begins) - 1
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(start)) - 1
    length = end[last] - start[first]
    least = _LEAST_VALUES * max(resource.series.channel.resolution_ns, 1)
    chosen = np.flatnonzero(length >= least)
    chosen = np.sort(chosen[np.argsort(-length[chosen], kind="stable")][:_MOST_EXECUTIONS])
    parts = {one: _critical_part(resource, int(start[first[one]]), int(end[last[one]])) for one in chosen.tolist()}
    kept = [one for one, part in parts.items() if part is not None]
    table = np.array([parts[one] for one in kept], dtype=np.float64).reshape(-1, 3)
    return np.isin(run, kept), mine.function[first[kept]], table.T


def _critical_part(resource: Resource, start_ns: int, end_ns: int) -> tuple[float, float, float] | None:
    """Length, mean and standard deviation over L(e), on a grid of the channel's resolution; None without values."""
    step = max(resource.series.channel.resolution_ns, 1)
    edges = np.arange(start_ns, end_ns + 1, step, dtype=np.int64)
    value = resource.series.mean_over(edges[:-1], edges[1:])
    if np.isnan(value).any():
        return None
    value = np.clip(value, 0.0, None)
    part = critical_duration(value)
    if part is None:
        return float(end_ns - start_ns), 0.0, 0.0
    chosen = value[part[0] : part[1]]
    return float(len(chosen) * step), float(chosen.mean()), float(chosen.std())


def critical_duration(utilization_n: NDArray[np.float64]) -> tuple[int, int] | None:
    """The interval that holds four fifths of all use with the shortest possible longest gap.

    Args:
        utilization_n: Samples over one execution, finite and not negative. float64 [n].

    Returns:
        First sample and the one after the last, without zeros at either end; None where nothing was used (or nothing
        was sampled), because then no interval is better than another.

    Source:
        EROICA, section 4.2, Algorithm 1. The paper searches the longest run of zeros allowed, g, by bisection, and says
        nothing of S = 0 and executions without a sample. For a share above 0.5 at most one of the pieces between longer
        gaps can hold it, so a linear pass decides each g: O(n log n). Only lengths of gaps that occur need trying.
    """
    used = np.flatnonzero(utilization_n > 0)
    if not len(used):
        return None
    before = np.concatenate(([0.0], np.cumsum(utilization_n)))
    needed = _CRITICAL_SHARE * before[-1] * (1.0 - 1e-12)
    gap = np.diff(used) - 1

    def heaviest(longest: int) -> tuple[int, int]:
        """The piece between longer gaps with the largest sum."""
        cut = gap > longest
        first = np.concatenate((used[:1], used[1:][cut]))
        last = np.concatenate((used[:-1][cut], used[-1:])) + 1
        at = int(np.argmax(before[last] - before[first]))
        return int(first[at]), int(last[at])

    def holds_enough(longest: int) -> bool:
        first, last = heaviest(longest)
        return bool(before[last] - before[first] >= needed)

    lengths = np.unique(np.append(0, gap)).tolist()
    return heaviest(lengths[bisect_left(lengths, True, key=holds_enough)])


def measure_threads(
    threads: Sequence[OtherThread], samples: Samples | None, clock: WallClock, rate_hz: float, uses: list[Use]
) -> None:
    """Fill in the processor use of functions that only other threads ran: the mean over the moments of their samples.

    Args:
        threads: All sampled threads but the training one.
        samples: Hardware channels; nothing happens without.
        clock: Channels are on CLOCK_MONOTONIC.
        rate_hz: Stack samples per second.
        uses: By function; those of functions with samples on these threads are replaced.
    """
    if samples is None:
        return
    half = round(0.5e9 / max(rate_hz, 1e-9))
    total, weight = np.zeros(len(uses)), np.zeros(len(uses))
    for thread in threads:
        series = samples.find("cpu", f"{thread.process_id}/{thread.thread_id}")
        if series is None or not len(thread.samples.time_ns):
            continue
        moment = clock.to_monotonic(thread.samples.time_ns)
        value = series.mean_over(moment - half, moment + half)
        known = ~np.isnan(value)
        function = thread.samples.function[known]
        total += np.bincount(function, weights=value[known], minlength=len(uses))
        weight += np.bincount(function, minlength=len(uses))
    for number in np.flatnonzero(weight > 0).tolist():
        mean = float(np.clip(total[number] / weight[number], 0.0, 1.0))
        uses[number] = Use(resource="cpu", mean=mean, deviation=0.0, samples=int(weight[number]))


def disk_facts(capture: Capture, samples: Samples | None, threads: Sequence[OtherThread]) -> dict[str, float]:
    """Measure how long threads waited uninterruptibly (state D): for a disk or a network file system.

    Returns:
        "disk_wait" of the training thread and "loader_disk_wait" summed over the main threads of the loader's
        processes, as fractions of the window; only what was seen at all.
    """
    if samples is None:
        return {}
    mine = [f"{capture.worker.pid}/{capture.training_thread_id}"]
    children = sorted({f"{one.process_id}/{one.process_id}" for one in threads if one.is_loader})
    facts = {
        "disk_wait": _share(capture, samples, mine),
        "loader_disk_wait": _share(capture, samples, children),
    }
    return {name: round(value, 4) for name, value in facts.items() if value > 0}


def awake_moments(capture: Capture, samples: Samples | None, rate_hz: float) -> NDArray[np.int64]:
    """Find moments at which the training thread ran, slept until a timer or a file wakes it, or waited for a disk.

    One such sample alone may be a thread that is just being woken, and counts for nothing.

    Args:
        capture: Names the thread, and the window.
        samples: Hardware channels.
        rate_hz: Stack samples per second: states that are much rarer tell less than these.

    Returns:
        CLOCK_MONOTONIC nanoseconds, rising. int64 [M]; none where states do not tell all of the window.
    """
    device = f"{capture.worker.pid}/{capture.training_thread_id}"
    series = samples.find("state", device) if samples is not None else None
    if series is None or not _tells_all(series, capture, 1e9 / rate_hz):
        return np.empty(0, dtype=np.int64)
    awake = np.isin(series.value, _AWAKE)
    beside = np.append(False, awake[:-1]) | np.append(awake[1:], False)
    moments: NDArray[np.int64] = series.t_ns[awake & beside]
    return moments


def _tells_all(series: Series, capture: Capture, period_ns: float) -> bool:
    """Return whether states cover the window as often as stacks do, and the kernel tells sleep from sleep."""
    start, end = capture.boundaries_ns[0], capture.boundaries_ns[-1]
    most_missed = _MISSED * (end - start)
    time = series.t_ns[(series.t_ns >= start - most_missed) & (series.t_ns <= end + most_missed)]
    if len(time) < _FEWEST or time[0] > start + most_missed or time[-1] < end - most_missed:
        return False
    asleep = int(np.isin(series.value, _SLEEPS).sum())
    hidden = int((series.value == HIDDEN).sum())
    return float(np.median(np.diff(time))) <= _RARER * period_ns and hidden <= _MOSTLY_HIDDEN * asleep


def _share(capture: Capture, samples: Samples, devices: Sequence[str]) -> float:
    series = [one for one in (samples.find("state", device) for device in devices) if one is not None]
    window = (capture.boundaries_ns[0], capture.boundaries_ns[-1])
    shares = [float(one.share_over(float(ord("D")), *window)) for one in series]
    known = [share for share in shares if not math.isnan(share)]
    return sum(known) if known else math.nan
