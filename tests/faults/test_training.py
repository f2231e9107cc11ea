"""Real torchrun jobs of the training that can have all faults, alone: nothing of Eroica watches here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from support.faults import write_training

pytest.importorskip("torch")
pytestmark = pytest.mark.jobs

LAYOUTS = (("fsdp2", 2), ("ddp", 2), ("pipeline", 4))


def train(script: Path, *options: str, workers: int = 2, fault: str = "") -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(workers)]
    small = ["--width", "32", "--length", "16", "--log-every", "10", "--directory", str(script.parent)]
    job = subprocess.run(
        [*command, str(script), *small, *options], env={**os.environ, "OMP_NUM_THREADS": "1", "EROICA_FAULT": fault},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert job.returncode == 0, job.stderr[-12_000:]
    return job.stdout


def losses(output: str) -> list[str]:
    return re.findall(r"loss (\S+)", output)


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_training(tmp_path_factory.mktemp("project"))


def test_a_slow_dataset_is_slow_inside_loader_processes_while_its_plan_says_so(script: Path) -> None:
    plan = "slow-loader:worker=0,from_iteration=10,until=20,seconds=0.05"
    output = train(script, "--iterations", "40", "--loader-workers", "1", fault=plan)
    paces = [float(pace) for pace in re.findall(r"(\S+) ms/iteration", output)]
    assert paces[1] >= 0.8 * 8 * 50 > paces[3]


@pytest.mark.parametrize(
    ("layout", "workers"),
    [LAYOUTS[0], *(pytest.param(*one, marks=pytest.mark.long) for one in LAYOUTS[1:])],
    ids=str,
)
def test_every_layout_learns_evaluates_and_saves(script: Path, layout: str, workers: int) -> None:
    every = ("--accumulate", "2", "--evaluate-every", "10", "--checkpoint-every", "20")
    output = train(script, "--iterations", "40", "--layout", layout, *every, workers=workers)
    learned = [float(loss) for loss in re.findall(r"\d  loss (\S+)", output)]
    assert len(learned) == 4
    assert learned[-1] < learned[0]
    assert output.count("evaluation loss") == 4
    assert (script.parent / "checkpoint-1.pt").exists()


def test_many_faults_of_the_loop_at_once_change_no_loss_and_end_with_the_job(script: Path) -> None:
    plans = [
        {"name": "blocking-checkpoint", "worker": 0, "megabytes": 1, "every": 2, "from_iteration": 5},
        {"name": "blocking-log", "worker": 1, "delay_s": 0.001, "from_iteration": 5},
        {"name": "tiny-collectives", "tensors": 3, "from_iteration": 5, "until": 15},
        {"name": "memory-copies", "worker": 1, "megabytes": 1},
        {"name": "gc-pause", "from_iteration": 5},
        {"name": "slow-backward", "worker": 0},
        {"name": "slow-compute", "worker": 1, "stop_ms": 4.3},
        {"name": "slow-storage", "worker": 0, "delay_s": 0.001, "from_iteration": 5},
        {"name": "burners", "worker": 0, "processes": 1, "from_iteration": 10},
    ]
    before, healthy = _programs(), losses(train(script, "--iterations", "20"))
    output = train(script, "--iterations", "20", fault=json.dumps(plans))
    assert len(healthy) == 2 and losses(output) == healthy
    assert _programs() == before


def _programs() -> set[int]:
    """Programs that faults start beside a job."""
    ours = ("storage.py", "throttle.py", "housekeeping.py")
    found = set()
    for process in psutil.process_iter(["cmdline"]):
        command = " ".join(process.info["cmdline"] or ())
        if any(program in command for program in ours):
            found.add(process.pid)
    return found
