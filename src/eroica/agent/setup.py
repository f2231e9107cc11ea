"""Read a process's setup from outside: cores, priority, quota, kernel, and an allow-list of variables.

Of the environment nothing is read that is not on the list (`eroica.wire.variables`).
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from eroica.hardware.host import parse_membership, parse_mounts, parse_quota, stat_files
from eroica.wire.variables import told_variables

NO_LIMIT = "none"
"""A quota that could be read, and is none."""
#: Drivers that choose the clock themselves: "powersave" is what they call that, and it goes up to the highest.
_CHOOSE_THEMSELVES = frozenset({"intel_pstate", "amd-pstate-epp", "amd_pstate_epp"})
_LONGEST_VALUE = 80


def parse_environment(environ: bytes) -> dict[str, str]:
    """Allowed variables of `/proc/<pid>/environ`, with which the process was started (`eroica.wire.variables`)."""
    pairs = (pair.decode("utf-8", "replace").partition("=") for pair in environ.split(b"\0"))
    return told_variables((name, value) for name, equals, value in pairs if equals)


def parse_affinity(status: str) -> tuple[str, int]:
    """(list of cores, their number) that `/proc/<pid>/status` allows; ("", 0) if it does not say."""
    for line in status.splitlines():
        if line.startswith("Cpus_allowed_list:"):
            text = line.partition(":")[2].strip()
            return text, len(parse_listed(text))
    return "", 0


def parse_listed(text: str) -> set[int]:
    """The numbers in such a list."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            found.update(range(int(first), int(last if last.isdigit() else first) + 1))
    return found


def format_listed(numbers: Iterable[int]) -> str:
    """Write a list of numbers: {0, 1, 2, 8} -> "0-2,8"."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def process_setup(pid: int) -> dict[str, str]:
    """All facts of one process and its host; what cannot be read is not in it."""
    facts: dict[str, str] = {}
    for read in (_scheduling, _quota, _variables, _memory_limit):
        facts |= _tried(lambda read=read: read(pid))  # type: ignore[misc]
    return {name: value for name, value in {**facts, **_tried(_host)}.items() if value}


def _tried(read: Callable[[], Mapping[str, str]]) -> Mapping[str, str]:
    try:
        return read()
    except (OSError, ValueError, LookupError):
        return {}


def _scheduling(pid: int) -> dict[str, str]:
    listed, count = parse_affinity(Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace"))
    facts = {"affinity": listed, "affinity_cores": str(count) if count else ""}
    facts["nice"] = str(os.getpriority(os.PRIO_PROCESS, pid))
    return {**facts, **_tried(lambda: _siblings(parse_listed(listed)))}


def _siblings(cores: Collection[int]) -> dict[str, str]:
    """Hyper-threads of these cores that are not among them."""
    topology = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    every = (parse_listed(Path(topology.format(core)).read_text(encoding="utf-8")) for core in cores)
    return {"siblings": format_listed(set[int]().union(*every) - set(cores))}


def _quota(pid: int) -> dict[str, str]:
    """The tightest CPU quota of all groups above the process, in cores, or "none"; nothing where none can be read."""
    limits = [parse_quota(file.read_text(encoding="utf-8")) for file in _group_files(pid, "cpu.max", "cpu")]
    for period in _group_files(pid, "cpu.cfs_period_us", "cpu"):
        allowed = period.with_name("cpu.cfs_quota_us").read_text(encoding="utf-8").strip()
        limits.append(parse_quota(f"{allowed} {period.read_text(encoding='utf-8').strip()}"))
    known = [limit for limit in limits if limit is not None]
    if not known:
        return {"cpu_quota": NO_LIMIT} if limits else {}
    return {"cpu_quota": f"{min(known):g}"}


def _memory_limit(pid: int) -> dict[str, str]:
    files = _group_files(pid, "memory.max", "memory") + _group_files(pid, "memory.limit_in_bytes", "memory")
    limits = [int(text) for file in files if (text := file.read_text(encoding="utf-8").strip()).isdigit()]
    tight = [limit for limit in limits if limit < 1 << 60]
    return {"memory_limit_gib": f"{min(tight) / 2**30:.3g}"} if tight else {}


def _group_files(pid: int, name: str, controller: str) -> list[Path]:
    membership = parse_membership(Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8"), controller)
    mounts = parse_mounts(Path("/proc/self/mountinfo").read_text(encoding="utf-8"), controller)
    return stat_files(mounts, membership, name)


def _variables(pid: int) -> dict[str, str]:
    return parse_environment(Path(f"/proc/{pid}/environ").read_bytes())


def _host() -> dict[str, str]:
    facts = {"kernel": platform.release(), "cores": str(os.cpu_count() or ""), "cpu": _cpu_model()}
    driver, clock = Path("/sys/module/nvidia/version"), Path("/sys/devices/system/cpu/cpu0/cpufreq")
    facts |= _tried(lambda: {"nvidia_driver": driver.read_text(encoding="utf-8").strip()})
    facts |= _tried(lambda: {"governor": read_governor(clock)})
    return facts


def read_governor(folder: Path) -> str:
    """Governor of a processor's clock, with its driver where that means something else by the name.

    Args:
        folder: A processor's `cpufreq` folder.

    Raises:
        OSError: It has none that can be read.
    """
    governor = (folder / "scaling_governor").read_text(encoding="utf-8").strip()
    named = folder / "scaling_driver"
    driver = named.read_text(encoding="utf-8").strip() if named.is_file() else ""
    return f"{governor} ({driver})" if driver in _CHOOSE_THEMSELVES else governor


def _cpu_model() -> str:
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - not to read all of it
        for line in file:
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model"):
                return value.strip()[:_LONGEST_VALUE]
    return ""
