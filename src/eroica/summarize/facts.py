"""Tell facts of a window's host from hardware channels: load, other processes, traffic, and channels for pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.hardware.store import Samples, Series
from eroica.model.pattern import LinkUse, Neighbor
from eroica.model.window import Capture
from eroica.summarize.sweep import Times
from eroica.summarize.utilization import find_resources, of_device, own_device

#: A record takes some 100 bytes on the wire.
MOST_NEIGHBORS = 8
#: Cores, and share of a device's time, from which a process is worth a record. Memory on a device always is.
LEAST_CORES = 0.05
_LEAST_UTILIZATION = 0.01
_LONGEST_NAME = 64

Window = tuple[int, int]
#: A record takes some 60 bytes on the wire.
_MOST = 16
_OF_A_GPU = ("gpu_utilization", "gpu_memory_utilization", "gpu_power")


def host_facts(capture: Capture, samples: Samples | None) -> dict[str, float]:
    """Measure how the training thread was held up, and the size and load of its host; only what was sampled.

    Returns:
        - "run_queue_wait", "stopped" and "throttled": fractions of the window.
        - "cpu_count": cores of the host; "host_busy", "steal" (given to others by the hypervisor): fractions of them.
        - "cores_worker" (this worker and its loader processes), "cores_job" (all processes of the job on this host),
          "cores_outside" (visible processes that are neither the job's nor Eroica's), "cores_unseen" (the rest): cores.
        - "gpu_sm_clock": mean fraction of the highest clock of the worker's own device.
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
        "gpu_sm_clock": _mean(of_device(samples.named("gpu_sm_clock"), capture.worker), window),
    }
    cores = len(samples.devices("cpu_host"))
    if cores:
        facts["cpu_count"] = float(cores)
    facts |= _cores_used(capture, samples, window, facts["host_busy"] * cores)
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


def find_neighbors(capture: Capture, samples: Samples | None) -> tuple[Neighbor, ...]:
    """Processes that belong neither to the job nor to Eroica, those on the worker's device first, then the heaviest.

    Args:
        capture: Says which worker and when.
        samples: Hardware channels, None if there are none.
    """
    if samples is None:
        return ()
    window = (capture.boundaries_ns[0], capture.boundaries_ns[-1])
    found: dict[int, Neighbor] = {}
    for device in samples.devices("neighbor_cpu"):
        pid, _, name = device.partition("/")
        cores = _rounded(_over_window(samples.find("neighbor_cpu", device), window))
        if cores >= LEAST_CORES:
            found[int(pid)] = Neighbor(name=name[:_LONGEST_NAME], pid=int(pid), cpu_cores=cores)
    for one in _on_device(capture, samples, window):
        here = found.get(one.pid, one)
        found[one.pid] = msgspec.structs.replace(here, device=one.device, device_utilization=one.device_utilization)
    ranked = sorted(found.values(), key=lambda one: (not one.device, -one.device_utilization, -one.cpu_cores, one.pid))
    return tuple(ranked[:MOST_NEIGHBORS])


def cores_used(samples: Samples, window: Window) -> tuple[float, float, float]:
    """Cores that the job's processes used, all other processes, and Eroica's; NaN where they were not surveyed."""
    job, outside, ours = (samples.find("survey_cpu", whose) for whose in ("job", "outside", "ours"))
    return _over_window(job, window), _over_window(outside, window), _over_window(ours, window)


def _on_device(capture: Capture, samples: Samples, window: Window) -> list[Neighbor]:
    """Find neighbors on the worker's own device.

    A device's name is "gpu<index>/<uuid>/<pid>/<name>".
    """
    parts = [device.split("/", 3) for device in samples.devices("neighbor_gpu")]
    listed = [(part[0], part[1], part) for part in parts if len(part) == 4 and part[2].isdigit()]
    devices = sorted({(name, uuid) for name, uuid, _ in listed})
    at = own_device(devices, capture.worker)
    mine = [part for name, uuid, part in listed if at is not None and (name, uuid) == devices[at]]
    uses = [_over_window(samples.find("neighbor_gpu", "/".join(part)), window) for part in mine]
    return [
        Neighbor(
            name=part[3][:_LONGEST_NAME],
            pid=int(part[2]),
            device=capture.worker.device,
            device_utilization=_rounded(use) if use >= _LEAST_UTILIZATION else 0.0,
        )
        for part, use in zip(mine, uses, strict=True)
    ]


def _over_window(series: Series | None, window: Window) -> float:
    """Mean over the whole window; where the series does not reach, it counts as nothing. NaN without a series."""
    if series is None:
        return math.nan
    start, end = max(window[0], series.start_ns), min(window[1], int(series.t_ns[-1]))
    if end <= start:
        return 0.0
    return float(series.mean_over(start, end)) * (end - start) / max(window[1] - window[0], 1)


def _rounded(value: float) -> float:
    return 0.0 if math.isnan(value) else round(value, 3)


