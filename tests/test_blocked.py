"""Jobs that stop, from the first silent second to the verdict on disk: real torchrun jobs, renamed and moved code."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from eroica.demo.rehearsal import write_training
from support.watched import WatchedJob, torchrun

pytest.importorskip("torch")
pytestmark = [pytest.mark.jobs, pytest.mark.timeout(200)]

SETTINGS = {"silence_s": "4", "baseline_window": "false", "cooldown_s": "600"}
RENAMED = {"ScaleAgreement": "Council", "agree": "vote", "tokens": "captions"}


def watched(tmp_path: Path, fault: str, ranks: int, iterations: int, *launcher: str) -> WatchedJob:
    """A job of renamed and moved code under `eroica run`."""
    script = write_training(tmp_path / "elsewhere", package="captioner", rename=RENAMED)
    small = ["--width", "32", "--length", "16", "--iterations", str(iterations)]
    command = torchrun(script, *small, ranks=ranks, launcher=launcher)
    return WatchedJob(tmp_path, command, SETTINGS, EROICA_FAULT=fault)


def pid_of_worker_1(job: WatchedJob) -> int:
    """Its process, once the job is in full swing."""
    workers = job.await_status(lambda status: status["iteration"] > 60)["workers"]
    return next(int(one["worker"]["pid"]) for one in workers if one["worker"]["global_rank"] == 1)


def test_a_missing_collective_is_named_with_the_worker_that_did_not_enter_it(tmp_path: Path) -> None:
    with watched(tmp_path, "hang:worker=1,from_iteration=60", 3, 100_000) as job:
        verdict = job.await_blocked()
    cause = verdict.cause
    assert cause is not None, verdict.summary
    assert (cause.cause, cause.workers) == ("desynchronized-collective", (1,)), verdict.summary
    assert verdict.cost.trigger_to_verdict_s is not None and verdict.cost.trigger_to_verdict_s < 10
    assert job.process.returncode != 0 and job.verdict().cause == cause  # ending the job changes nothing


@pytest.mark.parametrize(("stop_at", "learned"), [(0, False), (260, True)])
def test_a_generation_loop_that_hangs_is_told_though_nobody_ever_stepped_an_optimizer(
    tmp_path: Path, stop_at: int, learned: bool
) -> None:
    """At its start, and after an iteration of it is known."""
    program = Path(__file__).parent / "worker" / "programs" / "without_optimizer.py"
    options = ["generate", "--pause", "0.06", "--count", "100000", "--stop-at", str(stop_at)]
    with WatchedJob(tmp_path, [sys.executable, str(program), *options], {**SETTINGS, "silence_learning_s": "8"}) as job:
        verdict = job.await_blocked(150.0)
    cause = verdict.cause
    assert cause is not None and cause.workers == (1,), verdict.summary
    assert "load_next_prompt" in " ".join((cause.function.name, *cause.function.stack)), verdict.summary
    window = verdict.window
    assert window is not None and (window.first_iteration >= 200) == learned, window


@pytest.mark.thorough
def test_a_worker_that_was_killed_is_named_when_the_job_has_failed(tmp_path: Path) -> None:
    unhurried = ("--monitor-interval", "5")  # before it takes the status away, which the kernel keeps till then
    with watched(tmp_path, "none", 2, 100_000, *unhurried) as job:
        os.kill(pid_of_worker_1(job), signal.SIGKILL)
        assert job.process.wait(120) == 1
    verdict = job.verdict()
    cause = verdict.cause
    assert cause is not None, verdict.summary
    assert (verdict.verdict, cause.cause, cause.workers) == ("blocked", "dead-worker", (1,)), verdict.summary
    assert "SIGKILL" in " ".join((verdict.summary, *cause.evidence)), verdict


@pytest.mark.long
def test_a_silence_that_ends_by_itself_is_a_note_and_no_verdict(tmp_path: Path) -> None:
    with watched(tmp_path, "none", 2, 1000) as job:
        stopped = pid_of_worker_1(job)
        os.kill(stopped, signal.SIGSTOP)
        time.sleep(12)
        os.kill(stopped, signal.SIGCONT)
        assert job.process.wait(120) == 0
    verdict = job.verdict()
    assert verdict.verdict in ("healthy", "undetermined") and verdict.cause is None, verdict.summary
    notes = [*verdict.coverage.notes, *job.status()["notes"]]
    assert any("stood still" in note and "went on by itself" in note for note in notes), notes
