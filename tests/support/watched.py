"""A command under `eroica run`, and what it leaves: its status while it runs, its verdicts, its end."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from eroica.model.verdict import Verdict


def environment(**more: str) -> dict[str, str]:
    """The user's, with nothing of Eroica in it."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("EROICA_")}
    return {**inherited, "OMP_NUM_THREADS": "1", **more}


def torchrun(script: Path, *arguments: str, ranks: int = 2, launcher: tuple[str, ...] = ()) -> list[str]:
    """A job of several workers on this host."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [*launch, *launcher, str(script), *arguments]


class WatchedJob:
    """One, from entering the context; whatever is left of it is killed when it is left.

    Args:
        directory: Where it works; for `report`, the run directory, and `job.log`, what it says.
        command: The training.
        variables: More of the environment.
        settings: Of Eroica.
    """

    def __init__(self, directory: Path, command: list[str], settings: dict[str, str], **variables: str) -> None:
        self._directory, self.out, self._log = directory, directory / "report", directory / "job.log"
        options = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        self._command = [sys.executable, "-m", "eroica", "run", "--out", str(self.out), *options, "--", *command]
        self._variables = variables

    def __enter__(self) -> WatchedJob:
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                self._command, env=environment(**self._variables), cwd=self._directory, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log,
            )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        family: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(self.process.pid).children(recursive=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.terminate()
            self.process.wait(60)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.kill()
        self.process.wait()

    @property
    def said(self) -> str:
        """What the command and Eroica have said."""
        return self._log.read_text()

    def status(self) -> dict[str, Any]:
        """What `status.json` says; empty while there is none."""
        path = self.out / "status.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def verdict(self, window: int = 0) -> Verdict:
        """That of a window, or the final one."""
        place = self.out / "windows" / str(window) if window else self.out
        return Verdict.from_json((place / "verdict.json").read_bytes())

    def await_status(self, is_so: Callable[[dict[str, Any]], bool], within_s: float = 60.0) -> dict[str, Any]:
        """The first status that is as wanted."""
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            if (status := self.status()) and is_so(status):
                return status
            time.sleep(0.2)
        raise TimeoutError(f"it never came to that: {self.status()}; {self.said[-3000:]}")

    def await_blocked(self, within_s: float = 90.0) -> Verdict:
        """The first verdict "blocked" of a window or look: communication alone says where, and sooner."""
        end = time.monotonic() + within_s
        while time.monotonic() < end and self.process.poll() is None:
            for path in sorted((self.out / "windows").glob("*/verdict.json")):
                verdict = Verdict.from_json(path.read_bytes())
                if verdict.verdict == "blocked" and verdict.found_by != "communication":
                    return verdict
            time.sleep(0.1)
        raise TimeoutError(f"no verdict: {self.status()}; {self.said[-3000:]}")

    def order_window(self) -> None:
        """Ask for a window once the job is in full swing, and wait until its workers have been told."""
        self.await_status(lambda status: status["iteration"] > 60)
        subprocess.run([sys.executable, "-m", "eroica", "profile", "--out", str(self.out), "--no-wait"], check=True)
        self.await_status(lambda status: any(line["phase"] == "window" for line in status["windows"]))
