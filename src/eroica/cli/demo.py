"""`eroica demo`: a real training job gets slow and is diagnosed, through the same door that every job uses."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import click
import msgspec
import psutil
from rich.console import Console
from rich.text import Text

from eroica.cli.story import FAULT_ITERATION, Story, still
from eroica.errors import UnavailableError, UsageError
from eroica.faults import write_training
from eroica.faults.expected import EXPECTED, Judgement, demo_plan, judge
from eroica.faults.plan import VARIABLE
from eroica.model.verdict import Verdict
from eroica.report.text import render_verdict
from eroica.report.words import clean, milliseconds, sentence
from eroica.wire.messages import JobStatus
from eroica.worker.launch import program

TIME_LIMIT_S = 120.0
HEALTHY_S = 40.0
FAREWELL_S = 60.0
GRACE_S = 5.0
SETTINGS = {
    "baseline_window_s": "2",
    "window_s": "5",
    "window_lead_s": "0.5",
    "cooldown_s": "10",
    "window_deadline_s": "40",
}
CUDA_SIZES = ["--width", "256", "--layers", "6", "--length", "128"]


@click.command()
@click.option("--fault", type=click.Choice(list(EXPECTED)), default="slow-loader", show_default=True)
@click.option("--worker", type=click.IntRange(min=0), help="Who has it, a global rank; default 2, or the last.")
@click.option("--workers", type=click.IntRange(2, 64), default=4, show_default=True, help="Training processes.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the verdict here.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--keep", type=click.Path(path_type=Path), help="Keep training code, log and report in this directory.")
def demo(fault: str, worker: int | None, workers: int, json_file: Path | None, device: str, keep: Path | None) -> None:
    """Train a small transformer, let it get slow or stop after a while, and see what Eroica makes of it.

    Takes about a minute. Exit status: 0 if the verdict names the fault that was injected, 1 if not.
    """
    worker = min(2, workers - 1) if worker is None else worker
    if worker >= workers:
        raise UsageError(f"--worker {worker}: with {workers} workers the last one is {workers - 1}")
    if importlib.util.find_spec("torch") is None:
        raise UnavailableError("the demo trains with PyTorch, which is not installed here: pip install torch")
    console = Console()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    with contextlib.ExitStack() as stack:
        directory = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="eroica-demo-")))
        case = Case(fault, worker, workers, device, directory.resolve())
        verdict, judgement = rehearse(case, console)
        if verdict is not None and json_file is not None:
            json_file.write_bytes(verdict.to_json())
        if not judgement.right and keep is None:
            kept = shutil.copytree(case.directory, tempfile.mkdtemp(prefix="eroica-demo-kept-"), dirs_exist_ok=True)
            _print(console, f"What was seen is kept in {kept}; a busy machine is a common reason.", "dim")
    raise SystemExit(0 if judgement.right else 1)


def _leave(number: int, _frame: object) -> None:
    """End as after Ctrl-C: the job is stopped on the way out."""
    raise SystemExit(128 + number)


@dataclass(frozen=True)
class Case:
    """One demo: which fault on which of how many workers, and where its files go."""

    fault: str
    worker: int
    workers: int
    device: str
    directory: Path

    @property
    def run(self) -> Path:
        """Eroica's run directory."""
        return self.directory / "report"

    @property
    def log(self) -> Path:
        """What the training job printed."""
        return self.directory / "job.log"

    @property
    def title(self) -> str:
        """One line for people."""
        if self.fault == "none":
            return f"{self.workers} workers train a small transformer and stay healthy"
        where = f"worker {self.worker} gets" if EXPECTED[self.fault].one_worker else "they get"
        return f"{self.workers} workers train a small transformer; at iteration {FAULT_ITERATION} {where} {self.fault}"

    def command(self) -> list[str]:
        """The job as anybody would start it: `eroica run -- torchrun train.py`."""
        script = write_training(self.directory)
        options = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
        return [
            *program("eroica", "run", "--quiet", "--out", str(self.run), *options, "--"),
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(self.workers), str(script), "--iterations", "20000"),
            *("--device", self.device, *(CUDA_SIZES if self.device == "cuda" else [])),
        ]

    def environment(self) -> dict[str, str]:
        """The plan travels in the environment; nothing of Eroica's own is inherited from around the demo."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("EROICA_")}
        plan = demo_plan(self.fault, self.worker, FAULT_ITERATION).to_json()
        return {**inherited, "OMP_NUM_THREADS": "1", "EROICA_JOB": f"demo-{self.fault}-{os.getpid()}", VARIABLE: plan}


def rehearse(case: Case, console: Console) -> tuple[Verdict | None, Judgement]:
    """Run the job, tell the story, stop the job, judge the verdict.

    Returns:
        The final verdict (None if there is none) and whether it is right.
    """
    _print(console, f"Eroica demo: {case.title}", "bold")
    case.directory.mkdir(parents=True, exist_ok=True)
    with case.log.open("wb") as log, _job(case, log) as job:
        ended_early = not _watch(case, job, console)
    verdict = _read_verdict(case.run / "verdict.json")
    if verdict is None or (ended_early and not EXPECTED[case.fault].ends_job):
        _print(console, f"The training job ended by itself. Its last lines:\n{_tail(case.log)}", "yellow")
        judgement = Judgement(False, "the job ended before there was a verdict on the fault")
    else:
        console.print()
        render_verdict(verdict, console)
        judgement = _judge_all(case, verdict)
    console.print()
    style = "bold green" if judgement.right else "bold red"
    _print(console, f"{'Right' if judgement.right else 'Wrong'}: {judgement.words}.", style)
    return verdict, judgement


def _judge_all(case: Case, final: Verdict) -> Judgement:
    """The final verdict; for a healthy job also every window's own."""
    verdicts = [final]
    if case.fault == "none":
        windows = sorted(case.run.glob("windows/*/verdict.json"))
        verdicts += [verdict for verdict in map(_read_verdict, windows) if verdict is not None]
        if len(verdicts) == 1:
            return Judgement(False, "no verdict on the window that was asked for by hand")
    judgements = [judge(verdict, case.fault, case.worker) for verdict in verdicts]
    return next((one for one in judgements if not one.right), judgements[0])


