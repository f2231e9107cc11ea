"""Measure threads by what the kernel tells: processor use, waits for disks, and moments without any wait for a thread.

A loader child or a prefetching thread is never critical, but its processor use explains why the training thread waits.
Near no use of its core it waits for something, near full use it computes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from eroica.hardware.cpu import ASLEEP, HIDDEN, NAPPING
from eroica.hardware.store import Samples, Series
from eroica.model.window import Capture
from eroica.summarize.clock import WallClock
from eroica.summarize.sampled import OtherThread
from eroica.summarize.utilization import Use

_AWAKE = [float(code) for code in (*b"RD", NAPPING)]
_SLEEPS = [float(code) for code in (ASLEEP, NAPPING, HIDDEN)]
#: States that end so much earlier than the window, or begin so much later, say too little of it.
_MISSED = 0.05
_FEWEST = 2
#: Or where they are so many times as rare as stacks.
_RARER = 2.0
#: Nor do they where this share of its sleep is hidden.
_MOSTLY_HIDDEN = 0.5


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
