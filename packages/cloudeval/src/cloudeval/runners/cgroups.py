"""Control groups of sandboxes: limits for the whole sandbox, readings for checks, and removal of what a killed run left."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PARENT = "cloudeval"

#: Limits of one sandbox with everything in it. A pod of a problem needs some 10 MB and 5 processes; Envoy 100 MB.
MEMORY_BYTES = 768 * 2**20
PROCESSES = 512
#: Weight of a sandbox beside other processes (1024 is usual), so that a busy answer leaves room for other tests.
CPU_SHARES = 512


def is_v2() -> bool:
    """Return True if this machine has the unified hierarchy only."""
    return (ROOT / "cgroup.controllers").exists()


def _folders(name: str) -> dict[str, Path]:
    if is_v2():
        return {"": ROOT / PARENT / name}
    return {
        part: ROOT / part / PARENT / name
        for part in ("memory", "pids", "cpu", "freezer", "devices", "cpuset", "blkio")
        if (ROOT / part).is_dir()
    }


def create(name: str) -> None:
    """Make the groups of a sandbox and set its limits."""
    folders = _folders(name)
    for folder in folders.values():
        for _ in range(20):  # another run may just be removing the parent
            with contextlib.suppress(FileNotFoundError):
                folder.mkdir(parents=True, exist_ok=True)
                break
    if is_v2():
        for folder in (ROOT, ROOT / PARENT, ROOT / PARENT / name):
            _write(folder / "cgroup.subtree_control", "+memory +pids +cpu")
        limits = {"memory.max": str(MEMORY_BYTES), "pids.max": str(PROCESSES), "cpu.weight": "50"}
        for file, value in limits.items():
            _write(folders[""] / file, value)
        return
    if "cpuset" in folders:
        for folder in (folders["cpuset"].parent, folders["cpuset"]):
            for file in ("cpuset.cpus", "cpuset.mems"):
                _write(folder / file, (ROOT / "cpuset" / file).read_text().strip())
    for part, file, limit in (
        ("memory", "memory.limit_in_bytes", MEMORY_BYTES),
        ("pids", "pids.max", PROCESSES),
        ("cpu", "cpu.shares", CPU_SHARES),
    ):
        if part in folders:
            _write(folders[part] / file, str(limit))


def _write(file: Path, value: str) -> None:
    with contextlib.suppress(OSError):  # a controller that this machine lacks limits nothing
        file.write_text(value)


def read(name: str, container: str) -> dict[str, float | None]:
    """Return the limits that hold for a container: `memory` in bytes, `cpu` in cores, `shares`; None means unlimited."""
    folders = {part: folder / container for part, folder in _folders(name).items()}
    if is_v2():
        memory, cpu = (folders[""] / "memory.max").read_text().strip(), (folders[""] / "cpu.max").read_text().split()
        return {
            "memory": None if memory == "max" else float(memory),
            "cpu": None if cpu[0] == "max" else int(cpu[0]) / int(cpu[1]),
            "shares": 1 + (float((folders[""] / "cpu.weight").read_text()) - 1) * 262142 / 9999,
        }
    memory_bytes = float((folders["memory"] / "memory.limit_in_bytes").read_text())
    quota = int((folders["cpu"] / "cpu.cfs_quota_us").read_text())
    return {
        "memory": None if memory_bytes > 2**60 else memory_bytes,
        "shares": float((folders["cpu"] / "cpu.shares").read_text()),
        "cpu": None if quota < 0 else quota / int((folders["cpu"] / "cpu.cfs_period_us").read_text()),
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
    for _ in range(50):
        left = False
        for folder in _folders(name).values():
            for inner in (
                sorted([folder, *folder.rglob("*/")], key=lambda path: -len(path.parts)) if folder.is_dir() else []
            ):
                if not inner.is_dir():
                    continue
                with contextlib.suppress(OSError, ValueError):
                    for pid in (inner / "cgroup.procs").read_text().split():
                        os.kill(int(pid), signal.SIGKILL)
                try:
                    inner.rmdir()
                except OSError:
                    left = True
        if not left:
            break
        time.sleep(0.02)
    for folder in _folders(name).values():
        with contextlib.suppress(OSError):  # other sandboxes may still be there
            folder.parent.rmdir()


def sweep() -> int:
    """Remove the groups of sandboxes whose run has ended, as after `kill -9`. Return how many."""
    base = ROOT / PARENT if is_v2() else ROOT / "pids" / PARENT
    count = 0
    for folder in base.iterdir() if base.is_dir() else []:
        owner = folder.name.split("-")[0]
        if folder.is_dir() and owner.isdigit() and not Path("/proc", owner).exists():
            remove(folder.name)
            count += 1
    return count
