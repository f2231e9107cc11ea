"""Processes of others on a device, against a fake driver."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from eroica.errors import UnavailableError
from eroica.hardware import nvidia_neighbors
from eroica.hardware.household import Household, Process
from eroica.hardware.nvidia_neighbors import NvidiaNeighborProbe, device_uses
from eroica.hardware.store import Samples, read_samples
from eroica.hardware.writer import SampleWriter

STRANGER = 4_000_001


class FakeNvml:
    """A device on which this process and a stranger compute."""

    class NVMLError(Exception):
        pass

    def __init__(self, pids: tuple[int, ...], lists: bool = True, counts: bool = True) -> None:
        self.pids, self.lists, self.counts = pids, lists, counts

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-uuid-{handle}"

    def nvmlDeviceGetComputeRunningProcesses(self, _handle: int) -> list[SimpleNamespace]:
        if not self.lists:
            raise self.NVMLError("Not Supported")
        return [SimpleNamespace(pid=pid, usedGpuMemory=2 << 30 if pid == STRANGER else None) for pid in self.pids]

    def nvmlDeviceGetProcessUtilization(self, _handle: int, since: int) -> list[SimpleNamespace]:
        if not self.counts:
            raise self.NVMLError("Not Found")
        old = SimpleNamespace(pid=STRANGER, timeStamp=since - 1, smUtil=99)
        new = [SimpleNamespace(pid=STRANGER, timeStamp=since + at, smUtil=util) for at, util in ((1, 40), (2, 60))]
        return [old, *new]


@pytest.fixture(autouse=True)
def _stranger_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    real = nvidia_neighbors._process
    made_up = Process(STRANGER, "infer", 1, False, 0, 0, 7, 0)
    monkeypatch.setattr(nvidia_neighbors, "_process", lambda pid: made_up if pid == STRANGER else real(pid))


def sampled(directory: Path, nvml: FakeNvml) -> Samples:
    writer = SampleWriter(directory)
    probe = NvidiaNeighborProbe(writer, Household([os.getpid()]), nvml)
    probe.read()
    probe.close()
    writer.close()
    return read_samples(directory)


def test_memory_and_time_of_each_process_are_read_and_old_samples_left_out() -> None:
    uses = device_uses(FakeNvml((STRANGER,)), 0, 1000)
    assert uses == [(STRANGER, 2 << 30, 0.5)]


def test_a_stranger_on_the_device_is_recorded_and_the_worker_is_not(tmp_path: Path) -> None:
    samples = sampled(tmp_path, FakeNvml((os.getpid(), STRANGER)))
    assert samples.devices("neighbor_gpu") == (f"gpu0/uuid-0/{STRANGER}/infer",)
    busy, held = (
        samples.find(name, f"gpu0/uuid-0/{STRANGER}/infer") for name in ("neighbor_gpu", "neighbor_gpu_memory")
    )
    assert busy is not None and held is not None
    assert busy.value.tolist() == [0.5] and held.value.tolist() == [float(2 << 30)]


def test_a_driver_that_counts_no_time_still_tells_who_holds_memory(tmp_path: Path) -> None:
    samples = sampled(tmp_path, FakeNvml((STRANGER,), counts=False))
    busy = samples.find("neighbor_gpu", f"gpu0/uuid-0/{STRANGER}/infer")
    assert busy is not None and busy.value.tolist() == [0.0]


def test_ids_of_another_namespace_are_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia_neighbors, "hidden_because", lambda: "a container")
    assert not sampled(tmp_path / "foreign", FakeNvml((STRANGER,))).named("neighbor_gpu")
    assert sampled(tmp_path / "own", FakeNvml((STRANGER, os.getpid()))).named("neighbor_gpu")


def test_a_driver_that_lists_nobody_says_so(tmp_path: Path) -> None:
    writer = SampleWriter(tmp_path)
    with pytest.raises(UnavailableError, match="cannot be seen: gpu0: Not Supported"):
        NvidiaNeighborProbe(writer, Household([os.getpid()]), FakeNvml((), lists=False))
    writer.close()


def test_a_look_that_takes_long_comes_more_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, nvml = SampleWriter(tmp_path), FakeNvml((STRANGER,))
    probe = NvidiaNeighborProbe(writer, Household([os.getpid()]), nvml)
    looks: list[int] = []
    monkeypatch.setattr(nvidia_neighbors, "device_uses", lambda *_: looks.append(1) or [])
    clock, spent = iter([0, 1_000_000_000, 7_000_000_000, 9_000_000_000]), iter([0, 40_000_000, 0, 0, 0, 40_000_000])
    monkeypatch.setattr(nvidia_neighbors.time, "monotonic_ns", lambda: next(clock))
    monkeypatch.setattr(nvidia_neighbors.time, "thread_time_ns", lambda: next(spent))
    counts = []
    for _ in range(4):
        probe.read()
        counts.append(len(looks))
    writer.close()
    assert counts == [1, 1, 1, 2]  # forty milliseconds are half a percent of eight seconds
