"""Which running job a command means, and what it says where that is not clear."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from eroica.cli import group, jobs
from eroica.errors import UsageError


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Two jobs: one below the working directory, one elsewhere."""
    here, elsewhere = tmp_path / "here" / "eroica-report" / "mine", tmp_path / "there" / "eroica-report" / "other"
    found = {"mine": here, "other": elsewhere}
    for run in found.values():
        run.mkdir(parents=True)
    monkeypatch.setattr(jobs, "running_jobs", lambda: found)
    return found


def test_of_several_jobs_the_one_that_was_started_here_is_meant(
    watched: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path / "here")
    assert jobs.choose_run(None, None) == watched["mine"]


def test_where_none_was_started_here_the_error_says_where_they_run(
    watched: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(UsageError, match=r"several jobs are being watched: mine in .*here.*; other in .*there.*--job"):
        jobs.choose_run(None, None)
    assert jobs.choose_run("other", None) == watched["other"]


def test_a_command_that_is_nearly_one_gets_a_hint() -> None:
    answer = CliRunner().invoke(group, ["rn", "--", "true"])
    assert answer.exit_code == 2
    assert "Did you mean 'run'?" in answer.output


def test_a_directory_of_runs_is_listed(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name / "windows").mkdir(parents=True)
        (tmp_path / name / "windows" / "1").mkdir()
        (tmp_path / name / "windows" / "1" / "window.json").write_text("{}")
        (tmp_path / name / "verdict.json").write_text("{}")
    answer = CliRunner().invoke(group, ["report", str(tmp_path)], standalone_mode=False)
    assert "holds the runs" in str(answer.exception)
    assert "first" in str(answer.exception) and "second" in str(answer.exception)


def test_usage_calls_the_program_by_its_name_however_it_was_started() -> None:
    command = [sys.executable, "-c", "from eroica.cli import main; main()", "fleet", "jobs", "--nothing"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "Usage: eroica fleet jobs" in done.stderr and "Try 'eroica fleet jobs --help'" in done.stderr
