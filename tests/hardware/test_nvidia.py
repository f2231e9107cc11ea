import builtins
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from eroica.errors import UnavailableError
from eroica.hardware import nvidia
from eroica.hardware.store import read_samples
from eroica.hardware.writer import SampleWriter


class FakeNvml:
    """The calls of pynvml that are used, of a device with 1980 MHz on PCIe 5.0 x16; some may refuse."""

    class NVMLError(Exception):
        pass

    def __init__(self, devices: int = 1, refused: tuple[str, ...] = ()) -> None:
        self.devices = devices
        self.refused = refused

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in object.__getattribute__(self, "refused"):
            error = object.__getattribute__(self, "NVMLError")

            def refuse(*_: object) -> None:
                raise error("Not Supported")

            return refuse
        return object.__getattribute__(self, name)

    def nvmlDeviceGetCount(self) -> int:
        return self.devices

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-uuid-{handle}"

    def nvmlDeviceGetMaxClockInfo(self, _handle: int, _kind: int) -> int:
        return 1980

    def nvmlDeviceGetClockInfo(self, _handle: int, _kind: int) -> int:
        return 990

    def nvmlDeviceGetUtilizationRates(self, _handle: int) -> SimpleNamespace:
        return SimpleNamespace(gpu=80, memory=30)

    def nvmlDeviceGetMemoryInfo(self, _handle: int) -> SimpleNamespace:
        return SimpleNamespace(total=1000, used=250)

    def nvmlDeviceGetEnforcedPowerLimit(self, _handle: int) -> int:
        return 700_000

    def nvmlDeviceGetPowerUsage(self, _handle: int) -> int:
        return 350_000

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _handle: int) -> int:
        return 0x20

    def nvmlDeviceGetMaxPcieLinkGeneration(self, _handle: int) -> int:
        return 5

    def nvmlDeviceGetMaxPcieLinkWidth(self, _handle: int) -> int:
        return 16

    def nvmlDeviceGetPcieThroughput(self, _handle: int, way: int) -> int:
        return 6_300_800 if way == 0 else 0


def _values(readings: list[tuple[Any, Callable[[], float]]]) -> dict[str, float]:
    return {channel.name: read() for channel, read in readings}


def test_clocks_power_memory_and_links_are_fractions_of_what_the_device_states() -> None:
    readings, notes = nvidia.device_readings(FakeNvml(), 0)
    values = _values(readings)
    assert not notes
    assert values["gpu_sm_clock"] == pytest.approx(0.5)
    assert values["gpu_power"] == pytest.approx(0.5)
    assert values["gpu_memory"] == pytest.approx(0.25)
    assert values["gpu_utilization"] == pytest.approx(0.8)
    assert values["gpu_throttle"] == 0x20
    assert values["gpu_pcie_tx"] == pytest.approx(0.1)
    assert {channel.device for channel, _ in readings} == {"gpu0/uuid-0"}


def test_what_a_device_does_not_answer_is_left_out_and_named() -> None:
    readings, notes = nvidia.device_readings(FakeNvml(refused=("nvmlDeviceGetPcieThroughput",)), 0)
    assert not {"gpu_pcie_tx", "gpu_pcie_rx"} & set(_values(readings))
    assert len(readings) == 6
    assert notes == ["gpu_pcie_tx of gpu0 left out: Not Supported", "gpu_pcie_rx of gpu0 left out: Not Supported"]


def test_a_link_generation_we_do_not_know_has_no_capacity() -> None:
    assert nvidia.pcie_capacity(4, 16) == pytest.approx(31.504e9)
    assert math.isnan(nvidia.pcie_capacity(9, 16))


def test_readings_of_the_device_threads_end_up_in_the_store(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia.NvidiaProbe, "pause_s", 0.0005)
    writer = SampleWriter(tmp_path)
    probe = nvidia.NvidiaProbe(writer, FakeNvml(devices=2))
    while len({number for number, _, _ in list(probe._queue)}) < 16:
        probe._stop.wait(0.001)
    probe.close()
    writer.close()
    samples = read_samples(tmp_path)
    assert samples.devices("gpu_sm_clock") == ("gpu0/uuid-0", "gpu1/uuid-1")
    clock = samples.find("gpu_sm_clock", "gpu1/uuid-1")
    assert clock is not None
    assert set(clock.value.tolist()) == {0.5}
    assert clock.channel.rate_hz <= 50.0


def test_a_host_without_devices_says_so(tmp_path) -> None:
    writer = SampleWriter(tmp_path)
    with pytest.raises(UnavailableError, match="no device"):
        nvidia.NvidiaProbe(writer, FakeNvml(devices=0))
    writer.close()


def test_without_the_library_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "pynvml":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UnavailableError, match=r"eroica\[nvidia\]"):
        nvidia.load_nvml()
