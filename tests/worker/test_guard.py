"""The border: the first failure ends everything of ours and nothing of the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from eroica.worker.guard import Guard


class Job:
    def __init__(self, place: Path, raises: bool = False) -> None:
        self.log = place / "log" / "worker.log"
        self.shown: list[str] = []
        self.guard = Guard(lambda: self.log, self.shown.append, raises)


def broken(*_: object) -> None:
    raise ValueError("the disk is made of cheese")


def test_a_failure_is_kept_logged_with_its_stack_and_shown_once(tmp_path: Path) -> None:
    job = Job(tmp_path)
    assert job.guard.run(broken) is None
    assert job.guard.run(broken) is None
    assert job.guard.failure == "ValueError: the disk is made of cheese"
    assert job.shown == ["ValueError: the disk is made of cheese"]
    text = job.log.read_text()
    assert text.count("stops watching") == 1
    assert "in broken" in text


def test_after_a_failure_nothing_runs_any_more(tmp_path: Path) -> None:
    job = Job(tmp_path)
    calls: list[int] = []
    job.guard.run(calls.append, 1)
    job.guard.run(broken)
    job.guard.run(calls.append, 2)
    job.guard.border(calls.append)(3)
    assert calls == [1]


def test_the_hot_path_is_behind_the_same_border(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.guard.border(broken)("batch", "ignored", {})
    assert job.guard.failure is not None


def test_a_log_that_cannot_be_written_harms_nobody(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("in the way")
    job = Job(tmp_path)
    job.guard.run(broken)
    assert job.shown == ["ValueError: the disk is made of cheese"]
    assert "and then" in job.guard.stack


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interrupts_are_the_users(tmp_path: Path, error: type[BaseException]) -> None:
    job = Job(tmp_path)

    def interrupted() -> None:
        raise error

    with pytest.raises(error):
        job.guard.run(interrupted)
    assert job.guard.failure is None


def test_failures_can_be_raised_for_our_own_tests(tmp_path: Path) -> None:
    job = Job(tmp_path, raises=True)
    with pytest.raises(ValueError, match="cheese"):
        job.guard.run(broken)
    assert job.shown
