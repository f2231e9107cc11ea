"""A bandwidth test: members that repeat an allreduce, and jobs of such members on a testbed.

`python -m c4p.measure` is one member.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
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
        C4PError: A member failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        jobs = [_start(bed, spec, Path(folder) / str(number)) for number, spec in enumerate(specs)]
        members = [member for job in jobs for member in job]
        timer = threading.Timer(limit_s, _kill, [members])
        timer.start()
        try:
            for member in members:
                member.wait_started()
            if during is not None:
                during()
            for member in members:
                member.finish()
        finally:
            timer.cancel()
            _kill(members)
    return [_result(job) for job in jobs]


class _Member:
    """A running member. Two threads read its output."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []
        self.errors = ""
        self._started = threading.Event()
        self._readers = [threading.Thread(target=self._read), threading.Thread(target=self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        for line in self.process.stdout or []:
            self.lines.append(json.loads(line))
            self._started.set()
        self._started.set()

    def _read_errors(self) -> None:
        self.errors = (self.process.stderr.read() if self.process.stderr else "")[-4000:]

    def wait_started(self) -> None:
        self._started.wait()

    def finish(self) -> None:
        for reader in self._readers:
            reader.join()
        if self.process.wait():
            raise C4PError(f"a member ended with {self.process.returncode}: {self.errors}")
        for stream in (self.process.stdout, self.process.stderr):
            if stream:
                stream.close()


def _kill(members: Sequence[_Member]) -> None:
    for member in members:
        member.process.kill()
        member.process.wait()


def _start(bed: Testbed, spec: JobSpec, folder: Path) -> list[_Member]:
    members = []
    for rank, host in enumerate(spec.hosts):
        options = {
            "rank": rank, "size": len(spec.hosts), "meet": folder, "address": bed.addresses[host],
            "sockets": spec.sockets, "ports": spec.ports, "planner": spec.planner, "bytes": spec.length,
            "seconds": spec.seconds,
        }  # fmt: skip
        argv = [sys.executable, "-m", "c4p.measure"]
        argv += [text for key, value in options.items() for text in (f"--{key}", str(value))]
        members.append(_Member(bed.start(host, argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)))
    return members


def _result(job: list[_Member]) -> JobResult:
    right = all(line["right"] for member in job for line in member.lines[:-1])
    return JobResult(job[0].lines[:-1], [member.lines[-1] for member in job], right)


@click.command()
@click.option("--rank", type=int, required=True)
@click.option("--size", type=int, required=True)
@click.option("--meet", required=True, help="A folder that all members see, fresh for each group.")
@click.option("--address", default="", help="Own address.")
@click.option("--sockets", default=4, show_default=True)
@click.option("--ports", type=click.Choice(["planned", "random"]), default="planned", show_default=True)
@click.option("--planner", default="", help="URL of a planner.")
@click.option("--bytes", "length", default=16 << 20, show_default=True, help="Size of each allreduce.")
@click.option("--seconds", default=3.0, show_default=True)
def main(rank: int, size: int, meet: str, length: int, seconds: float, **options: Any) -> None:
    """Repeat an allreduce for some seconds. Print a line of JSON for each one, and a last line with paths and events.

    Bus bandwidth is what each member sends: 2 (W - 1) / W times the size over the time, in Mbit/s.
    """
    with Group(rank, size, Folder(meet), Options(timeout_s=60.0, **options)) as group:
        array = np.ones(length // 4, dtype=np.float32)
        flag = np.zeros(1, dtype=np.int64)
        group.allreduce(array)
        began = time.monotonic()
        while not flag[0]:
            array[:] = 1.0
            start = time.monotonic()
            group.allreduce(array)
            took = time.monotonic() - start
            good = bool(array[0] == size and array[-1] == size)
            busbw = 2 * (size - 1) / size * length * 8 / took / 1e6
            _say({"end": time.time(), "took_s": took, "busbw_mbit": busbw, "right": good})
            flag[0] = time.monotonic() - began > seconds
            group.allreduce(flag, "max")
        _say(
            {
                "paths": [[p.port, "|".join(p.path), p.delivered_bytes, p.rate] for p in group.paths],
                "events": [asdict(event) for event in group.events],
                "sent_again_bytes": group.counters.sent_again_bytes,
                "sent_bytes": group.counters.sent_bytes,
                "duplicates": group.counters.duplicates,
            }
        )


def _say(record: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
