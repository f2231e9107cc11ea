"""Pre-flight: launch files of jobs, results from exit codes and verdicts."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from verici.cli import main
from verici.errors import BadInput
from verici.launch import check_job, has_begun, launch_files, learn_jobs, read_table

JOBS = [(1, 1, 1), (2, 2, 1), (2, 1, 2), (2, 2, 2), (4, 2, 2), (4, 4, 2), (8, 4, 2), (8, 2, 4), (8, 4, 4),
        (1, 1, 2), (2, 1, 2), (4, 2, 2), (4, 1, 4), (8, 8, 2)]  # fmt: skip


def write_job(place: Path, ranks: int, tp: int, dp: int) -> None:
    place.mkdir(parents=True)
    (place / "config.yaml").write_text(f"model:\n  tp: {tp}\n  dp: {dp}\n")
    (place / "job.sbatch").write_text(f"#!/bin/sh\n#SBATCH --ntasks={ranks}\nsrun train.py config.yaml\n")


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    rows = ["job,exit_code"]
    for number, (ranks, tp, dp) in enumerate(JOBS):
        write_job(tmp_path / "jobs" / f"j{number:02}", ranks, tp, dp)
        rows.append(f"j{number:02},{int(tp * dp != ranks)}")
    (tmp_path / "table.csv").write_text("\n".join(rows))
    return tmp_path / "jobs"


def test_a_product_of_constants_is_learned_and_holds_for_numbers_not_seen(jobs: Path, tmp_path: Path) -> None:
    model = learn_jobs(jobs, tmp_path / "table.csv")
    [constraint] = model.constraints
    assert [one.predicate.kind for one in constraint.conditions] == ["product"]
    write_job(tmp_path / "bad", 24, 6, 5)
    write_job(tmp_path / "good", 24, 6, 4)
    report = check_job(tmp_path / "bad", model)
    assert report.status == 3
    assert {(place.path, place.line) for place in report.findings[0].places} == {
        ("config.yaml", 2), ("config.yaml", 3), ("job.sbatch", 2),
    }  # fmt: skip
    assert check_job(tmp_path / "good", model).status == 0


def test_the_commands(jobs: Path, tmp_path: Path) -> None:
    model = str(tmp_path / "model.json")
    result = CliRunner().invoke(
        main, ["preflight", "learn", str(jobs), "--labels", str(tmp_path / "table.csv"), "--model", model]
    )
    assert result.exit_code == 0, result.output
    assert "×" in result.output
    write_job(tmp_path / "bad", 24, 6, 5)
    result = CliRunner().invoke(
        main, ["preflight", "check", str(tmp_path / "bad"), "--model", model, "--format", "json"]
    )
    assert result.exit_code == 3
    assert json.loads(result.output)["prediction"] == "fail"
    result = CliRunner().invoke(main, ["preflight", "check", str(jobs), "--model", str(tmp_path / "none.json")])
    assert result.exit_code == 4


def test_results_of_a_jobs_own_folder(tmp_path: Path) -> None:
    for number in range(14):
        write_job(tmp_path / f"j{number:02}", 2, 2, 1 + (number % 3 == 0))
        failed = number % 3 == 0
        if number % 2:
            (tmp_path / f"j{number:02}" / "exit_code").write_text(str(int(failed)))
        else:
            verdict = {
                "verdict": "blocked" if failed else "healthy",
                "window": None,
                "iteration": {"baseline_ms": None},
            }
            (tmp_path / f"j{number:02}" / "verdict.json").write_text(json.dumps(verdict))
    model = learn_jobs(tmp_path)
    assert (model.builds, model.failed) == (14, 5)
    assert len(model.constraints) == 1


def test_a_slow_job_has_begun_and_a_broken_verdict_says_nothing(tmp_path: Path) -> None:
    assert has_begun({"verdict": "slow"})
    assert has_begun({"verdict": "blocked", "window": {"first_iteration": 7}})
    assert has_begun({"verdict": "undetermined", "iteration": {"current_ms": 3.0}})
    assert has_begun({"verdict": "blocked", "window": None}) is False
    assert has_begun({"verdict": "undetermined"}) is None
    assert has_begun({"verdict": "undetermined", "coverage": {"workers_reported": 2}})
    assert has_begun([]) is None


def test_single_files_are_jobs_under_one_name(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("torchrun --nproc-per-node 3 t.py\n")
    assert launch_files(tmp_path / "a.sh") == {"launch.sh": "torchrun --nproc-per-node 3 t.py\n"}


def test_tables_say_which_line_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("job,exit_code\na,0\n,1\n")
    with pytest.raises(BadInput, match="line 3"):
        read_table(tmp_path / "t.csv")


@pytest.mark.thorough
@pytest.mark.jobs
@pytest.mark.timeout(600)
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_the_demo_with_real_torchrun_jobs(tmp_path: Path) -> None:
    demo = Path(__file__).parents[1] / "demo" / "jobs.py"
    done = subprocess.run([sys.executable, demo, tmp_path / "demo"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "bad job: status 3, good job: status 0" in done.stdout
