"""A bandwidth test: members that repeat an allreduce, and jobs of such members on a testbed.

`python -m c4p.measure OPTIONS` is one member; its options are a JSON object.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from c4p.errors import C4PError
from c4p.group import Group, Options
from c4p.rendezvous import Folder
from c4p.testbed import Testbed


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One job on a testbed.

    Attributes:
        hosts: Host of each member.
        ports: "planned" or "random".
        seconds: How long.
        sockets: Connections to a neighbour.
        length: Bytes of each allreduce.
        planner: URL of a planner.
    """

    hosts: Sequence[int]
    ports: str = "planned"
    seconds: float = 3.0
    sockets: int = 4
    length: int = 32 << 20
    planner: str = ""


@dataclass(slots=True)
class JobResult:
    """The output of a job's members.

    Attributes:
        operations: Each allreduce of member 0: end (seconds since the epoch), took_s, busbw_mbit, right.
        members: Each member's last line: paths, events, counters.
        right: Whether every allreduce of every member gave the right sum.
    """

    operations: list[dict[str, Any]]
    members: list[dict[str, Any]]
    right: bool

    def busbw_mbit(self, since: float = 0.0, until: float = float("inf")) -> float:
        """Return the mean bus bandwidth, by time, of the operations that began after `since` and ended before `until`.

        Raises:
            ValueError: There is none.
        """
        some = [o for o in self.operations if o["end"] - o["took_s"] >= since and o["end"] <= until]
        if not some:
            raise ValueError("no operation in this span")
        return float(sum(o["busbw_mbit"] * o["took_s"] for o in some) / sum(o["took_s"] for o in some))


def run_jobs(
    bed: Testbed, specs: Sequence[JobSpec], during: Callable[[], None] | None = None, limit_s: float = 90.0
) -> list[JobResult]:
    """Run jobs at the same time.

    Args:
        bed: Where.
        specs: The jobs.
        during: Called when all have started to measure.
        limit_s: They are ended after this time.

    Raises:
        C4PError: A member failed, or did not end in time.
    """
    until = time.monotonic() + limit_s
    with tempfile.TemporaryDirectory() as folder:
        jobs = [_start(bed, spec, Path(folder) / f"job{number}") for number, spec in enumerate(specs)]
        members = [member for job in jobs for member in job]
        try:
            if during is not None:
                while not all(member.has_started for member in members) and time.monotonic() < until:
                    time.sleep(0.02)
                during()
            return [_result([member.lines(until - time.monotonic()) for member in job]) for job in jobs]
        finally:
            for member in members:
                member.process.kill()
                member.process.wait()


@dataclass(frozen=True, slots=True)
class _Member:
    """A running member and the file of its output."""

    process: subprocess.Popen[str]
    output: Path

    @property
    def has_started(self) -> bool:
        return self.output.stat().st_size > 0 or self.process.poll() is not None

    def lines(self, timeout_s: float) -> list[dict[str, Any]]:
        try:
            status = self.process.wait(max(0.0, timeout_s))
        except subprocess.TimeoutExpired as error:
            raise C4PError("a member did not end in time") from error
        if status:
            raise C4PError(f"a member ended with {status}: {self.output.with_suffix('.err').read_text()[-4000:]}")
        return [json.loads(line) for line in self.output.read_text().splitlines()]


def _start(bed: Testbed, spec: JobSpec, meet: Path) -> list[_Member]:
    members = []
    for rank, host in enumerate(spec.hosts):
        options = {**asdict(spec), "rank": rank, "meet": str(meet), "address": bed.addresses[host]}
        output = meet.with_name(f"{meet.name}-{rank}")
        with output.open("w") as file, output.with_suffix(".err").open("w") as errors:
            argv = [sys.executable, "-m", "c4p.measure", json.dumps(options)]
            members.append(_Member(bed.start(host, argv, stdout=file, stderr=errors), output))
    return members


def _result(job: list[list[dict[str, Any]]]) -> JobResult:
    right = all(line["right"] for lines in job for line in lines[:-1])
    return JobResult(job[0][:-1], [lines[-1] for lines in job], right)


def measure(spec: JobSpec, rank: int, meet: str, address: str) -> None:
    """Repeat an allreduce for some seconds. Print a line of JSON for each one, and a last line with paths and events.

    Bus bandwidth is what each member sends: 2 (W - 1) / W times the size over the time, in Mbit/s.
    """
    size = len(spec.hosts)
    options = Options(address, spec.sockets, spec.ports, spec.planner, timeout_s=60.0)
    with Group(rank, size, Folder(meet), options) as group:
        array = np.ones(spec.length // 4, dtype=np.float32)
        flag = np.zeros(1, dtype=np.int64)
        group.allreduce(array)
        began = time.monotonic()
        while not flag[0]:
            array[:] = 1.0
            start = time.monotonic()
            group.allreduce(array)
            took = time.monotonic() - start
            good = bool(array[0] == size and array[-1] == size)
            busbw = 2 * (size - 1) / size * spec.length * 8 / took / 1e6
            _say({"end": time.time(), "took_s": took, "busbw_mbit": busbw, "right": good})
            flag[0] = time.monotonic() - began > spec.seconds
            group.allreduce(flag, "max")
        paths = [[p.port, "|".join(p.path), p.delivered_bytes, p.rate] for p in group.paths]
        _say({"paths": paths, "events": [asdict(event) for event in group.events], **asdict(group.counters)})


def _say(record: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    measure(JobSpec(**{name: given.pop(name) for name in JobSpec.__slots__}), **given)
