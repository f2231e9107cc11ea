"""A real job of four processes, for the demo."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trainmover.cli import ask


class Run:
    """One job under way: the demo's training on four ranks, each of which counts as a host.

    Args:
        folder: For its files.
        arguments: Of the training script, but for --out.
    """

    def __init__(self, folder: Path, arguments: Sequence[str]) -> None:
        self.folder, self.out = folder, folder / "out"
        folder.mkdir(parents=True, exist_ok=True)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
        script = [str(Path(__file__).with_name("train.py")), *arguments, "--out", str(self.out)]
        run = [sys.executable, "-m", "trainmover.cli", "run", "--folder", str(folder), "--"]
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        self.environment["TRAINMOVER_HOST"] = "node-{rank}"
        self.log = (folder / "job.log").open("wb")
        self.process = subprocess.Popen(
            [*run, *torchrun, *script],
            env=self.environment,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
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

    def until(self, ready: Callable[[dict[str, Any]], Any], timeout_s: float = 180.0) -> dict[str, Any]:
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
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        for process in (self.process, *self.children):
            if process.poll() is None:
                process.kill()
            process.wait()


def ready(found: dict[str, Any]) -> bool:
    """Whether a standby is warm."""
    return any(one["ready"] for one in found["standbys"])
