"""Where a container's memory runs out, the kernel ends agent and collector before the job, and the job goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.jobs
CGROUPS = Path("/sys/fs/cgroup")
#: Bytes that the training wants beyond the limit; agent and collector have more than that of their own.
ROOM = 15_000_000

#: Trains, waits for the watchers, fills the group's memory but for a remainder smaller than they are, and trains on.
TRAINING = """
import mmap, pathlib, sys, time, torch
torch.set_num_threads(1)
most, used, run, room = int(sys.argv[1]), pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), int(sys.argv[4])
p = torch.nn.Parameter(torch.ones(64, 64)); optimizer = torch.optim.SGD([p], 1e-3)
def steps(count):
    for _ in range(count): optimizer.zero_grad(); (p @ p).sum().backward(); optimizer.step(); time.sleep(0.005)
steps(40)
end = time.monotonic() + 30
while len(sys.argv) > 5 and not (run / "collector.json").exists() and time.monotonic() < end: steps(10)
kept = []
for _ in range(int(most - int(used.read_text()) + room) >> 20):
    kept.append(mmap.mmap(-1, 1 << 20)); kept[-1].write(bytes(1 << 20))
steps(300)
print("trained", p.sum().item(), flush=True)
sys.exit(5)
"""


class Group:
    """A control group with a limit of memory, of version 1 or 2."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.first = (directory / "memory.limit_in_bytes").exists()
        self.used = directory / ("memory.usage_in_bytes" if self.first else "memory.current")

    def limit(self, most: int) -> None:
        (self.directory / ("memory.limit_in_bytes" if self.first else "memory.max")).write_text(str(most))
        for swap in ("memory.memsw.limit_in_bytes", "memory.swap.max"):
            if (self.directory / swap).exists():
                (self.directory / swap).write_text(str(most if self.first else 0))

    @property
    def killed(self) -> int:
        """How many processes the kernel has ended here for want of memory."""
        told = (self.directory / ("memory.oom_control" if self.first else "memory.events")).read_text().split("\n")
        return sum(int(line.split()[1]) for line in told if line.startswith("oom_kill "))

    def enter(self) -> None:
        (self.directory / "cgroup.procs").write_text(str(os.getpid()))


@pytest.fixture
def group() -> Iterator[Group]:
    lines = Path("/proc/self/cgroup").read_text().splitlines() if CGROUPS.exists() else []
    own = {line.split(":")[1]: line.split(":", 2)[2].strip("/") for line in lines}
    parents = [CGROUPS / "memory" / own.get("memory", ""), CGROUPS, CGROUPS / "unified"]
    for parent in parents:
        offered = parent / "cgroup.subtree_control"
        try:
            if offered.exists():
                offered.write_text("+memory")
            directory = parent / f"eroica-test-{os.getpid()}"
            directory.mkdir()
        except OSError:
            continue
        if any((directory / name).exists() for name in ("memory.max", "memory.limit_in_bytes")):
            break
        directory.rmdir()
    else:
        pytest.skip("no control group with a limit of memory can be made: this needs root and the memory controller")
    yield Group(directory)
    end = time.monotonic() + 90
    while True:  # the page of the verdict is still being drawn
        try:
            directory.rmdir()
            break
        except OSError:
            assert time.monotonic() < end, (directory / "cgroup.procs").read_text()
            time.sleep(0.1)


def test_out_of_memory_ends_the_watchers_and_not_the_job(group: Group, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    out, verdict = tmp_path / "out", tmp_path / "verdict.json"
    most = 700_000_000
    group.limit(most)
    training = [sys.executable, "train.py", str(most), str(group.used), str(out), f"-{ROOM}"]
    alone = subprocess.run(
        training, cwd=tmp_path, capture_output=True, text=True, timeout=120, preexec_fn=group.enter, check=False
    )
    assert (alone.returncode, alone.stderr, group.killed) == (5, "", 0)
    training[-1] = str(ROOM)  # more than there is, and less than what the watchers have
    watched = subprocess.run(
        [sys.executable, "-m", "eroica", "run", "--quiet", "--no-footer", "--out", str(out), "--json", str(verdict),
         "--", *training, "watched"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, preexec_fn=group.enter, check=False,
    )  # fmt: skip
    assert (watched.returncode, watched.stdout) == (5, alone.stdout), watched.stderr
    assert group.killed >= 1, "the memory sufficed"
    assert len(watched.stderr.splitlines()) <= 1 and "SIGKILL" in watched.stderr, watched.stderr
    assert json.loads(verdict.read_text())["verdict"] == "undetermined"