def link_uses(capture: Capture, samples: Samples | None) -> tuple[LinkUse, ...]:
    """Measure this worker's traffic with each address, those with most bytes first.

    Args:
        capture: Says which worker and when.
        samples: Hardware channels, None if there are none.
    """
    if samples is None:
        return ()
    prefix = f"{capture.worker.pid}/"
    devices = [device for device in samples.devices("link_sent") if device.startswith(prefix)]
    window = (capture.boundaries_ns[0], capture.boundaries_ns[-1])
    found = [_use(samples, device, window) for device in devices if device.count("/") == 2]
    moved = [one for one in found if one.sent_bytes + one.received_bytes > 0 or one.busy_s > 0]
    return tuple(sorted(moved, key=lambda one: -(one.sent_bytes + one.received_bytes))[:_MOST])


def _use(samples: Samples, device: str, window: tuple[int, int]) -> LinkUse:
    seconds = (window[1] - window[0]) * 1e-9

    def mean(name: str) -> float:
        series = samples.find(name, device)
        value = float(series.mean_over(*window)) if series is not None else 0.0
        return value if value > 0 else 0.0  # NaN where the channel begins after the window

    busy = mean("link_busy")
    _, local, remote = device.split("/")
    return LinkUse(
        local=local,
        remote=remote,
        sent_bytes=_short(mean("link_sent") * seconds),
        received_bytes=_short(mean("link_received") * seconds),
        busy_s=_short(busy * seconds),
        queued_bytes=_short(mean("link_queued")),
        retransmits=_short(mean("link_retransmits") * seconds),
        rtt_s=_short(mean("link_busy_rtt") / busy) if busy else 0.0,
    )


def _short(value: float) -> float:
    return float(f"{value:.4g}")


class ChannelSeries(NamedTuple):
    """One hardware channel over a window, in bins of equal length. B of them.

    Attributes:
        name: Of the channel.
        per_s: Distinct values a second that were really measured; lines are not to be drawn finer.
        start_ns: Start of each bin after the start of the window, rising. int64 [B].
        mean: Mean utilization in each bin, 0-1; NaN where nothing was measured. float64 [B].
        highest: Highest value in each bin, 0-1. float64 [B].
    """

    name: str
    per_s: float
    start_ns: Times
    mean: NDArray[np.float64]
    highest: NDArray[np.float64]


def channel_series(capture: Capture, samples: Samples | None, most: int) -> list[ChannelSeries]:
    """Channels of a worker and its host that are fractions of something, the most telling first.

    Args:
        capture: Of the worker.
        samples: Hardware channels, None if there are none.
        most: Bins of a channel.
    """
    if samples is None:
        return []
    window = (capture.boundaries_ns[0], capture.boundaries_ns[-1])
    resources = find_resources(capture, samples)
    found = [[resource.series] for resource in resources.values()]
    found.append(list(samples.named("cpu_host")))
    thread = f"{capture.worker.pid}/{capture.training_thread_id}"
    device = resources["device"].series.channel.device if "device" in resources else ""
    others = [samples.find("run_queue", thread), *(samples.find(name, device) for name in _OF_A_GPU)]
    found += [[one] for one in others if one is not None and one.channel.unit == "fraction"]
    return [one for series in found if series and (one := _binned(series, window, most)) is not None]


def _binned(series: Sequence[Series], window: tuple[int, int], most: int) -> ChannelSeries | None:
    """The mean over several series of one name, and the highest value of any of them; None where nothing was seen."""
    channel = series[0].channel
    per_s = min(channel.rate_hz, 1e9 / max(channel.resolution_ns, 1))
    bins = int(min(most, max((window[1] - window[0]) / 1e9 * per_s, 1)))
    edges = np.linspace(window[0], window[1], bins + 1).astype(np.int64)
    low, high = edges[:-1], edges[1:]
    means = np.stack([one.mean_over(low, high) for one in series])
    count = (~np.isnan(means)).sum(axis=0)
    if not count.any():
        return None
    mean = np.where(count > 0, np.nansum(means, axis=0) / np.maximum(count, 1), np.nan)
    highest = np.fmax.reduce([_highest(one, low, high) for one in series])
    clipped = (np.clip(value, 0.0, 1.0) for value in (mean, np.fmax(highest, mean)))
    return ChannelSeries(channel.name, per_s, low - window[0], *clipped)


def _highest(series: Series, low: Times, high: Times) -> NDArray[np.float64]:
    """The highest value that holds at some moment of each bin; NaN where there is none."""
    first = np.searchsorted(series.t_ns, low, side="right")
    after = np.searchsorted(series.t_ns, high, side="left") + 1
    after = np.minimum(after, len(series.t_ns))
    padded = np.append(series.value, np.nan)
    bounds = np.stack((first, np.maximum(after, first + 1)), axis=1).ravel()
    highest: NDArray[np.float64] = np.fmax.reduceat(np.append(padded, np.nan), bounds)[::2]
    return np.where((after > first) & (high > series.start_ns), highest, np.nan)
