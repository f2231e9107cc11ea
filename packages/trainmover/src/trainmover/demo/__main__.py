"""`make demo`: a job of four processes loses a member twice, by order and by surprise, and computes the same.

    python -m trainmover.demo [--folder DIR]

Beside it runs the same job, undisturbed. Writes DIR/iterations.svg. Exit status 0 if all losses are equal to the last
bit.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainmover.cli import ask
from trainmover.demo.picture import draw

ITERATIONS = 400
SHAPE = ["--dp", "2", "--pp", "2", "--tp", "1", "--iterations", str(ITERATIONS)]
PACE_S = 0.04


class Run:
    """One job under way."""

    def __init__(self, folder: Path, pace_s: float) -> None:
        self.folder, self.out = folder, folder / "out"
        folder.mkdir(parents=True, exist_ok=True)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
        script = [str(Path(__file__).with_name("train.py")), *SHAPE, "--pace", str(pace_s), "--out", str(self.out)]
        run = [sys.executable, "-m", "trainmover.cli", "run", "--folder", str(folder), "--each-rank-a-host", "--"]
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        self.log = (folder / "job.log").open("wb")
        self.process = subprocess.Popen(
            [*run, *torchrun, *script], env=self.environment, stdout=self.log, stderr=self.log, start_new_session=True
        )
        self.children: list[subprocess.Popen[bytes]] = []

    def access(self) -> dict[str, str]:
        """Where the controller is, and the token."""
        return {
            "TRAINMOVER_CONTROLLER": json.loads((self.folder / "controller.json").read_text())["address"],
            "TRAINMOVER_TOKEN": (self.folder / "token").read_text().strip(),
        }

    def status(self) -> dict[str, Any]:
        """The controller's view."""
        return dict(ask(self.access(), {"ask": "status"})["status"])

    def standby(self, host: str) -> None:
        """Start a standby."""
        environment = {**self.environment, **self.access(), "TRAINMOVER_HOST": host}
        command = [sys.executable, "-m", "trainmover.standby"]
        self.children.append(subprocess.Popen(command, env=environment, stdout=self.log, stderr=self.log))

    def until(self, ready: Callable[[dict[str, Any]], Any], timeout_s: float = 60.0) -> dict[str, Any]:
        """Wait for the status to be as wanted."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                found = self.status()
                if ready(found):
                    return found
            except Exception:  # noqa: BLE001 - not up yet
                pass
            time.sleep(0.1)
        raise SystemExit(f"the demo's job does not come on; its logs are in {self.folder}")

    def lines(self, rank: int) -> list[dict[str, Any]]:
        """What the rank has logged: one record an iteration, repeated ones again."""
        return [json.loads(line) for line in (self.out / f"losses-{rank}.jsonl").read_text().splitlines()]

    def end(self) -> None:
        """End whatever is left."""
        for process in (self.process, *self.children):
            if process.poll() is None:
                process.kill()
            process.wait()


def ready(found: dict[str, Any]) -> bool:
    """Whether a standby is warm."""
    return any(one["ready"] for one in found["standbys"])


def main() -> int:
    """Run the demo; its exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    folder = parser.parse_args().folder or Path(tempfile.mkdtemp(prefix="trainmover-demo-"))
    began = time.monotonic()
    print("TrainMover demo: a small GPT on 4 processes (2 pipeline stages x 2 replicas), each counts as a host")
    quiet, moved = Run(folder / "undisturbed", 0.0), None
    try:
        if quiet.process.wait(60) != 0:
            print(f"the undisturbed job failed; see {folder}")
            return 1
        moved = Run(folder / "moved", PACE_S)
        events = disturb(moved)
        status = moved.process.wait(90)
    finally:
        quiet.end()
        if moved is not None:
            moved.end()
    picture = folder / "iterations.svg"
    picture.write_text(draw([moved.lines(rank) for rank in range(4)], events))
    differ = sum(
        {one["step"]: one["loss"] for one in quiet.lines(rank)}
        != {one["step"]: one["loss"] for one in moved.lines(rank)}
        for rank in range(4)
    )
    states = all(
        (quiet.out / f"state-{r}.txt").read_text() == (moved.out / f"state-{r}.txt").read_text() for r in range(4)
    )
    print(f"picture of the iterations: {picture}")
    print(f"loss equal: {'no' if differ or status else 'yes'} ({ITERATIONS} iterations, 4 ranks, to the last bit)")
    print(f"parameters, optimizer, random numbers and data position equal: {'yes' if states else 'no'}")
    print(f"took {time.monotonic() - began:.0f} s")
    return 0 if states and not differ and status == 0 else 1


def disturb(job: Run) -> list[tuple[float, str]]:
    """Move one member by order, kill another; when each happened and what it was."""
    job.until(lambda _now: True)
    job.standby("spare-1")
    job.until(ready)
    events = [(time.time(), "node-1 is moved to spare-1")]
    answer = ask(job.access(), {"ask": "move", "from": "node-1", "to": "spare-1", "force": True})
    print(f"by order:    {answer['text']}")
    job.standby("spare-2")
    job.until(ready)
    victim = job.lines(3)[-1]["pid"]
    events.append((time.time(), "node-3 is killed"))
    os.kill(victim, signal.SIGKILL)
    found = job.until(lambda now: any(one["what"] == "recovery" for one in now["history"]) and not now["under_way"])
    took_s = next(one["took_s"] for one in found["history"] if one["what"] == "recovery")
    print(f"by surprise: rank 3 was killed; spare-2 has its role {took_s:.2f} s after the loss was seen")
    pauses = [one["took_s"] for one in found["history"] if one["what"] == "switched"]
    print(f"             the move by order had stopped the ranks for {max(pauses):.3f} s at most")
    return events


if __name__ == "__main__":
    raise SystemExit(main())
