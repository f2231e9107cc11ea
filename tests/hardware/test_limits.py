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
