"""NVIDIA channels through NVML, where the library `pynvml` and a device exist.

NVML's PCIe counter is an average over 20 ms and the call takes as long, so each device is read by a thread of its own;
each call also costs 0.9 ms of a core (measured, H100, driver 580), so all devices together make it as often as 2 % of a
core allows: at that cost some 15 times a second for one device, 3 for each of eight. NVLink and RDMA-to-GPU counters
are not read here.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from eroica.errors import UnavailableError
from eroica.hardware.writer import Channel, SampleWriter

_SM_CLOCK = 1
_PCIE_TX = 0
_LANE_BYTES_PER_S = {1: 250e6, 2: 500e6, 3: 985e6, 4: 1969e6, 5: 3938e6, 6: 7563e6}
_QUEUED = 100_000
#: Readings of one kind may cost 2 % of a core on all devices together; all but PCIe's cost microseconds.
_SHARE_OF_CORE = 50

Reading = tuple[Channel, Callable[[], float]]


def load_nvml() -> Any:
    """The initialized `pynvml` module.

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
    """Bytes per second of a PCIe link in one direction; NaN for generations we do not know."""
    return _LANE_BYTES_PER_S.get(generation, math.nan) * lanes


def find_devices(nvml: Any) -> tuple[list[tuple[int, Any]], list[str]]:
    """(index and handle of each device that answers, notes about those that do not, as one that fell off the bus).

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
    """(channels this device really answers for, notes about those it does not).

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
    """A device as channels name it: "gpu<index>/<uuid>", nothing behind the stroke where the driver knows no uuid."""
    return f"gpu{index}/{_uuid(nvml, handle)}"


def _uuid(nvml: Any, handle: Any) -> str:
    """As torch says it: without the "GPU-" in front."""
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
    """All NVIDIA devices of the host; `read` hands over what the devices' threads collected.

    Args:
        writer: Where to.
        nvml: The initialized `pynvml`, default `load_nvml()`.

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
        self._pause = _SHARE_OF_CORE * len(devices)
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
        """Write what came in since the last time."""
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
