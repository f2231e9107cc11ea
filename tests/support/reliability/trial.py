"""One run of the training, under `eroica run` or alone, and what disturbers need to know of it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil

from eroica.wire.beat import OPEN, WINDOW, Beat, BeatReader, Result
from eroica.wire.places import Places, places
from support.reliability.comparison import Outcome
from support.watched import environment

Found = TypeVar("Found")

TRAINING = Path(__file__).with_name("training.py")
PATIENCE_S = 60.0
PAUSE_S = 0.015
_QUICK = (
    "baseline_after_iterations=30", "baseline_window_s=1.0",
    "window_deadline_s=4",
)  # fmt: skip


class Reference:
    """The training without Eroica.

    Args:
        directory: Of this run, empty.
        ranks: Processes; one is started without torchrun.
        options: Of the training.
        pause_s: Rest after each step.
        python: The interpreter.
    """

    def __init__(
        self,
        directory: Path,
        ranks: int = 1,
        options: Sequence[str] = (),
        pause_s: float = 0.0,
        python: str = sys.executable,
        launcher: Sequence[str] = (),
        **variables: str,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.end_file = directory / "end"
        places_of = {"RUN": "report", "RUNTIME": "memory", "SCRATCH": "scratch"}
        lie = {f"EROICA_{name}_DIR": str(directory / place) for name, place in places_of.items()}
        self.environment = environment(EROICA_JOB="trial", EROICA_HOST="here", **{**lie, **variables})
        options = [option.replace("{}", str(directory)) for option in options]
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        if "--fails-once" in options:
            torchrun += ["--max-restarts", "1"]
        start = [python, *(torchrun if ranks > 1 else ["-u"])]
        shutil.copyfile(TRAINING, directory / "train.py")
        training = [str(directory / "train.py"), "--end", str(self.end_file), "--pause", str(pause_s), *options]
        with (directory / "out").open("wb") as out, (directory / "err").open("wb") as err:
            self.process = subprocess.Popen(
                [*launcher, *start, *training], env=self.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                cwd=directory, start_new_session=True,
            )  # fmt: skip

    @property
    def steps(self) -> int:
        """Lines said so far."""
        return (self.directory / "out").read_bytes().count(b"\n")

    def await_steps(self, count: int) -> None:
        """Wait until so many lines were said since the start."""
        self.await_true(lambda: self.steps >= count, f"{count} steps")

    def await_true(self, condition: Callable[[], Found], what: str, patience_s: float = PATIENCE_S) -> Found:
        """Wait until something is the case, and return it.

        Raises:
            TimeoutError: It never was, or the training ended before.
        """
        end = time.monotonic() + patience_s
        while time.monotonic() < end:
            found = condition()
            if found:
                return found
            if self.process.poll() is not None:
                raise TimeoutError(f"the training ended before {what}: {self._read('err')[-2000:]}")
            time.sleep(0.005)
        raise TimeoutError(f"{what} never came: {self._read('err')[-2000:]}")

    def end(self) -> Outcome:
        """Let the training end, and wait."""
        self.end_file.touch()
        return self.wait()

    def wait(self) -> Outcome:
        """Wait for its end."""
        self.process.wait(PATIENCE_S)
        return Outcome(self.process.returncode, self._read("out"), self._read("err"))

    def signal_all(self, number: signal.Signals) -> None:
        """Signal every process of the session, as a scheduler does."""
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """Leave nothing behind, whatever happened."""
        with contextlib.suppress(psutil.NoSuchProcess):
            everybody = [*psutil.Process(self.process.pid).children(recursive=True), self.process]
            for process in everybody:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self.process.wait()

    def _read(self, name: str) -> str:
        return (self.directory / name).read_text(errors="backslashreplace").replace(str(self.directory), "{}")


class Trial(Reference):
    """The training under `eroica run`.

    Args:
        directory: Of this run, empty.
        ranks: Processes.
        options: Of the training.
        settings: Of Eroica, beside those that make windows come early.
        launcher: Put before everything, e.g. to run it in a mount namespace of its own.
        python: The interpreter.
        **variables: Of the environment.
    """

    def __init__(
        self,
        directory: Path,
        ranks: int = 1,
        options: Sequence[str] = (),
        settings: Sequence[str] = (),
        launcher: Sequence[str] = (),
        python: str = sys.executable,
        **variables: str,
    ) -> None:
        pairs = [word for pair in (*_QUICK, *settings) for word in ("--set", pair)]
        run = [*launcher, python, "-m", "eroica", "run", "--quiet", *pairs, "--"]
        super().__init__(directory, ranks, options, PAUSE_S, python, run, **variables)
        self.where: Places = places(self.environment)

    # ------------------------------------------------------------------ Eroica's processes

    def helper(self, name: str, other_than: int = 0) -> int:
        """Process id of the agent or the collector, once it is there."""

        def find() -> int:
            with contextlib.suppress(psutil.Error):
                for child in psutil.Process(self.process.pid).children():
                    if f"eroica.{name}" in child.cmdline() and child.pid != other_than:
                        return int(child.pid)
            return 0

        return self.await_true(find, f"the {name}")

    def status(self) -> Mapping[str, Any]:
        """What `status.json` says; empty while there is none."""
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads((self.where.run / "status.json").read_bytes()))
        return {}

    def iteration(self) -> int:
        """How far the workers are, as the collector knows."""
        workers = self.status().get("workers", ())
        return max((worker["iteration"] for worker in workers if not worker["ended"]), default=0)

    def await_watched(self, iterations: int = 10) -> None:
        """Wait until agent and collector have seen the training move on from now."""
        before = self.iteration()
        self.await_true(lambda: self.iteration() >= before + iterations, "a watched iteration")

    def eroica(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of ours on this job."""
        command = [sys.executable, "-m", "eroica", *arguments]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )

    # ------------------------------------------------------------------ its workers

    def beats(self) -> Iterator[tuple[int, Beat]]:
        """Process id and beat of every worker that has a file."""
        for path in self.where.runtime.glob("*.beat"):
            with contextlib.suppress(OSError, ValueError):
                reader = BeatReader.open(path)
                now = reader.beat()
                reader.close()
                if now is not None:
                    yield int(path.stem), now

    def await_worker(self) -> int:
        """Process id of a worker, once one is there."""
        return self.await_true(lambda: next((pid for pid, _ in self.beats()), 0), "a worker")

    def results(self) -> Iterator[tuple[int, Result]]:
        """Process id of every worker that has a file, and what became of its last order."""
        for path in self.where.runtime.glob("*.beat"):
            with contextlib.suppress(OSError, ValueError):
                reader = BeatReader.open(path)
                result = reader.result()
                reader.close()
                yield int(path.stem), result

    def await_window(self) -> int:
        """Process id of a worker that is inside a window now, not just in a probe."""

        def find() -> int:
            found = (pid for pid, result in self.results() if (result.kind, result.status) == (WINDOW, OPEN))
            return next(found, 0)

        return self.await_true(find, "an open window")


def attempt(trial: Reference, act: Callable[[Any], object]) -> Outcome:
    """Disturb a run, let it end, and leave nothing of it."""
    try:
        act(trial)
        return trial.end() if trial.process.poll() is None else trial.wait()
    finally:
        trial.kill()