@contextlib.contextmanager
def _job(case: Case, log: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """The job while it runs; at the end it gets SIGTERM and time for its verdict, then SIGKILL, children included.

    A worker that cannot act on SIGTERM (stopped, or inside native code) is killed after a short grace.
    """
    job = subprocess.Popen(
        case.command(),
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
        _end(job, case.run)


def _end(job: subprocess.Popen[bytes], run: Path) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(job.pid).children(recursive=True)
        status = _read_status(run / "status.json")
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


def _watch(case: Case, job: subprocess.Popen[bytes], console: Console) -> bool:
    """Show what happens until the job may be stopped; False if it ended by itself."""
    story, started, asked = Story(case.fault), time.monotonic(), False
    with Spinner(console) as say:
        while job.poll() is None:
            passed = time.monotonic() - started
            status = _read_status(case.run / "status.json")
            if status is not None:
                for line in story.tell(status):
                    _print(console, f"{_clock(passed)}  {sentence(line)}")
                say(_now(status, passed))
                if story.concluded(status):
                    return True
            if case.fault == "none" and not asked and passed > HEALTHY_S:
                asked = _ask_for_window(case)
            if passed > TIME_LIMIT_S:
                _print(console, f"{_clock(passed)}  time is up", "yellow")
                return True
            time.sleep(0.3)
    return False


def _ask_for_window(case: Case) -> bool:
    """`eroica profile`, as from another terminal."""
    command = program("eroica", "profile", "--out", str(case.run), "--no-wait")
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


class Spinner(contextlib.AbstractContextManager["Spinner"]):
    """A line that changes in place on a terminal, nothing elsewhere."""

    def __init__(self, console: Console) -> None:
        self._status = console.status(Text("starting the job")) if console.is_terminal else None

    def __enter__(self) -> Spinner:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, line: str) -> None:
        """Show `line`."""
        if self._status is not None:
            self._status.update(Text(line))


def _now(status: JobStatus, passed: float) -> str:
    where = f"{_clock(passed)}  iteration {status.iteration}"
    if still(status):
        return f"{where}, {still(status)}  {clean(status.message, 60)}"
    mean = f", {milliseconds(status.mean_ms)} per iteration" if status.mean_ms else ""
    best = f", {milliseconds(status.best_ms)} at best" if status.best_ms else ""
    return f"{where}{mean}{best}  {clean(status.message, 60)}"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _print(console: Console, line: str, style: str = "") -> None:
    console.print(Text(line, style=style), highlight=False, soft_wrap=not console.is_terminal)


def _read_status(path: Path) -> JobStatus | None:
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(path.read_bytes(), type=JobStatus)
    return None


def _read_verdict(path: Path) -> Verdict | None:
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return Verdict.from_json(path.read_bytes())
    return None


def _tail(path: Path, lines: int = 15) -> str:
    text = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(clean(line, 200) for line in text[-lines:])
