import math
from pathlib import Path

import pytest

from eroica.hardware import host
from eroica.hardware.store import read_samples
from eroica.hardware.writer import SampleWriter

MOUNTS = """\
30 24 0:26 / /sys/fs/cgroup rw,nosuid - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset
33 30 0:29 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw,nsdelegate
"""
V1 = b"nr_periods 10\nnr_throttled 4\nthrottled_time 250000000\n"
V2 = b"usage_usec 5\nuser_usec 3\nnr_periods 10\nnr_throttled 3\nthrottled_usec 120000\n"
NO_QUOTA = b"usage_usec 5\nuser_usec 3\nsystem_usec 2\n"


def test_mounts_of_both_versions_are_found_and_cpuset_is_not_cpu() -> None:
    assert host.parse_mounts(MOUNTS) == ([Path("/sys/fs/cgroup/unified")], [Path("/sys/fs/cgroup/cpu,cpuacct")])


def test_membership_is_read_for_both_versions() -> None:
    assert host.parse_membership("4:cpuset:/x\n1:cpu,cpuacct:/job/7\n0::/unit.scope\n") == ("/unit.scope", "/job/7")
    assert host.parse_membership("0::/only\n") == ("/only", "")


def test_throttled_time_is_nanoseconds_in_both_versions_and_absent_without_quota_support() -> None:
    assert host.parse_throttled(V1) == 250_000_000
    assert host.parse_throttled(V2) == 120_000_000
    assert host.parse_throttled(NO_QUOTA) is None


def test_quotas_of_all_groups_above_a_process_are_looked_at_but_nothing_outside_the_mount(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    (root / "job" / "worker").mkdir(parents=True)
    for place in (tmp_path, root, root / "job", root / "job" / "worker"):
        (place / "cpu.stat").write_bytes(V2)
    files = host.stat_files(([root], []), ("/job/worker", ""))
    assert files == [root / "job" / "worker" / "cpu.stat", root / "job" / "cpu.stat", root / "cpu.stat"]
    assert all(file.is_relative_to(root) for file in host.stat_files(([root], []), ("/../../job", "")))


def test_growing_throttled_time_becomes_seconds_per_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([1_000_000_000, 2_000_000_000])
    monkeypatch.setattr(host.time, "monotonic_ns", lambda: next(now))
    file = tmp_path / "cpu.stat"
    file.write_bytes(V2)
    writer = SampleWriter(tmp_path / "out")
    probe = host.ThrottleProbe(writer, 7, [file])
    probe.read()
    with file.open("r+b") as same:
        same.write(V2.replace(b"120000", b"420000").replace(b"throttled 3", b"throttled 9"))
    probe.read()
    probe.close()
    writer.close()
    samples = read_samples(tmp_path / "out")
    assert [one.value.tolist() for one in samples.series] == [pytest.approx([0.3])]


HEAD = (
    "Inter-|   Receive                                                |  Transmit\n"
    " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls\n"
)
LINE = "{:>6}: {} 13798 0 0 0 0 0 0 {} 1020 0 0 0 0 0 0\n"


def _net_dev(**interfaces: tuple[int, int]) -> bytes:
    return (HEAD + "".join(LINE.format(name, *totals) for name, totals in interfaces.items())).encode()


@pytest.mark.parametrize(
    ("text", "capacity"),
    [
        ("10000\n", 1.25e9), ("-1\n", math.nan), ("", math.nan), ("0", math.nan),
        ("100 Gb/sec (4X EDR)\n", 12.5e9), ("2.5 Gb/sec (1X)", 312.5e6), ("x Gb/sec", math.nan),
    ],
)  # fmt: skip
def test_a_capacity_is_bytes_per_second_or_unknown(text: str, capacity: float, tmp_path: Path) -> None:
    (tmp_path / "speed").write_text(text)
    assert host.read_capacity(tmp_path / "speed") == pytest.approx(capacity, nan_ok=True)
    assert math.isnan(host.read_capacity(tmp_path / "rate"))


def test_traffic_is_a_fraction_of_a_stated_speed_and_bytes_per_second_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([1_000_000_000, 1_500_000_000])
    monkeypatch.setattr(host.time, "monotonic_ns", lambda: next(now))
    (tmp_path / "speed" / "eth0").mkdir(parents=True)
    (tmp_path / "speed" / "eth0" / "speed").write_text("1000\n")
    file = tmp_path / "dev"
    file.write_bytes(_net_dev(lo=(100, 100), eth0=(10, 0), idle=(0, 0)))
    writer = SampleWriter(tmp_path / "out")
    probe = host.InterfaceProbe(writer, file, tmp_path / "speed")
    probe.read()
    file.write_bytes(_net_dev(lo=(600, 600), eth0=(31_250_010, 0), idle=(0, 0)))
    probe.read()
    probe.close()
    writer.close()
    samples = read_samples(tmp_path / "out")
    eth0, loopback = samples.find("net", "eth0/rx"), samples.find("net", "lo/tx")
    assert eth0 is not None
    assert loopback is not None
    assert (eth0.value.tolist(), eth0.channel.unit, eth0.channel.capacity) == ([0.5], "fraction", 125e6)
    assert (loopback.value.tolist(), loopback.channel.unit) == ([1000.0], "B/s")
    assert math.isnan(loopback.channel.capacity)
    assert samples.find("net", "idle/rx") is None
