"""Real jobs with both parts: on one host there is nothing to tell, on three a slow path is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.hosts import available
from support.watched import WatchedJob, torchrun

HERE = Path(__file__).parent


@pytest.mark.jobs
def test_a_job_on_one_host_trains_as_ever_and_nothing_is_told(tmp_path: Path) -> None:
    faults = tmp_path / "faults"
    faults.mkdir()
    words = [*torchrun(Path("-m"))[:-1], "-m", "support.paced", "--faults", str(faults), "--pace-ms", "20"]
    settings = {"baseline_window": "false", "pages": "false"}
    with WatchedJob(tmp_path, words, settings, EROICA_C4D="true") as job:
        status = job.await_status(lambda status: status["iteration"] > 300, within_s=150)
        (faults / "enough").touch()
        assert job.process.wait(120) == 0, job.said
    assert len(status["workers"]) == 2 and status["windows"] == []
    assert not any(" is off: " in note for note in status["notes"]), status["notes"]
    assert not (job.out / "ways.json").exists()


@pytest.mark.root
@pytest.mark.jobs
@pytest.mark.thorough
@pytest.mark.timeout(420)
@pytest.mark.skipif(not available()[0], reason=f"no hosts here: {available()[1]}")
def test_the_demo_names_the_slow_path_and_shows_the_matrix() -> None:
    done = subprocess.run(
        [sys.executable, str(HERE.parent / "benchmarks" / "demo.py")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the connection from node1 to node2" in done.stdout and "node0" in done.stdout
