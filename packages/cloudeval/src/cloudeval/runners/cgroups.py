"""Control groups of sandboxes: limits for the whole sandbox, readings for checks, and removal of what a killed run left."""

import contextlib
import os
import signal
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PARENT = "cloudeval"

#: Limits of one sandbox with everything in it: bytes, and processes. A pod of a problem needs some 10 MB and 5 processes;
#: Envoy 100 MB.
MEMORY_BYTES = 768 * 2**20
PROCESSES = 512
#: Weight of a sandbox beside other processes (1024 is usual), so that a busy answer leaves room for other tests.
CPU_SHARES = 512


def is_v2() -> bool:
    """Return True if this machine has the unified hierarchy only."""
    return (ROOT / "cgroup.controllers").exists()


def base() -> Path:
    """Return the folder that holds the groups of all sandboxes."""
    return ROOT / PARENT if is_v2() else ROOT / "pids" / PARENT


def _folders(name: str) -> dict[str, Path]:
    if is_v2():
        return {"": ROOT / PARENT / name}
    parts = ("memory", "pids", "cpu", "freezer", "devices", "cpuset", "blkio")
    return {part: ROOT / part / PARENT / name for part in parts if (ROOT / part).is_dir()}


def create(name: str) -> None:
    """Make the groups of a sandbox and set its limits."""
    folders = _folders(name)
    for folder in folders.values():
        for _ in range(20):  # another run may just be removing the parent
            with contextlib.suppress(FileNotFoundError):
                folder.mkdir(parents=True, exist_ok=True)
                break
    if is_v2():
        for folder in (ROOT, ROOT / PARENT, folders[""]):
            _write(folder / "cgroup.subtree_control", "+memory +pids +cpu")
        limits = {"memory.max": MEMORY_BYTES, "pids.max": PROCESSES, "cpu.weight": 50}
    else:
        for folder in (folders["cpuset"].parent, folders["cpuset"]) if "cpuset" in folders else ():
            for file in ("cpuset.cpus", "cpuset.mems"):
                _write(folder / file, (ROOT / "cpuset" / file).read_text().strip())
        limits = {"memory.limit_in_bytes": MEMORY_BYTES, "pids.max": PROCESSES, "cpu.shares": CPU_SHARES}
    for limit, number in limits.items():
        part = "" if is_v2() else limit.split(".")[0]
        if part in folders:
            _write(folders[part] / limit, str(number))


def _write(file: Path, value: str) -> None:
    with contextlib.suppress(OSError):  # a controller that this machine lacks limits nothing
        file.write_text(value)


def read(name: str, container: str) -> dict[str, float | None]:
    """Return the limits that hold for a container: `memory` in bytes, `cpu` in cores, `shares`; None means unlimited."""

    def text(part: str, file: str) -> str:
        return (_folders(name)["" if is_v2() else part] / container / file).read_text()

    if is_v2():
        memory, quota, period = text("", "memory.max").strip(), *text("", "cpu.max").split()
        shares = 1 + (float(text("", "cpu.weight")) - 1) * 262142 / 9999
    else:
        memory = text("memory", "memory.limit_in_bytes")
        quota, period = text("cpu", "cpu.cfs_quota_us"), text("cpu", "cpu.cfs_period_us")
        shares = float(text("cpu", "cpu.shares"))
    return {
        "memory": None if memory == "max" or float(memory) > 2**60 else float(memory),
        "cpu": None if quota == "max" or int(quota) < 0 else int(quota) / int(period),
        "shares": shares,
    }


def was_out_of_memory(name: str, container: str) -> bool:
    """Return True if the kernel killed a process of the container because its memory limit was reached."""
    folder = _folders(name)["" if is_v2() else "memory"] / container
    with contextlib.suppress(OSError):
        text = (folder / ("memory.events" if is_v2() else "memory.oom_control")).read_text()
        return any(line.split()[0] == "oom_kill" and line.split()[1] != "0" for line in text.splitlines())
    return False


def remove(name: str) -> None:
    """Kill what still runs in a sandbox's groups and remove them."""
    for _ in range(200):
        left = [folder for folder in _folders(name).values() if folder.is_dir() and not _removed(folder)]
        if not left:
            break
        time.sleep(0.005)
    for folder in _folders(name).values():
        with contextlib.suppress(OSError):  # other sandboxes may still be there
            folder.parent.rmdir()


def _removed(folder: Path) -> bool:
    """Kill the processes of a group and those below it, and remove the groups. Return whether all are gone."""
    for inner in sorted([folder, *folder.rglob("*/")], key=lambda path: -len(path.parts)):
        with contextlib.suppress(OSError, ValueError):
            for pid in (inner / "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
        with contextlib.suppress(OSError):
            inner.rmdir()
    return not folder.exists()


def sweep() -> int:
    """Remove the groups of sandboxes whose run has ended, as after `kill -9`. Return how many."""
    names = [folder.name for folder in base().iterdir() if folder.is_dir()] if base().is_dir() else []
    owners = {name: name.split("-")[0] for name in names}
    ended = [name for name, owner in owners.items() if owner.isdigit() and not Path("/proc", owner).exists()]
    for name in ended:
        remove(name)
    return len(ended)
