"""Other processes of the host and of the worker's device over the window, from the sampler's survey."""

from __future__ import annotations

import math

import msgspec

from eroica.hardware.store import Samples, Series
from eroica.model.pattern import Neighbor
from eroica.model.window import Capture
from eroica.summarize.utilization import own_device

#: A record takes some 100 bytes on the wire.
MOST_NEIGHBORS = 8
#: Cores, share of the host's memory, and of a device's time, from which a process is worth a record. Memory on a device
#: always is.
LEAST_CORES = 0.05
LEAST_MEMORY = 0.1
_LEAST_UTILIZATION = 0.01
_LONGEST_NAME = 64

Window = tuple[int, int]


def find_neighbors(capture: Capture, samples: Samples | None) -> tuple[Neighbor, ...]:
    """Processes that belong neither to the job nor to Eroica, those on the worker's device first, then the heaviest.

    Args:
        capture: Says which worker and when.
        samples: Hardware channels, None if there are none.
    """
    if samples is None:
        return ()
    window = (capture.boundaries_ns[0], capture.boundaries_ns[-1])
    found = {one.pid: one for one in (_on_host(samples, device, window) for device in samples.devices("neighbor_cpu"))}
    memory, cores = _memory_bytes(samples), max(len(samples.devices("cpu_host")), 1)

    def share(one: Neighbor) -> float:
        return max(one.cpu_cores / cores, one.memory_bytes / memory)

    found = {
        pid: one
        for pid, one in found.items()
        if one.cpu_cores >= LEAST_CORES or one.memory_bytes >= LEAST_MEMORY * memory
    }
    for one in _on_device(capture, samples, window):
        before = found.get(one.pid)
        found[one.pid] = one if before is None else _with_device(before, one)
    ranked = sorted(found.values(), key=lambda one: (not one.device, -one.device_utilization, -share(one), one.pid))
    return tuple(ranked[:MOST_NEIGHBORS])


def cores_used(samples: Samples, window: Window) -> tuple[float, float, float]:
    """Cores that the job's processes used, all other processes, and Eroica's; NaN where they were not surveyed."""
    job, outside, ours = (samples.find("survey_cpu", whose) for whose in ("job", "outside", "ours"))
    return _over_window(job, window), _over_window(outside, window), _over_window(ours, window)


def _memory_bytes(samples: Samples) -> float:
    """Memory of the host; infinite where it was not sampled."""
    free = samples.find("memory_available", "host")
    return free.channel.capacity if free is not None and free.channel.capacity > 0 else math.inf


def _on_host(samples: Samples, device: str, window: Window) -> Neighbor:
    pid, _, name = device.partition("/")
    memory, age = samples.find("neighbor_memory", device), samples.find("neighbor_age", device)
    return Neighbor(
        name=name[:_LONGEST_NAME],
        pid=int(pid),
        cpu_cores=_rounded(_over_window(samples.find("neighbor_cpu", device), window)),
        run_queue_wait=min(_rounded(_over_window(samples.find("neighbor_wait", device), window)), 1.0),
        memory_bytes=int(memory.value.max()) if memory is not None else 0,
        age_s=_age(age, window),
    )


def _age(series: Series | None, window: Window) -> float:
    """At the window's end; how far the last look lies from it is known."""
    if series is None:
        return 0.0
    return max(0.0, round(float(series.value[-1]) + (window[1] - int(series.t_ns[-1])) * 1e-9, 1))


def _on_device(capture: Capture, samples: Samples, window: Window) -> list[Neighbor]:
    """Find neighbors on the worker's own device.

    A device's name is "gpu<index>/<uuid>/<pid>/<name>".
    """
    parts = [device.split("/", 3) for device in samples.devices("neighbor_gpu_memory")]
    listed = [(part[0], part[1], part) for part in parts if len(part) == 4 and part[2].isdigit()]
    devices = sorted({(name, uuid) for name, uuid, _ in listed})
    at = own_device(devices, capture.worker)
    mine = [part for name, uuid, part in listed if at is not None and (name, uuid) == devices[at]]
    return [_device_use(samples, part, capture.worker.device, window) for part in mine]


def _device_use(samples: Samples, part: list[str], device: str, window: Window) -> Neighbor:
    name = "/".join(part)
    busy, held = samples.find("neighbor_gpu", name), samples.find("neighbor_gpu_memory", name)
    utilization = _over_window(busy, window)
    return Neighbor(
        name=part[3][:_LONGEST_NAME],
        pid=int(part[2]),
        device=device,
        device_bytes=int(held.value[-1]) if held is not None else 0,
        device_utilization=_rounded(utilization) if utilization >= _LEAST_UTILIZATION else 0.0,
    )


def _with_device(one: Neighbor, there: Neighbor) -> Neighbor:
    return msgspec.structs.replace(
        one, device=there.device, device_bytes=there.device_bytes, device_utilization=there.device_utilization
    )


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
