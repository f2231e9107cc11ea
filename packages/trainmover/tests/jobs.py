"""Real jobs for the tests: `trainmover run -- torchrun train.py`, standbys, orders, kills."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conftest import environment
from trainmover.cli import ask

TRAIN = Path(__file__).parent.parent / "examples" / "train.py"
#: Epochs of 25 batches, shuffled anew by a DistributedSampler; the second job has workers and accumulates gradients.
SHAPE = ("--dp", "2", "--pp", "2", "--layers", "1", "--iterations", "100", "--items", "200")
PAIR = ("--dp", "2", "--fsdp", "--layers", "1", "--iterations", "100", "--items", "200", "--workers", "1",
        "--accumulate", "2")  # fmt: skip
#: What an iteration sleeps while a job waits for a standby to warm up, so that it is not at its end by then.
WAITING_S = 1.5


@dataclass
class RunningJob:
    """One job under way."""

    folder: Path
    out: Path
    process: subprocess.Popen[bytes]
    pace_s: float = 0.0
    others: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def access(self) -> dict[str, str]:
        return {
            "TRAINMOVER_CONTROLLER": json.loads((self.folder / "controller.json").read_text())["address"],
            "TRAINMOVER_TOKEN": (self.folder / "token").read_text().strip(),
        }

    def status(self) -> dict[str, Any]:
        with contextlib.suppress(Exception):
            return dict(ask(self.access, {"ask": "status"})["status"])
        return {"members": [], "standbys": [], "history": [], "generation": -1, "under_way": "?"}

    def standby(self, host: str = "spare", **variables: str) -> subprocess.Popen[bytes]:
        variables = {"TRAINMOVER_HOST": host, **self.access, **variables}
        command = [sys.executable, "-m", "trainmover.standby"]
        log = (self.folder / f"standby-{host}.log").open("ab")
        child = subprocess.Popen(command, env=environment(**variables), stdout=log, stderr=log)
        self.others.append(child)
        return child

    def until(self, ready, timeout_s: float = 60) -> dict[str, Any]:
        """Ask for the status until it satisfies `ready`."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            found = self.status()
            if ready(found):
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        raise AssertionError(f"did not come about: {found}\n{self.log()}")

    def until_ready(self, n_standbys: int = 1, timeout_s: float = 90) -> dict[str, Any]:
        """Wait for warm standbys; training goes on meanwhile, slowly."""
        self.pace(max(self.pace_s, WAITING_S))
        found = self.until(lambda now: sum(one["ready"] for one in now["standbys"]) >= n_standbys, timeout_s)
        self.pace(self.pace_s)
        return found

    def until_step(self, step: int, timeout_s: float = 60) -> dict[str, Any]:
        return self.until(lambda now: now["members"] and min(one["step"] for one in now["members"]) >= step, timeout_s)

    def move(self, source: str, target: str = "") -> dict[str, Any]:
        return self.move_all({source: target})

    def move_all(self, hosts: dict[str, str]) -> dict[str, Any]:
        return ask(self.access, {"ask": "move", "hosts": list(hosts.items())})

    def pid_of(self, rank: int) -> int:
        lines = (self.out / f"losses-{rank}.jsonl").read_text().splitlines()
        return int(json.loads(lines[-1])["pid"])

    def pace(self, seconds: float) -> None:
        """From the next iteration on each one sleeps so long."""
        part = self.folder / "pace.part"
        part.write_text(str(seconds))
        part.replace(self.folder / "pace")

    def hit(self, rank: int, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid_of(rank), number)

    def kill_controller(self) -> None:
        os.kill(json.loads((self.folder / "controller.json").read_text())["pid"], signal.SIGKILL)

    def finish(self, timeout_s: float = 90) -> int:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job hangs\n{self.log()}") from None

    def log(self) -> str:
        names = ("controller.log", "job.log")
        logs = [(self.folder / name) for name in names if (self.folder / name).exists()]
        logs += sorted(self.folder.glob("standby-*.log"))
        return "\n".join(f"--- {path.name}\n{path.read_text()[-6000:]}" for path in logs)


@contextlib.contextmanager
def running_job(
    folder: Path, n_ranks: int, *arguments: str, pace_s: float = 0.0, timeouts: str = "{}", **variables: str
) -> Iterator[RunningJob]:
    """Start a job; end whatever is left of it."""
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / "out"
    (folder / "pace").write_text(str(pace_s))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n_ranks)]
    command = [
        "timeout",
        "600",
        sys.executable,
        "-m",
        "trainmover.cli",
        "run",
        "--folder",
        str(folder),
        *(word for name, value in json.loads(timeouts).items() for word in ("--timeout", name, str(value))),
        "--",
    ]
    command += [*launcher, str(TRAIN), "--out", str(out), "--pace-file", str(folder / "pace"), *arguments]
    with (folder / "job.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            env=environment(**{"TRAINMOVER_HOST": "node-{rank}", **variables}),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        job = RunningJob(folder, out, process, pace_s)
        try:
            deadline = time.monotonic() + 90
            while not (folder / "controller.json").exists():
                assert process.poll() is None, job.log()
                assert time.monotonic() < deadline, job.log()
                time.sleep(0.1)
            yield job
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for other in job.others:
                other.kill()
                other.wait()


def alone(folder: Path, n_ranks: int, *arguments: str, timeout_s: float = 400) -> Path:
    """Run the same program to its end without a controller; where it wrote its losses and states."""
    out = folder / "out"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n_ranks)]
    command += [str(TRAIN), "--out", str(out), *arguments]
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "alone.log"
    with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file, env=environment()) as process:
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun then ends its workers
            status = process.wait(60)
    assert status == 0, log.read_text()
    assert len(states(out)) == n_ranks
    return out


def losses(out: Path) -> dict[int, dict[int, Any]]:
    """Loss and sample numbers of every iteration by rank; where an iteration was repeated, the last."""
    found: dict[int, dict[int, Any]] = {}
    for path in out.glob("losses-*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        found[int(path.stem.split("-")[1])] = {line["step"]: (line["loss"], line["samples"]) for line in lines}
    return found


def states(out: Path) -> dict[str, Any]:
    """Digests of the final states, by rank."""
    return {path.stem: json.loads(path.read_text()) for path in out.glob("state-*.txt")}
