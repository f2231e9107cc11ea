"""Facts of the host in the window, from hardware channels."""

from __future__ import annotations

import math

from eroica.hardware.store import Samples, Series
from eroica.model.window import Capture


def channel_rates(capture: Capture, samples: Samples | None) -> dict[str, float]:
    """Distinct values per second of each channel of this worker and its host; the fastest device where it has many."""
    rates: dict[str, float] = {}
    if samples is None:
        return rates
    thread = f"{capture.worker.pid}/{capture.training_thread_id}"
    for one in samples.series:
        channel = one.channel
        mine = channel.device in (thread, str(capture.worker.pid)) or not channel.device.split("/")[0].isdigit()
        if mine:
            rates[channel.name] = round(max(rates.get(channel.name, 0.0), channel.rate_hz), 1)
    return rates


def host_facts(capture: Capture, samples: Samples | None) -> dict[str, float]:
    """What held the training thread, and the size and load of its host; only what was sampled.

    Returns:
        "run_queue_wait", "stopped" and "throttled" as fractions of the window, "cpu_count", "host_busy" as the mean
        fraction of all cores.
    """
    if samples is None:
        return {}
    window = (capture.boundaries_ns[0], capture.boundaries_ns[-1])
    thread = f"{capture.worker.pid}/{capture.training_thread_id}"
    facts = {
        "run_queue_wait": _mean(samples.find("run_queue", thread), window),
        "stopped": _stopped(samples.find("state", thread), window),
        "throttled": _mean(samples.find("throttled", str(capture.worker.pid)), window),
        "host_busy": _mean_of_all(samples.named("cpu_host"), window),
    }
    cores = len(samples.devices("cpu_host"))
    if cores:
        facts["cpu_count"] = float(cores)
    return {name: round(value, 4) for name, value in facts.items() if not math.isnan(value)}


def _mean(series: Series | None, window: tuple[int, int]) -> float:
    return math.nan if series is None else float(series.mean_over(*window))


def _stopped(series: Series | None, window: tuple[int, int]) -> float:
    """Fraction of samples in which the thread was stopped by a signal or a debugger."""
    if series is None:
        return math.nan
    return sum(float(series.share_over(float(ord(letter)), *window)) for letter in "Tt")


def _mean_of_all(series: tuple[Series, ...], window: tuple[int, int]) -> float:
    values = [value for value in (_mean(one, window) for one in series) if not math.isnan(value)]
    return sum(values) / len(values) if values else math.nan
