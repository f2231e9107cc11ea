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
from typing import Any, NamedTuple

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


def pcie_capacity(generation: int, lanes: int) -> float:
    """Return bytes per second of a PCIe link in one direction; NaN for unknown generations."""
    return _LANE_BYTES_PER_S.get(generation, math.nan) * lanes


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
    "gpu_memory" (fraction used), "gpu_power" (fraction of the limit), "gpu_throttle" (NVML's bit mask of reasons),
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
    """Return a device as channels name it: "gpu<index>/<uuid>"."""
    return f"gpu{index}/{_uuid(nvml, handle)}"


def _uuid(nvml: Any, handle: Any) -> str:
    """Return the uuid as torch writes it, without the "GPU-"."""
    try:
        uuid = nvml.nvmlDeviceGetUUID(handle)
    except (nvml.NVMLError, AttributeError):
        return ""
    return (uuid.decode("ascii", "replace") if isinstance(uuid, bytes) else str(uuid)).removeprefix("GPU-")


def _sm_clock(nvml: Any, handle: Any, device: str) -> Reading:
    highest = nvml.nvmlDeviceGetMaxClockInfo(handle, _SM_CLOCK)
    channel = Channel("gpu_sm_clock", device, "fraction", highest * 1e6, resolution_ns=20_000_000)
    return channel, lambda: nvml.nvmlDeviceGetClockInfo(handle, _SM_CLOCK) / highest


def _utilization(nvml: Any, handle: Any, device: str) -> Reading:
    channel = Channel("gpu_utilization", device, "fraction", 1.0, resolution_ns=170_000_000)
    return channel, lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100


def _memory_utilization(nvml: Any, handle: Any, device: str) -> Reading:
    channel = Channel("gpu_memory_utilization", device, "fraction", 1.0, resolution_ns=170_000_000)
    return channel, lambda: nvml.nvmlDeviceGetUtilizationRates(handle).memory / 100


def _memory(nvml: Any, handle: Any, device: str) -> Reading:
    total = nvml.nvmlDeviceGetMemoryInfo(handle).total
    channel = Channel("gpu_memory", device, "fraction", total, resolution_ns=20_000_000)
    return channel, lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used / total


def _power(nvml: Any, handle: Any, device: str) -> Reading:
    limit = nvml.nvmlDeviceGetEnforcedPowerLimit(handle)
    channel = Channel("gpu_power", device, "fraction", limit / 1000, resolution_ns=100_000_000)
    return channel, lambda: nvml.nvmlDeviceGetPowerUsage(handle) / limit


def _throttle(nvml: Any, handle: Any, device: str) -> Reading:
    older = "nvmlDeviceGetCurrentClocksThrottleReasons"
    read = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None) or getattr(nvml, older)
    return Channel("gpu_throttle", device, "code", resolution_ns=20_000_000), lambda: float(read(handle))


def _pcie(nvml: Any, handle: Any, device: str) -> Reading:
    generation = nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
    capacity = pcie_capacity(generation, nvml.nvmlDeviceGetMaxPcieLinkWidth(handle))
    known = not math.isnan(capacity)
    channel = Channel("gpu_pcie_tx", device, "fraction" if known else "B/s", capacity, resolution_ns=20_000_000)
    scale = 1000 / capacity if known else 1000.0
    return channel, lambda: nvml.nvmlDeviceGetPcieThroughput(handle, _PCIE_TX) * scale


_MAKERS: dict[str, Callable[[Any, Any, str], Reading]] = {
    "gpu_sm_clock": _sm_clock,
    "gpu_utilization": _utilization,
    "gpu_memory_utilization": _memory_utilization,
    "gpu_memory": _memory,
    "gpu_power": _power,
    "gpu_throttle": _throttle,
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


class Use(NamedTuple):
    """One process on one device: memory in bytes (0 if unknown), share of the device's time, 0-1."""

    pid: int
    memory_bytes: int
    utilization: float


def device_uses(nvml: Any, handle: Any, since_us: int) -> list[Use]:
    """Return the processes that compute on a device; utilization since then, microseconds since 1970.

    Raises:
        NVMLError: The driver lists no processes of this device.
    """
    memory = {int(one.pid): int(one.usedGpuMemory or 0) for one in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    busy = _busy(nvml, handle, since_us)
    return [Use(pid, memory.get(pid, 0), busy.get(pid, 0.0)) for pid in sorted({*memory, *busy})]


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

    Channels "neighbor_gpu" (share of the device's time) and "neighbor_gpu_memory" (bytes), device
    "gpu<index>/<uuid>/<pid>/<name>". In a container NVML may return process ids of the host, so a device's list counts
    there only if a process of the job is on it.

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
        """Look at all devices if it is due."""
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
        self._due_ns = now_ns + _LOOKS * (time.thread_time_ns() - began_ns)

    def _put(self, now_ns: int, at: int, device: str, use: Use) -> None:
        key = (at, use.pid)
        if key not in self._channels:
            self._channels[key] = self._declare(device, use.pid)
        channels = self._channels[key]
        if channels is not None:
            self._writer.add(channels[0], now_ns, use.utilization)
            self._writer.add(channels[1], now_ns, use.memory_bytes)

    def _declare(self, device: str, pid: int) -> tuple[int, int] | None:
        """Return its two channels; None for a process that is not followed."""
        followed = sum(1 for channels in self._channels.values() if channels is not None)
        process = _process(pid)
        if followed >= _MOST * len(self._devices) or process is None or not self._household.is_stranger(process):
            return None
        name = f"{device}/{pid}/{display_name(process.name, arguments_of(pid))}"
        busy = Channel("neighbor_gpu", name, "fraction", 1.0, resolution_ns=self.period_ns)
        held = Channel("neighbor_gpu_memory", name, "B", resolution_ns=self.period_ns)
        return self._writer.declare(busy), self._writer.declare(held)

    def close(self) -> None:
        """Do nothing."""


def _process(pid: int) -> Process | None:
    """Return a process; None if it is gone or hidden."""
    try:
        return parse_process(Path(f"/proc/{pid}/stat").read_bytes())
    except (OSError, ValueError):
        return None
