"""Jobs that stop, from the first silent second to the verdict on disk: real torchrun jobs, renamed and moved code."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from eroica.model.verdict import Verdict
from support.faults import write_training

pytest.importorskip("torch")
pytestmark = [pytest.mark.jobs, pytest.mark.timeout(200)]

SETTINGS = {"silence_s": "4", "baseline_window": "false", "cooldown_s": "600"}
RENAMED = {
    "TokensAhead": "Preloader",
    "_take_item": "next_caption",
    "_note_length": "remember",
    "_read_ahead": "preload",
    "reading": "shelves",
    "ScaleAgreement": "Council",
    "agree": "vote",
    "bookkeeping": "office",
    "tokens": "captions",
}


@contextlib.contextmanager
def watched(
    tmp_path: Path, fault: str, ranks: int, *arguments: str, launcher: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """A job of renamed and moved code under `eroica run`; whatever is left of it is killed."""
    script = write_training(tmp_path / "elsewhere", package="captioner", rename=RENAMED)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *launcher]
    small = ["--width", "32", "--length", "16", "--fault", fault]
    with run(tmp_path, [*launch, str(script), *small, *arguments]) as job:
        yield job


@contextlib.contextmanager
def run(tmp_path: Path, command: list[str], **settings: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command under `eroica run`; whatever is left of it is killed."""
    options = [part for name, value in {**SETTINGS, **settings}.items() for part in ("--set", f"{name}={value}")]
    eroica = [sys.executable, "-m", "eroica", "run", "--quiet", "--out", str(tmp_path / "report"), *options, "--"]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("EROICA_")}
    with (tmp_path / "job.log").open("wb") as log:
        job = subprocess.Popen(
            [*eroica, *command],
            env={**inherited, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            yield job
        finally:
            _end(job)


def _end(job: subprocess.Popen[bytes]) -> None:
    family: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(job.pid).children(recursive=True)
    if job.poll() is None:
        job.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.wait(30)
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    job.kill()
    job.wait()


def wait_for_verdict(tmp_path: Path, job: subprocess.Popen[bytes], seconds: float = 90.0) -> Verdict:
    """The first verdict "blocked" of the job's windows and looks: communication alone says where, and sooner."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for path in sorted((tmp_path / "report" / "windows").glob("*/verdict.json")):
            verdict = Verdict.from_json(path.read_bytes())
            if verdict.verdict == "blocked" and verdict.found_by != "communication":
                return verdict
        assert job.poll() is None, (tmp_path / "job.log").read_text()[-3000:]
        time.sleep(0.1)
    raise AssertionError(f"no verdict: {status(tmp_path)}; {(tmp_path / 'job.log').read_text()[-2000:]}")


def status(tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "report" / "status.json"
    return json.loads(path.read_text()) if path.exists() else {}


def final(tmp_path: Path) -> Verdict:
    return Verdict.from_json((tmp_path / "report" / "verdict.json").read_bytes())


def test_a_missing_collective_is_named_with_the_worker_that_did_not_enter_it(tmp_path: Path) -> None:
    with watched(tmp_path, "hang:worker=1,from_iteration=60", 3, "--iterations", "100000") as job:
        verdict = wait_for_verdict(tmp_path, job)
    cause = verdict.cause
    assert cause is not None, verdict.summary
    assert (cause.cause, cause.workers) == ("desynchronized-collective", (1,)), verdict.summary
    assert verdict.cost.trigger_to_verdict_s is not None and verdict.cost.trigger_to_verdict_s < 10
    assert job.returncode != 0 and final(tmp_path).cause == cause  # ending the job changes nothing


@pytest.mark.parametrize(("stop_at", "learned"), [(0, False), (260, True)])
def test_a_generation_loop_that_hangs_is_told_though_nobody_ever_stepped_an_optimizer(
    tmp_path: Path, stop_at: int, learned: bool
) -> None:
    """At its start, and after an iteration of it is known."""
    program = Path(__file__).parent / "worker" / "programs" / "without_optimizer.py"
    options = ["generate", "--pause", "0.06", "--count", "100000", "--stop-at", str(stop_at)]
    with run(tmp_path, [sys.executable, str(program), *options], silence_learning_s="8") as job:
        verdict = wait_for_verdict(tmp_path, job, 150.0)
    cause = verdict.cause
    assert cause is not None and cause.workers == (1,), verdict.summary
    assert "load_next_prompt" in " ".join((cause.function.name, *cause.function.stack)), verdict.summary
    window = verdict.window
    assert window is not None and (window.first_iteration >= 200) == learned, window


@pytest.mark.thorough
def test_a_worker_that_was_killed_is_named_when_the_job_has_failed(tmp_path: Path) -> None:
    unhurried = ("--monitor-interval", "5")  # before it takes the status away, which the kernel keeps till then
    fault = "dead-worker:worker=1,from_iteration=60"
    with watched(tmp_path, fault, 2, "--iterations", "100000", launcher=unhurried) as job:
        assert job.wait(120) == 1
    verdict = final(tmp_path)
    cause = verdict.cause
    assert cause is not None, verdict.summary
    assert (verdict.verdict, cause.cause, cause.workers) == ("blocked", "dead-worker", (1,)), verdict.summary
    assert "SIGKILL" in " ".join((verdict.summary, *cause.evidence)), verdict


@pytest.mark.long
def test_a_silence_that_ends_by_itself_is_a_note_and_no_verdict(tmp_path: Path) -> None:
    fault = "hang-lock:worker=1,from_iteration=60,seconds=12"
    with watched(tmp_path, fault, 2, "--iterations", "200") as job:
        assert job.wait(120) == 0
    verdict = final(tmp_path)
    assert verdict.verdict in ("healthy", "undetermined") and verdict.cause is None, verdict.summary
    notes = [*verdict.coverage.notes, *status(tmp_path)["notes"]]
    assert any("stood still" in note and "went on by itself" in note for note in notes), notes
