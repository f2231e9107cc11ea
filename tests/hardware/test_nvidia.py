import builtins
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eroica.errors import UnavailableError
from eroica.hardware import nvidia, sampler
from eroica.hardware.cpu import Target
from eroica.hardware.neighbors import Household, Process
from eroica.hardware.sampler import Sampler
from eroica.hardware.store import Samples, read_samples
from eroica.hardware.writer import SampleWriter

_TOLD = {
    "MaxClockInfo": 1980, "ClockInfo": 990, "UtilizationRates": SimpleNamespace(gpu=80, memory=30),
    "EnforcedPowerLimit": 700_000, "PowerUsage": 350_000, "MaxPcieLinkGeneration": 5, "MaxPcieLinkWidth": 16,
    "PcieThroughput": lambda way: 6_300_800 if way == 0 else 0, "ComputeRunningProcesses": [],
}  # fmt: skip


class FakeNvml:
    """The calls of pynvml that are used, of a device with 1980 MHz on PCIe 5.0 x16; some may refuse."""

    class NVMLError(Exception):
        pass

    def __init__(self, devices: int = 1, refused: tuple[str, ...] = (), lost: tuple[int, ...] = ()) -> None:
        self.devices = devices
        self.refused = refused
        self.lost = lost

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def answer(_handle: int, *more: int) -> Any:
            if name in self.refused:
                raise self.NVMLError("Not Supported")
            return told(*more) if callable(told) else told

        if (what := name.removeprefix("nvmlDeviceGet")) not in _TOLD:
            raise AttributeError(name)
        told = _TOLD[what]
        return answer

    def nvmlDeviceGetCount(self) -> int:
        return self.devices

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index in self.lost:
            raise self.NVMLError("GPU is lost")
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-uuid-{handle}"


def _values(readings: list[tuple[Any, Callable[[], float]]]) -> dict[str, float]:
    return {channel.name: read() for channel, read in readings}


def test_clocks_power_memory_and_links_are_fractions_of_what_the_device_states() -> None:
    readings, notes = nvidia.device_readings(FakeNvml(), 0, 0)
    values = _values(readings)
    assert not notes
    assert values["gpu_sm_clock"] == pytest.approx(0.5)
    assert values["gpu_power"] == pytest.approx(0.5)
    assert values["gpu_utilization"] == pytest.approx(0.8)
    assert values["gpu_pcie_tx"] == pytest.approx(0.1)
    assert {channel.device for channel, _ in readings} == {"gpu0/uuid-0"}


def test_what_a_device_does_not_answer_is_left_out_and_named() -> None:
    readings, notes = nvidia.device_readings(FakeNvml(refused=("nvmlDeviceGetPcieThroughput",)), 0, 0)
    assert "gpu_pcie_tx" not in _values(readings)
    assert len(readings) == 4
    assert notes == ["gpu_pcie_tx of gpu0 left out: Not Supported"]


def test_readings_of_the_device_threads_end_up_in_the_store(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia.NvidiaProbe, "pause_s", 0.0005)
    writer = SampleWriter(tmp_path)
    probe = nvidia.NvidiaProbe(writer, FakeNvml(devices=2))
    while len({number for number, _, _ in list(probe._queue)}) < 10:
        probe._stop.wait(0.001)
    probe.close()
    writer.close()
    samples = read_samples(tmp_path)
    assert samples.devices("gpu_sm_clock") == ("gpu0/uuid-0", "gpu1/uuid-1")
    clock = samples.find("gpu_sm_clock", "gpu1/uuid-1")
    assert clock is not None
    assert set(clock.value.tolist()) == {0.5}
    assert clock.channel.rate_hz <= 50.0


def sampled(directory: Path, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> Samples:
    """What the whole sampler writes on a host with this driver."""
    monkeypatch.setattr(sampler, "_need_nvidia_driver", lambda: None)
    monkeypatch.setattr(nvidia, "load_nvml", lambda: nvml)
    monkeypatch.setattr(nvidia.NvidiaProbe, "pause_s", 0.0005)
    Sampler([Target(os.getpid(), os.getpid())], directory, hz=100).run(lambda: False, seconds=0.2)
    samples = read_samples(directory)
    assert samples.named("cpu_host") and samples.find("state", f"{os.getpid()}/{os.getpid()}") is not None
    return samples


def test_a_device_that_fell_off_the_bus_costs_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = sampled(tmp_path, FakeNvml(devices=3, lost=(1,)), monkeypatch)
    assert samples.devices("gpu_sm_clock") == ("gpu0/uuid-0", "gpu2/uuid-2")
    assert "gpu1 left out: GPU is lost" in samples.notes
    assert "processes on NVIDIA devices cannot be seen: gpu1 left out: GPU is lost" in samples.notes


def test_without_the_library_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "pynvml":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UnavailableError, match=r"eroica\[nvidia\]"):
        nvidia.load_nvml()


# --- processes of others ---

STRANGER = 4_000_001


class Shared(FakeNvml):
    """A device on which this process and a stranger compute."""

    def nvmlDeviceGetComputeRunningProcesses(self, _handle: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid) for pid in (os.getpid(), STRANGER)]

    def nvmlDeviceGetProcessUtilization(self, _handle: int, since: int) -> list[SimpleNamespace]:
        old = SimpleNamespace(pid=STRANGER, timeStamp=since - 1, smUtil=99)
        new = [SimpleNamespace(pid=STRANGER, timeStamp=since + at, smUtil=util) for at, util in ((1, 40), (2, 60))]
        return [old, *new]


@pytest.fixture
def stranger_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    real = nvidia._process
    made_up = Process(STRANGER, "infer", 1, False, 0, 7)
    monkeypatch.setattr(nvidia, "_process", lambda pid: made_up if pid == STRANGER else real(pid))


@pytest.mark.usefixtures("stranger_lives")
def test_a_stranger_on_the_device_is_recorded_and_the_worker_is_not(tmp_path: Path) -> None:
    writer = SampleWriter(tmp_path)
    probe = nvidia.NvidiaNeighborProbe(writer, Household([os.getpid()]), Shared())
    probe.read()
    probe.close()
    writer.close()
    samples = read_samples(tmp_path)
    assert samples.devices("neighbor_gpu") == (f"gpu0/uuid-0/{STRANGER}/infer",)
    busy = samples.find("neighbor_gpu", f"gpu0/uuid-0/{STRANGER}/infer")
    assert busy is not None and busy.value.tolist() == [0.5]
