"""`eroica demo`: a real training job gets slow and is diagnosed, through the same door that every job uses."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from eroica.cli.output import find_page, make_console
from eroica.demo.rehearsal import EXPECTED, MIDDLE, SETTINGS, Judgement, Rehearsal, judge, running
from eroica.errors import UnavailableError, UsageError
from eroica.model.verdict import Verdict
from eroica.model.words import clean, milliseconds, sentence
from eroica.report.phrases import without_word
from eroica.report.text import render_verdict
from eroica.wire.messages import JobStatus


class Story:
    """Turns the job's status, again and again, into lines.

    Args:
        case: The job, with its fault and what the verdict must say.
    """

    def __init__(self, case: Rehearsal) -> None:
        self._case = case
        self._told: set[str] = set()

    def tell(self, status: JobStatus) -> Iterator[str]:
        """Lines that are new."""
        for line in self._lines(status):
            if line not in self._told:
                self._told.add(line)
                yield line

    def _lines(self, status: JobStatus) -> Iterator[str]:
        if status.iteration > 0:
            yield "training"
        if self._case.wanted.cause and status.iteration >= self._case.from_iteration:
            yield f"{self._case.fault} begins (iteration {self._case.from_iteration})"
        for window in status.windows:
            why = {"baseline": "the healthy job", "manual": "asked for by hand", "blocked": "nobody moves any more"}
            name = f"window {window.window_id} ({why.get(window.purpose, 'slower than before')})"
            yield f"{name} opens"
            if window.phase in ("done", "failed", "given up", "passed", "restarted"):
                word = window.verdict or window.phase
                yield f"{name}: {word}: {without_word(word, window.summary)}".rstrip(": ")

    def concluded(self, status: JobStatus) -> bool:
        """Whether the job may be stopped: a verdict on the fault is there, or on the window asked for by hand."""
        wanted = self._case.wanted
        if not wanted.cause:
            return any(line.purpose == "manual" and line.phase == "done" for line in status.windows)
        judged = [line for line in status.windows if line.verdict == wanted.verdict]
        if wanted.verdict == "blocked":
            return any(line.purpose == "blocked" for line in judged)
        asked_by_nobody = [line for line in judged if line.purpose in ("slow", "expected", "early")]
        return any(line.last_iteration > self._case.from_iteration for line in asked_by_nobody)


TIME_LIMIT_S = 120.0
HEALTHY_S = 40.0
#: The page is drawn by a process that gives way to all others.
_PAGE_S = 20.0


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
    console = make_console()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    with contextlib.ExitStack() as stack:
        directory = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="eroica-demo-")))
        case = Rehearsal(fault, worker, workers, directory.resolve(), device, settings=SETTINGS)
        verdict, judgement = rehearse(case, console)
        if verdict is not None and json_file is not None:
            json_file.write_bytes(verdict.to_json())
        page = find_page(case.run, _PAGE_S)
        if page is not None:
            _print(console, f"Report: {(page if keep else _saved(page, fault)).absolute().as_uri()}", "dim")
        if not judgement.right and keep is None:
            kept = shutil.copytree(case.directory, tempfile.mkdtemp(prefix="eroica-demo-kept-"), dirs_exist_ok=True)
            _print(console, f"What was seen is kept in {kept}; a busy machine is a common reason.", "dim")
    raise SystemExit(0 if judgement.right else 1)


def _saved(page: Path, fault: str) -> Path:
    """A copy that outlives the demo's directory."""
    handle, name = tempfile.mkstemp(prefix=f"eroica-demo-{fault}-", suffix=".html")
    with os.fdopen(handle, "wb") as file:
        file.write(page.read_bytes())
    return Path(name)


def _leave(number: int, _frame: object) -> None:
    """End as after Ctrl-C: the job is stopped on the way out."""
    raise SystemExit(128 + number)


def rehearse(case: Rehearsal, console: Console) -> tuple[Verdict | None, Judgement]:
    """Run the job, tell the story, stop the job, judge the verdict.

    Returns:
        The final verdict (None if there is none) and whether it is right.
    """
    where = f"worker {case.worker} gets" if case.wanted.one_worker else "they get"
    what = f"at iteration {MIDDLE} {where} {case.fault}" if case.wanted.cause else "nothing is wrong with them"
    _print(console, f"Eroica demo: {case.workers} workers train a small transformer; {what}", "bold")
    case.directory.mkdir(parents=True, exist_ok=True)
    with case.log.open("wb") as log, running(case, log) as job:
        ended_early = not _watch(case, job, console)
    verdict = case.verdict()
    if verdict is None or ended_early:
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


def _judge_all(case: Rehearsal, final: Verdict) -> Judgement:
    """The final verdict; for a healthy job also every window's own."""
    verdicts = [final]
    if not case.wanted.cause:
        verdicts += case.verdicts()
        if len(verdicts) == 1:
            return Judgement(False, "no verdict on the window that was asked for by hand")
    judgements = [judge(verdict, case.fault, case.worker, case.wanted) for verdict in verdicts]
    return next((one for one in judgements if not one.right), judgements[0])


def _watch(case: Rehearsal, job: subprocess.Popen[bytes], console: Console) -> bool:
    """Show what happens until the job may be stopped; False if it ended by itself."""
    story, started, asked = Story(case), time.monotonic(), False
    with console.status(Text("starting the job")) as spinner:
        while job.poll() is None:
            passed = time.monotonic() - started
            status = case.status()
            if status is not None:
                for line in story.tell(status):
                    _print(console, f"{_clock(passed)}  {sentence(line)}")
                spinner.update(Text(_now(status, passed)))
                if story.concluded(status):
                    return True
            if not case.wanted.cause and not asked and passed > HEALTHY_S:
                asked = case.ask_for_window()
            if passed > TIME_LIMIT_S:
                _print(console, f"{_clock(passed)}  time is up", "yellow")
                return True
            time.sleep(0.3)
    return False


def _now(status: JobStatus, passed: float) -> str:
    where = f"{_clock(passed)}  iteration {status.iteration}"
    mean = f", {milliseconds(status.mean_ms)} per iteration" if status.mean_ms else ""
    best = f", {milliseconds(status.best_ms)} at best" if status.best_ms else ""
    return f"{where}{mean}{best}  {clean(status.message, 60)}"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _print(console: Console, line: str, style: str = "") -> None:
    console.print(Text(line, style=style), highlight=False, soft_wrap=not console.is_terminal)


def _tail(path: Path, lines: int = 15) -> str:
    text = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(clean(line, 200) for line in text[-lines:])
