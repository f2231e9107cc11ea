"""Facts of the host in the window, from hardware channels."""

from __future__ import annotations

import math

from eroica.hardware.store import Samples, Series
from eroica.model.window import Capture
from eroica.summarize.neighbors import cores_used
from eroica.summarize.utilization import of_device

#: NVML's reasons for a lower clock that are nobody's wish: the hardware slows itself down, heat, a power brake.
_SLOWED_DOWN = 0x08 | 0x20 | 0x40 | 0x80
_POWER_CAP = 0x04


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
    """Measure how the training thread was held up, and the size and load of its host; only what was sampled.

    Returns:
        - "run_queue_wait", "stopped" and "throttled": fractions of the window.
        - "cpu_count": cores of the host; "host_busy", "steal" (given to others by the hypervisor): fractions of them.
        - "cpu_pressure", "memory_pressure", "io_pressure": fraction of the window in which a task lacked it.
        - "memory_available": fraction of "memory_bytes".
        - "cores_worker" (this worker and its loader processes), "cores_job" (all processes of the job on this host),
          "cores_outside" (visible processes that are neither the job's nor Eroica's), "cores_unseen" (the rest): cores.
        - "gpu_sm_clock": mean fraction of the highest clock of the worker's own device.
        - "gpu_slowed", "gpu_power_capped": fractions of the window in which heat or the hardware itself, and the power
          limit, held that clock back.
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
        "steal": _mean_of_all(samples.named("cpu_steal"), window),
        "memory_available": _mean(samples.find("memory_available", "host"), window),
        **{f"{kind}_pressure": _mean(samples.find("pressure", kind), window) for kind in ("cpu", "memory", "io")},
    }
    facts |= _device_facts(capture, samples, window)
    cores = len(samples.devices("cpu_host"))
    if cores:
        facts["cpu_count"] = float(cores)
    facts |= _cores_used(capture, samples, window, facts["host_busy"] * cores)
    memory = samples.find("memory_available", "host")
    if memory is not None:
        facts["memory_bytes"] = memory.channel.capacity
    return {name: round(value, 4) for name, value in facts.items() if math.isfinite(value)}


def _cores_used(capture: Capture, samples: Samples, window: tuple[int, int], busy: float) -> dict[str, float]:
    """Divide the host's busy cores among worker, job, other processes, and the rest that no visible process used.

    The rest is interrupts, or processes hidden from us.
    """
    job, outside, ours = cores_used(samples, window)
    mine = [_mean(samples.find("cpu_process", str(pid)), window) for pid in (capture.worker.pid, *capture.loader_pids)]
    known = [value for value in mine if not math.isnan(value)]
    return {
        "cores_worker": sum(known) if known else math.nan,
        "cores_job": job,
        "cores_outside": outside,
        "cores_unseen": max(busy - job - outside - ours, 0.0),
    }


def _device_facts(capture: Capture, samples: Samples, window: tuple[int, int]) -> dict[str, float]:
    """Clock and throttling of the worker's own device, as its driver counts them."""
    clock = of_device(samples.named("gpu_sm_clock"), capture.worker)
    reasons = of_device(samples.named("gpu_throttle"), capture.worker)
    return {
        "gpu_sm_clock": _mean(clock, window),
        "gpu_slowed": _with_bits(reasons, _SLOWED_DOWN, window),
        "gpu_power_capped": _with_bits(reasons, _POWER_CAP, window),
    }


def _with_bits(series: Series | None, bits: int, window: tuple[int, int]) -> float:
    return math.nan if series is None else float(series.share_with(bits, *window))


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
