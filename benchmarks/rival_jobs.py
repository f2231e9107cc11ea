"""Jobs that another tool watches, and its answer in one form for all tools."""

import contextlib
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from injected.rehearsal import Rehearsal

WORKERS = 4
LAYOUT = "ddp"
#: Who is asked to have a fault: another one with another seed, as in `faults.py`.
ASKED = (2, 0, 1, 3)
#: First iteration with the fault, and for how long it is watched.
ONSET = 150
PHASE_S = 30.0
#: The training prints a line every so many iterations.
LOG_EVERY = 50
#: A job that is not at the fault by then is given up.
START_LIMIT_S = 90.0
#: How long a job must have been blocked before anybody looks at it.
BLOCKED_S = 20.0
Frame = tuple[str, str]


class Answer(NamedTuple):
    """What a tool said, in one form for all.

    Attributes:
        said: In its own words, short.
        workers: Global ranks that it names.
        area: The part of the iteration that it names.
        frame: File and function that it names, of the training's own code.
        alarm: It says that something is wrong.
        error: It could not read what it was given: why, in its words.
    """

    said: str
    workers: tuple[int, ...] = ()
    area: str = ""
    frame: Frame | None = None
    alarm: bool = False
    error: str = ""


class Case(NamedTuple):
    """One run."""

    tool: str
    fault: str
    seed: int

    @property
    def key(self) -> str:
        """Its name in the file."""
        return f"{self.tool}/{self.fault}/{LAYOUT}/middle/{self.seed}"

    @property
    def worker(self) -> int:
        """Who is asked to have the fault."""
        return ASKED[self.seed % len(ASKED)]


@dataclass(frozen=True)
class Changed(Rehearsal):
    """The same job, its training script written as a tool's documentation asks for.

    Attributes:
        changes: By file of the training: pieces of it and what stands there instead.
        launch: Makes the command that starts it from the script and its arguments; None = torchrun, as ever.
    """

    changes: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    launch: Callable[[str, Sequence[str]], list[str]] | None = field(default=None)

    def training(self) -> list[str]:
        """See `Rehearsal.training`."""
        command = super().training()
        code = self.directory / "code"
        for name, changes in self.changes.items():
            file = code / "tinylm" / name
            file.write_text(replaced(file.read_text(encoding="utf-8"), changes), encoding="utf-8")
        at = command.index(str(code / "train.py"))
        return command if self.launch is None else self.launch(command[at], command[at + 1 :])


def replaced(text: str, changes: Sequence[tuple[str, str]]) -> str:
    """The text with each piece replaced, which must be there exactly once."""
    for old, new in changes:
        if text.count(old) != 1:
            raise SystemExit(f"the training no longer contains this exactly once, so it cannot be changed: {old!r}")
        text = text.replace(old, new)
    return text


def rehearse(kind: type[Rehearsal], case: Case, directory: Path, **more: Any) -> Rehearsal:
    """The job of a case."""
    return kind(
        case.fault, case.worker, WORKERS, directory, layout=LAYOUT, from_iteration=ONSET, seed=case.seed, **more
    )


def failed(why: str) -> Answer:
    """It could not read what it was given."""
    return Answer(why, error=why)


def reached(log: Path, iteration: int, job: subprocess.Popen[bytes]) -> bool:
    """Wait until the training has printed that it is at this iteration; whether it did."""
    wanted = iteration - iteration % LOG_EVERY
    wait_for(lambda: printed(log) >= wanted or job.poll() is not None, START_LIMIT_S)
    return printed(log) >= wanted


def printed(log: Path) -> int:
    """The last iteration that the training printed."""
    found = re.findall(r"^iteration +(\d+)  loss", log.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    return int(found[-1]) if found else 0


def wait_for(condition: Callable[[], bool], limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while time.monotonic() < until and not condition():
        time.sleep(0.25)


def worker_pids(launcher: int) -> dict[int, int]:
    """Process of each worker by its global rank: the children of the launcher that have one."""
    found: dict[int, int] = {}
    for process in psutil.Process(launcher).children():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            rank = process.environ().get("RANK")
            if rank is not None:
                found[int(rank)] = process.pid
    return dict(sorted(found.items()))


def call(command: Sequence[str]) -> tuple[str, str]:
    """What a command wrote to its output and its errors."""
    done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=120, errors="replace")
    return done.stdout, done.stderr


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
