"""One real job with one fault under `eroica run`: its code, its command, its environment, its end."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

import msgspec
import psutil

from eroica.demo.faults import VARIABLE, FaultPlan
from eroica.model.verdict import Finding, Verdict, VerdictWord
from eroica.start import isolated
from eroica.wire.messages import JobStatus

Scope = Literal["some", "all", "rotating", "any", ""]


@dataclass(frozen=True)
class Expectation:
    """The right answer to one fault.

    Attributes:
        cause: Slug of the cause, empty for a healthy job.
        scope: "some" = exactly the worker that has the fault; "any" = whoever suffers most: no set is the right one.
        verdict: The verdict's word.
        file: Source file of the training whose frame the finding must show, empty where any will do.
        function: Function whose frame the finding should show; told apart, and no condition of being right.
        also: Other causes that are right, where a mechanism has two sides.
    """

    cause: str
    scope: Scope
    verdict: VerdictWord = "slow"
    file: str = ""
    function: str = ""
    also: frozenset[str] = frozenset()

    @property
    def one_worker(self) -> bool:
        """Whether the fault belongs to one worker (else to all)."""
        return self.scope == "some"

    @property
    def causes(self) -> frozenset[str]:
        """All that are right."""
        return self.also | {self.cause}


EXPECTED: dict[str, Expectation] = {
    "slow-loader": Expectation("slow-data-loading", "some", function="_read_block"),
    "gc-pause": Expectation("garbage-collection", "rotating"),
    "slow-compute": Expectation("compute-slow", "some"),
    "slow-python": Expectation("python-on-critical-path", "all", function="_score_tokens"),
    "hang": Expectation("desynchronized-collective", "some", "blocked"),
    "none": Expectation("", "", "healthy"),
}


@dataclass(frozen=True)
class Judgement:
    """Whether a verdict is right, and why in words."""

    right: bool
    words: str


def judge(verdict: Verdict, fault: str, worker: int, wanted: Expectation) -> Judgement:
    """Whether `verdict` names a fault: its word, its cause, its scope and, where it has them, its worker and its file.

    Args:
        verdict: What Eroica said.
        fault: Its name.
        worker: Global rank of the worker that had it.
        wanted: The right answer.
    """
    found, answer, injected = verdict.cause, "healthy", "nothing was injected"
    if wanted.cause:
        who = {"some": f"worker {worker}", "all": "all workers", "rotating": "changing workers", "any": "some workers"}
        answer = f"{wanted.cause} on {who[wanted.scope]}{f' in {wanted.file}' if wanted.file else ''}"
        injected = f"{fault} was injected"
    parts = judge_parts(verdict, worker, wanted)
    if all(parts[part] for part in ("verdict", "cause", "workers", "file")):
        injected = f"that is what was injected ({fault})" if wanted.cause else injected
        return Judgement(True, f"the verdict is {answer}, and {injected}")
    said: str = verdict.verdict
    if found is not None:
        about = f"{found.cause}, scope {found.scope}, workers {list(found.workers)[:8]}"
        said = f"{said}: {about}, function {found.function.name}"
    return Judgement(False, f"{injected}, so expected {answer}; the verdict is {said}")


def judge_parts(verdict: Verdict, worker: int, wanted: Expectation) -> dict[str, bool]:
    """Judge each part: "verdict", "cause", "workers" (and scope), "file", "function"; arguments as of `judge`."""
    found = verdict.cause
    word = verdict.verdict == wanted.verdict
    if not wanted.cause or found is None:
        right = not wanted.cause and found is None
        return {"verdict": word, "cause": right, "workers": right, "file": right, "function": right}
    return {
        "verdict": word,
        "cause": found.cause in wanted.causes,
        "workers": names_workers(found, worker, wanted),
        "file": shows(found, wanted.file),
        "function": shows(found, wanted.function),
    }


def names_workers(found: Finding, worker: int, wanted: Expectation) -> bool:
    """Whether a finding is about the right workers."""
    if wanted.scope == "any":
        return True
    return found.scope == wanted.scope and (wanted.scope != "some" or found.workers == (worker,))


def shows(found: Finding, word: str) -> bool:
    """Whether a frame has this word in it."""
    place = re.compile(rf"(?<!\w){re.escape(word)}" if word else "")
    return any(map(place.search, (found.function.name, *found.function.stack)))


TRAINING = Path(__file__).with_name("training")
SCRIPT = '''"""Trains the model of `{package}`."""

from {package}.{module} import main

if __name__ == "__main__":
    main()
'''
#: Where a fault begins that comes in the middle: the job has been learned and its baseline taken by then.
MIDDLE = 300
FAREWELL_S = 60.0
GRACE_S = 5.0
#: Short windows and pauses: a job that is there to be diagnosed, not to train.
SETTINGS = {
    "baseline_window_s": "2",
    "window_s": "5",
    "cooldown_s": "10",
    "window_deadline_s": "40",
}
CUDA_SIZES = ("--width", "256", "--layers", "6", "--length", "128")


@dataclass(frozen=True)
class Rehearsal:
    """One job: which fault on which of how many workers, from when on, and where its files go.

    Attributes:
        fault: A key of `EXPECTED`.
        worker: Who has it, where it is a fault of one worker.
        workers: Training processes.
        directory: For code, log and report.
        device: "cpu" or "cuda".
        from_iteration: First iteration with the fault.
        seed: Of the training.
        settings: Of Eroica; empty = its defaults.
    """

    fault: str
    worker: int
    workers: int
    directory: Path
    device: str = "cpu"
    from_iteration: int = MIDDLE
    seed: int = 0
    settings: Mapping[str, str] = field(default_factory=lambda: SETTINGS)

    @property
    def wanted(self) -> Expectation:
        """What the verdict must say."""
        return EXPECTED[self.fault]

    @property
    def run(self) -> Path:
        """Eroica's run directory."""
        return self.directory / "report"

    @property
    def log(self) -> Path:
        """What the training job printed."""
        return self.directory / "job.log"

    @property
    def final(self) -> Path:
        """Where `eroica run --json` writes."""
        return self.directory / "final.json"

    def training(self) -> list[str]:
        """Write the training and return the command that starts it without Eroica."""
        return self.torchrun(str(write_training(self.directory / "code")))

    def torchrun(self, *program: str) -> list[str]:
        """Return the command by which torch starts a training program."""
        return [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(self.workers), *program, "--iterations", "20000"),
            *("--device", self.device, "--seed", str(self.seed), *(CUDA_SIZES if self.device == "cuda" else ())),
        ]

    def plans(self) -> tuple[FaultPlan, ...]:
        """What is injected."""
        one = self.wanted.one_worker
        return (FaultPlan(self.fault, self.worker if one else None, self.from_iteration),)

    def command(self) -> list[str]:
        """`eroica run -- torchrun train.py`."""
        options = [part for name, value in self.settings.items() for part in ("--set", f"{name}={value}")]
        where = ("--out", str(self.run), "--json", str(self.final))
        return [*isolated("eroica", "run", "--quiet", *where, *options, "--"), *self.training()]

    def environment(self) -> dict[str, str]:
        """Return the environment of the job with its plan; of Eroica's variables, webhook and metrics are inherited."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("EROICA_") or name.startswith(("EROICA_WEBHOOK_", "EROICA_METRICS_"))
        }
        plans = ";".join(map(str, self.plans()))
        return {**inherited, "OMP_NUM_THREADS": "1", "EROICA_JOB": f"demo-{self.fault}-{os.getpid()}", VARIABLE: plans}

    def status(self) -> JobStatus | None:
        """Read the status of the job; None if there is none yet."""
        with contextlib.suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode((self.run / "status.json").read_bytes(), type=JobStatus)
        return None

    def verdict(self) -> Verdict | None:
        """Read the verdict on the job so far; None if there is none."""
        return read_verdict(self.run / "verdict.json")

    def verdicts(self) -> list[Verdict]:
        """Read the verdicts on its windows."""
        found = map(read_verdict, sorted(self.run.glob("windows/*/verdict.json")))
        return [verdict for verdict in found if verdict is not None]

    def ask_for_window(self) -> bool:
        """Ask for a window with `eroica profile`; return whether that succeeded."""
        command = isolated("eroica", "profile", "--out", str(self.run), "--no-wait")
        return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


@contextlib.contextmanager
def running(case: Rehearsal, log: IO[bytes], watched: bool = True) -> Iterator[subprocess.Popen[bytes]]:
    """Run the job; at the end it gets SIGTERM and time for its verdict, then SIGKILL, children included.

    A worker that cannot act on SIGTERM (stopped, or inside native code) is killed after a short grace.

    Args:
        case: Which job.
        log: Takes what it prints.
        watched: Under `eroica run`; else the training alone.
    """
    job = subprocess.Popen(
        case.command() if watched else case.training(),
        env=case.environment(),
        cwd=case.directory,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield job
    finally:
        _end(job, case)


def _end(job: subprocess.Popen[bytes], case: Rehearsal) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(job.pid).children(recursive=True)
        status = case.status()
        workers = {worker.worker.pid for worker in status.workers} if status is not None else set()
        job.terminate()
        for patience_s, left in ((GRACE_S, [one for one in family if one.pid in workers]), (FAREWELL_S, family)):
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(patience_s)
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
    job.kill()
    job.wait()


def read_verdict(path: Path) -> Verdict | None:
    """Read the verdict in a file; None if there is none."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return Verdict.from_json(path.read_bytes())
    return None


def write_training(
    directory: Path,
    package: str = "tinylm",
    rename: Mapping[str, str] | None = None,
    training: Path = TRAINING,
    module: str = "loop",
) -> Path:
    """Copy a training to `directory/package` and write `directory/train.py` that runs it.

    Args:
        directory: Where; created if it is missing.
        package: Name of the copy.
        rename: Words (function, class, variable and file names) to be replaced everywhere, files included.
        training: The package that is copied.
        module: Which of its modules has `main`.

    Returns:
        Path of `train.py`.
    """
    target = directory / package
    target.mkdir(parents=True, exist_ok=True)
    for source in sorted(training.glob("*.py")):
        text = _renamed(source.read_text(encoding="utf-8"), rename or {})
        (target / f"{_renamed(source.stem, rename or {})}.py").write_text(text, encoding="utf-8")
    script = directory / "train.py"
    script.write_text(SCRIPT.format(package=package, module=module), encoding="utf-8")
    return script


def _renamed(text: str, rename: Mapping[str, str]) -> str:
    return re.sub(r"\w+", lambda word: rename.get(word[0], word[0]), text)
