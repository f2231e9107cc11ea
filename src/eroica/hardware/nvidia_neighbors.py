"""Processes of others on NVIDIA devices: memory they hold there and their share of the device's time, through NVML."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

from eroica.errors import UnavailableError
from eroica.hardware.household import (
    Household,
    Process,
    arguments_of,
    display_name,
    hidden_because,
    parse_process,
    read_processes,
)
from eroica.hardware.nvidia import device_name, find_devices, load_nvml
from eroica.hardware.writer import Channel, SampleWriter

_MOST = 16
"""Processes followed on one device."""
#: Looks may cost half a percent of a core: the driver takes milliseconds for each device.
_SHARE_OF_CORE = 200


class Use(NamedTuple):
    """One process on one device: memory in bytes (0 if the driver does not say), share of the device's time, 0–1."""

    pid: int
    memory_bytes: int
    utilization: float


def device_uses(nvml: Any, handle: Any, since_us: int) -> list[Use]:
    """Processes that compute on a device.

    Args:
        nvml: The initialized `pynvml`.
        handle: Its handle of the device.
        since_us: Utilization counts from this moment on, microseconds since 1970, as NVML stamps its samples.

    Raises:
        NVMLError: The driver lists no processes of this device.
    """
    memory = {int(one.pid): int(one.usedGpuMemory or 0) for one in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    busy = _busy(nvml, handle, since_us)
    return [Use(pid, memory.get(pid, 0), busy.get(pid, 0.0)) for pid in sorted({*memory, *busy})]


def _busy(nvml: Any, handle: Any, since_us: int) -> dict[int, float]:
    """Mean share of the device's time of each process; empty where the driver has no samples or does not count."""
    try:
        samples = nvml.nvmlDeviceGetProcessUtilization(handle, since_us)
    except (nvml.NVMLError, AttributeError):
        return {}
    found: dict[int, list[float]] = {}
    for sample in samples:
        if int(sample.timeStamp) >= since_us:
            found.setdefault(int(sample.pid), []).append(min(int(sample.smUtil), 100) / 100)
    return {pid: sum(values) / len(values) for pid, values in found.items() if pid > 0}


class NvidiaNeighborProbe:
    """Processes on the devices that belong neither to the job nor to Eroica.

    Channels "neighbor_gpu" (share of the device's time) and "neighbor_gpu_memory" (bytes), device
    "gpu<index>/<uuid>/<pid>/<name>".

    Inside a container NVML may tell process ids of the host; a device's list counts there only if a process of the job
    is on it under the id that we know.

    Args:
        writer: Where to.
        household: Who belongs to the job and to Eroica.
        nvml: The initialized `pynvml`, default `load_nvml()`.

    Raises:
        UnavailableError: No library, no driver, or it lists the processes of no device.
    """

    period_ns = 1_000_000_000

    def __init__(self, writer: SampleWriter, household: Household, nvml: Any = None) -> None:
        self._nvml = nvml or load_nvml()
        self._writer = writer
        self._household = household
        self._foreign_ids = bool(hidden_because())
        self._channels: dict[tuple[int, int], tuple[int, int] | None] = {}
        self._since_us = time.time_ns() // 1000
        self._due_ns = 0
        self._devices: list[tuple[Any, str]] = []
        devices, hidden = find_devices(self._nvml)
        for index, handle in devices:
            try:
                device_uses(self._nvml, handle, self._since_us)
            except (self._nvml.NVMLError, AttributeError) as error:
                hidden.append(f"gpu{index}: {error}")
            else:
                self._devices.append((handle, device_name(self._nvml, index, handle)))
        if hidden:
            reason = f"processes on NVIDIA devices cannot be seen: {'; '.join(hidden)}"
            if not self._devices:
                raise UnavailableError(reason)
            writer.note(reason)
        household.sort(read_processes())

    def read(self) -> None:
        """Look at all devices, if it is time for it; a look that takes long comes more rarely."""
        began_ns, now_ns = time.thread_time_ns(), time.monotonic_ns()
        if now_ns < self._due_ns:
            return
        for at, (handle, name) in enumerate(self._devices):
            try:
                uses = device_uses(self._nvml, handle, self._since_us)
            except self._nvml.NVMLError:
                continue
            if not self._foreign_ids or any(use.pid in self._household.job for use in uses):
                for use in uses:
                    self._put(now_ns, at, name, use)
        self._since_us = time.time_ns() // 1000
        self._due_ns = now_ns + _SHARE_OF_CORE * (time.thread_time_ns() - began_ns)

    def _put(self, now_ns: int, at: int, device: str, use: Use) -> None:
        key = (at, use.pid)
        if key not in self._channels:
            self._channels[key] = self._declare(device, use.pid)
        channels = self._channels[key]
        if channels is not None:
            self._writer.add(channels[0], now_ns, use.utilization)
            self._writer.add(channels[1], now_ns, use.memory_bytes)

    def _declare(self, device: str, pid: int) -> tuple[int, int] | None:
        """Its two channels; None for the job's, Eroica's, one that is gone, or one too many."""
        followed = sum(1 for channels in self._channels.values() if channels is not None)
        process = _process(pid)
        if followed >= _MOST * len(self._devices) or process is None or not self._household.is_stranger(process):
            return None
        name = f"{device}/{pid}/{display_name(process.name, arguments_of(pid))}"
        busy = Channel("neighbor_gpu", name, "fraction", 1.0, resolution_ns=self.period_ns)
        held = Channel("neighbor_gpu_memory", name, "B", resolution_ns=self.period_ns)
        return self._writer.declare(busy), self._writer.declare(held)

    def close(self) -> None:
        """Nothing to give back."""


def _process(pid: int) -> Process | None:
    """What /proc says of it; None for one that is gone or is not shown."""
    try:
        return parse_process(Path(f"/proc/{pid}/stat").read_bytes())
    except (OSError, ValueError):
        return None
