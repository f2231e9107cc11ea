"""NVIDIA devices through NVML: their channels, and processes of others on them.

A thread reads each device, because NVML's PCIe counter averages over 20 ms and the call takes as long. The call also
costs 0.9 ms of a core (H100, driver 580), so all devices together make it as often as 2 % of a core allows: 15 times a
second for one device, 3 times for each of eight. NVLink and RDMA-to-GPU counters have no channel.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eroica.errors import UnavailableError
from eroica.hardware.neighbors import (
    Household,
    Process,
    arguments_of,
    display_name,
    hidden_because,
    parse_process,
    read_processes,
)
from eroica.hardware.writer import Channel, SampleWriter

_SM_CLOCK = 1
_PCIE_TX = 0
_LANE_BYTES_PER_S = {1: 250e6, 2: 500e6, 3: 985e6, 4: 1969e6, 5: 3938e6, 6: 7563e6}
_QUEUED = 100_000
#: Inverse of the share of a core that readings of one kind, and looks at processes, may cost on all devices.
_READINGS, _LOOKS = 50, 200
#: Processes followed on one device.
_MOST = 16

Reading = tuple[Channel, Callable[[], float]]


def load_nvml() -> Any:
    """Return the initialized `pynvml` module.

    Raises:
        UnavailableError: It is not installed, or no driver answers.
    """
    try:
        import pynvml
    except ImportError:
        raise UnavailableError("no NVIDIA channels: pynvml is not installed (pip install 'eroica[nvidia]')") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise UnavailableError(f"no NVIDIA channels: {error}") from None
    return pynvml


def find_devices(nvml: Any) -> tuple[list[tuple[int, Any]], list[str]]:
    """Return index and handle of each device that answers, and notes about the others.

    Raises:
        UnavailableError: The driver does not say how many there are.
    """
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        raise UnavailableError(f"no NVIDIA channels: the driver counts no devices: {error}") from None
    devices, notes = [], []
    for index in range(count):
        try:
            devices.append((index, nvml.nvmlDeviceGetHandleByIndex(index)))
        except nvml.NVMLError as error:
            notes.append(f"gpu{index} left out: {error}")
    return devices, notes


def device_readings(nvml: Any, index: int, handle: Any) -> tuple[list[Reading], list[str]]:
    """Return the channels that a device answers for, and notes about the others.

    "gpu_sm_clock" (fraction of the highest SM clock), "gpu_utilization", "gpu_memory_utilization" (fraction of time),
    "gpu_power" (fraction of the limit),
    "gpu_pcie_tx" (fraction of the link); device "gpu<index>/<uuid>", without uuid if there is none.
    """
    device = device_name(nvml, index, handle).rstrip("/")
    readings: list[Reading] = []
    notes: list[str] = []
    for name, make in _MAKERS.items():
        try:
            channel, read = make(nvml, handle, device)
            read()
        except (nvml.NVMLError, AttributeError, ZeroDivisionError) as error:
            notes.append(f"{name} of gpu{index} left out: {error}")
        else:
            readings.append((channel, read))
    return readings, notes


def device_name(nvml: Any, index: int, handle: Any) -> str:
    """Return a device as channels name it: "gpu<index>/<uuid>", with the uuid as torch writes it, without "GPU-"."""
    try:
        uuid = nvml.nvmlDeviceGetUUID(handle)
    except (nvml.NVMLError, AttributeError):
        uuid = ""
    return f"gpu{index}/{(uuid.decode() if isinstance(uuid, bytes) else uuid).removeprefix('GPU-')}"


def _fraction(name: str, device: str, capacity: float, resolution_ms: int) -> Channel:
    return Channel(name, device, "fraction", capacity, resolution_ns=resolution_ms * 1_000_000)


def _sm_clock(nvml: Any, handle: Any, device: str) -> Reading:
    highest = nvml.nvmlDeviceGetMaxClockInfo(handle, _SM_CLOCK)
    channel = _fraction("gpu_sm_clock", device, highest * 1e6, 20)
    return channel, lambda: nvml.nvmlDeviceGetClockInfo(handle, _SM_CLOCK) / highest


def _power(nvml: Any, handle: Any, device: str) -> Reading:
    limit = nvml.nvmlDeviceGetEnforcedPowerLimit(handle)
    return _fraction("gpu_power", device, limit / 1000, 100), lambda: nvml.nvmlDeviceGetPowerUsage(handle) / limit


def _pcie(nvml: Any, handle: Any, device: str) -> Reading:
    generation = nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
    capacity = _LANE_BYTES_PER_S.get(generation, math.nan) * nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)
    if math.isnan(capacity):
        channel, scale = Channel("gpu_pcie_tx", device, "B/s", resolution_ns=20_000_000), 1000.0
    else:
        channel, scale = _fraction("gpu_pcie_tx", device, capacity, 20), 1000 / capacity
    return channel, lambda: nvml.nvmlDeviceGetPcieThroughput(handle, _PCIE_TX) * scale


_MAKERS: dict[str, Callable[[Any, Any, str], Reading]] = {
    "gpu_sm_clock": _sm_clock,
    "gpu_utilization": lambda nvml, handle, device: (
        _fraction("gpu_utilization", device, 1.0, 170),
        lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
    ),
    "gpu_memory_utilization": lambda nvml, handle, device: (
        _fraction("gpu_memory_utilization", device, 1.0, 170),
        lambda: nvml.nvmlDeviceGetUtilizationRates(handle).memory / 100,
    ),
    "gpu_power": _power,
    "gpu_pcie_tx": _pcie,
}


class NvidiaProbe:
    """All NVIDIA devices of the host; `read` writes what the devices' threads collected.

    Raises:
        UnavailableError: No library, no driver, no device that answers.
    """

    period_ns = 50_000_000
    pause_s = 0.02

    def __init__(self, writer: SampleWriter, nvml: Any = None) -> None:
        self._nvml = nvml or load_nvml()
        self._writer = writer
        self._queue: deque[tuple[int, int, float]] = deque(maxlen=_QUEUED)
        self._silent: deque[str] = deque()
        self._stop = threading.Event()
        devices, notes = find_devices(self._nvml)
        self._pause = _READINGS * len(devices)
        self._threads = [self._start(index, handle) for index, handle in devices]
        if not self._threads:
            raise UnavailableError(f"no NVIDIA channels: {'; '.join(notes) or 'the driver knows no device'}")
        for note in notes:
            self._writer.note(note)

    def _start(self, index: int, handle: Any) -> threading.Thread:
        readings, notes = device_readings(self._nvml, index, handle)
        for note in notes:
            self._writer.note(note)
        numbered = [(self._writer.declare(channel), read) for channel, read in readings]
        thread = threading.Thread(target=self._collect, args=(index, numbered), name=f"gpu{index}", daemon=True)
        thread.start()
        return thread

    def _collect(self, index: int, readings: list[tuple[int, Callable[[], float]]]) -> None:
        said = False
        due_ns = dict.fromkeys((number for number, _ in readings), 0)
        while not self._stop.wait(self.pause_s):
            for number, read in readings:
                began_ns, began_cpu_ns = time.monotonic_ns(), time.thread_time_ns()
                if began_ns < due_ns[number]:
                    continue
                try:
                    value = float(read())
                except self._nvml.NVMLError as error:
                    if not said:
                        self._silent.append(f"gpu{index} did not answer all the time: {error}")
                    said = True
                    continue
                finally:
                    due_ns[number] = began_ns + self._pause * (time.thread_time_ns() - began_cpu_ns)
                self._queue.append((number, time.monotonic_ns(), value))

    def read(self) -> None:
        """Write the new values."""
        while self._queue:
            self._writer.add(*self._queue.popleft())
        while self._silent:
            self._writer.note(self._silent.popleft())

    def close(self) -> None:
        """End the threads and write the rest."""
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=1.0)
        self.read()


# --- processes of others ---


def device_uses(nvml: Any, handle: Any, since_us: int) -> dict[int, float]:
    """Return the processes that compute on a device, each with its share of the device's time since then, 0-1.

    `since_us` is in microseconds since 1970.

    Raises:
        NVMLError: The driver lists no processes of this device.
    """
    running = {int(one.pid): 0.0 for one in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    return running | _busy(nvml, handle, since_us)


def _busy(nvml: Any, handle: Any, since_us: int) -> dict[int, float]:
    """Return the mean share of the device's time of each process; empty without samples."""
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

    Channel "neighbor_gpu" (share of the device's time), device "gpu<index>/<uuid>/<pid>/<name>". In a container NVML
    may return process ids of the host, so a device's list counts there only if a process of the job is on it.

    Raises:
        UnavailableError: No library, no driver, or it lists the processes of no device.
    """

    period_ns = 1_000_000_000

    def __init__(self, writer: SampleWriter, household: Household, nvml: Any = None) -> None:
        self._nvml = nvml or load_nvml()
        self._writer = writer
        self._household = household
        self._foreign_ids = bool(hidden_because())
        self._channels: dict[tuple[int, int], int | None] = {}
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
        """Look at all devices if it is due."""
        began_ns, now_ns = time.thread_time_ns(), time.monotonic_ns()
        if now_ns < self._due_ns:
            return
        for at, (handle, name) in enumerate(self._devices):
            try:
                uses = device_uses(self._nvml, handle, self._since_us)
            except self._nvml.NVMLError:
                continue
            if not self._foreign_ids or any(pid in self._household.job for pid in uses):
                for pid, utilization in sorted(uses.items()):
                    if (at, pid) not in self._channels:
                        self._channels[at, pid] = self._declare(name, pid)
                    channel = self._channels[at, pid]
                    if channel is not None:
                        self._writer.add(channel, now_ns, utilization)
        self._since_us = time.time_ns() // 1000
        self._due_ns = now_ns + _LOOKS * (time.thread_time_ns() - began_ns)

    def _declare(self, device: str, pid: int) -> int | None:
        """Return its channel; None for a process that is not followed."""
        followed = sum(channel is not None for channel in self._channels.values())
        process = _process(pid)
        if followed >= _MOST * len(self._devices) or process is None or not self._household.is_stranger(process):
            return None
        name = f"{device}/{pid}/{display_name(process.name, arguments_of(pid))}"
        return self._writer.declare(Channel("neighbor_gpu", name, "fraction", 1.0, resolution_ns=self.period_ns))

    def close(self) -> None:
        """Do nothing."""


def _process(pid: int) -> Process | None:
    """Return a process; None if it is gone or hidden."""
    try:
        return parse_process(Path(f"/proc/{pid}/stat").read_bytes())
    except (OSError, ValueError):
        return None
