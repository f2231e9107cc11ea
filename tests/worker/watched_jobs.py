"""Real training processes, watched by an agent that only reads beats and gives orders."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from eroica.wire.beat import DONE, MISSED, ORDER_FAILED, SKIPPED, WINDOW, BeatReader, Order, Result
from eroica.wire.places import places, private_directory
from eroica.worker import bootstrap_directory
from support.watched import environment

PROGRAMS = Path(__file__).parent / "programs"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
SETTLED = (DONE, MISSED, SKIPPED, ORDER_FAILED)


@dataclass
class Watched:
    """A worker as the test agent saw it."""

    reader: BeatReader
    beats: list = field(default_factory=list)
    results: list[Result] = field(default_factory=list)

    def look(self) -> None:
        beat, result = self.reader.beat(), self.reader.result()
        if beat is not None and (not self.beats or self.beats[-1] != beat):
            self.beats.append(beat)
        if result.status and (not self.results or self.results[-1] != result):
            self.results.append(result)


class Host:
    """The runtime directory of a test job; holds the agent's lock, so that no real agent starts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runtime = private_directory(places(self.environment()).runtime)
        self._lock = os.open(self.runtime / "agent.lock", os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.workers: dict[int, Watched] = {}

    def close(self) -> None:
        for worker in self.workers.values():
            worker.reader.close()
        os.close(self._lock)

    def environment(self, **variables: str) -> dict[str, str]:
        ours = {"PYTHONPATH": str(bootstrap_directory()), "EROICA_JOB": "test", "EROICA_RUNTIME_DIR": str(self.root)}
        ours |= {f"EROICA_{name.upper()}_DIR": str(self.root / name) for name in ("run", "scratch")}
        return environment(**{**ours, **variables})

    def scratch(self, name: str) -> Path:
        place = self.root / "scratch" / name
        place.mkdir(parents=True, exist_ok=True)
        return place

    def run(
        self,
        command: list[str],
        act: Callable[[Host], None] = lambda host: None,
        limit_s: float = 60.0,
        **variables: str,
    ) -> subprocess.CompletedProcess[str]:
        """Run a job to its end, looking at its beats and calling `act` every few milliseconds."""
        process = subprocess.Popen(
            command, env=self.environment(**variables), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        end = time.monotonic() + limit_s
        try:
            while process.poll() is None and time.monotonic() < end:
                self.look()
                act(self)
                time.sleep(0.003)
        finally:
            if process.poll() is None:
                process.kill()
            out, err = process.communicate()
        self.look()
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def run_python(self, place: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program of this text, whose file is made in `place`, to its end."""
        program = place / "train.py"
        program.write_text(code)
        return self.run([sys.executable, str(program), *arguments])

    def look(self) -> None:
        for path in self.runtime.glob("*.beat"):
            pid = int(path.stem)
            if pid not in self.workers:
                self.workers[pid] = Watched(BeatReader.open(path))
        for worker in self.workers.values():
            worker.look()

    def by_rank(self) -> dict[int, Watched]:
        return {worker.reader.identity["global_rank"]: worker for worker in self.workers.values()}


class OneOrder:
    """Gives every worker the same order, once all of them are far enough."""

    def __init__(
        self, workers: int, kind: int, at: int = 15, lead: int = 8, length: int = 5, last: int = 0, **fields: int
    ) -> None:
        self.first, self.last = 0, last
        self._workers, self._at, self._lead, self._length = workers, at, lead, length
        self._kind, self._fields = kind, fields

    def __call__(self, host: Host) -> None:
        if self.first or len(host.workers) < self._workers:
            return
        reached = [worker.beats[-1].iteration if worker.beats else 0 for worker in host.workers.values()]
        if min(reached) < self._at:
            return
        self.first = max(reached) + self._lead
        self.last = self.last or self.first + self._length
        for pid, worker in host.workers.items():
            fields = {"flags": 0, "max_events": 0, "sampling_hz": 0, **self._fields}
            worker.reader.give(
                Order(
                    window_id=7, kind=self._kind, first_iteration=self.first, last_iteration=self.last,
                    directory=str(host.scratch(str(pid))), **fields,
                )
            )  # fmt: skip


class Windows:
    """One window after another, of so many iterations."""

    def __init__(self, length: int) -> None:
        self.length, self.given = length, 0

    def __call__(self, host: Host) -> None:
        for pid, worker in host.workers.items():
            settled = [result.window_id for result in worker.results if result.status in SETTLED]
            if worker.beats and worker.beats[-1].iteration > 5 and self.given == (settled[-1] if settled else 0):
                self.given += 1
                first, place = worker.beats[-1].iteration + 8, str(host.scratch(f"{pid}-{self.given}"))
                worker.reader.give(Order(self.given, WINDOW, 0, first, first + self.length, 0, 0, place))


def both(
    host: Host, place: Path, code: str, *options: str, words: tuple[str, ...] = (), limit_s: float = 60.0
) -> tuple[Host, str]:
    """Run a program with and without us; it must look the same. Returns what it said on standard error."""
    program = place / "train.py"
    program.write_text(code)
    command = [sys.executable, *options, str(program), *words]
    environment = host.environment()
    del environment["PYTHONPATH"]
    alone = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=limit_s)
    watched = host.run(command, limit_s=limit_s, EROICA_WORKER_FAILURES_RAISE="1")
    assert watched.returncode == alone.returncode, watched.stderr
    assert watched.stdout == alone.stdout
    assert _timeless(watched.stderr) == _timeless(alone.stderr)
    return host, alone.stderr


def _timeless(text: str) -> str:
    """Without addresses, and without the moment and the process in what torch logs."""
    return re.sub(r"(?m)^(\[?[IWEF])\d{4} [\d:.]+ \d+ ", r"\1 ", re.sub("0x[0-9a-f]+", "0x", text))
