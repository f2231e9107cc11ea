"""Real torchrun jobs of the demo's training, alone: nothing of Eroica watches here."""

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

LONGER_FAULTS = ("slow-backward", "slow-compute:stop_ms=4.3217")
LAYOUTS = (("fsdp2", 2), ("ddp", 2), ("pipeline", 4))
RENAMED = {
    "TokenWindows": "CaptionStore",
    "_read_block": "fetch_row",
    "TokenScorer": "Captions",
    "_score_tokens": "count_words",
    "GradientScale": "Clipper",
    "scale_grad": "clip",
    "TokenIndex": "Lookup",
    "refresh": "swap",
    "latency": "pace",
    "LanguageModel": "Writer",
    "tokens": "captions",
}


def train(script: Path, *options: str, workers: int = 2, fault: str = "") -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(workers)]
    small = ["--width", "32", "--length", "16", "--log-every", "10", "--directory", str(script.parent)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "EROICA_FAULT": fault}
    job = subprocess.run(
        [*command, str(script), *small, *options],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert job.returncode == 0, job.stderr[-12_000:]
    return job.stdout


def losses(output: str) -> list[str]:
    return re.findall(r"loss (\S+)", output)


def paces(output: str) -> list[float]:
    return [float(pace) for pace in re.findall(r"(\S+) ms/iteration", output)]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_training(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="module")
def healthy(script: Path) -> list[str]:
    """Losses of a healthy job of 20 iterations."""
    return losses(train(script, "--iterations", "20"))


@pytest.mark.long
def test_the_same_seed_gives_the_same_losses_and_another_seed_others(script: Path, healthy: list[str]) -> None:
    again, other = (losses(train(script, "--iterations", "20", "--seed", seed)) for seed in ("0", "2"))
    assert len(healthy) == 2
    assert healthy == again != other


@pytest.mark.long  # `test_online_loop` renames and moves, too
def test_renamed_and_moved_faulty_code_does_the_same_to_the_job(script: Path, tmp_path: Path) -> None:
    moved = write_training(tmp_path / "elsewhere", package="captioner", rename=RENAMED)
    texts = [path.read_text(encoding="utf-8") for path in moved.parent.rglob("*.py")]
    assert not any(re.search(rf"\b{name}\b", text) for name in RENAMED for text in texts)
    assert not (moved.parent / "captioner" / "tokens.py").exists()
    plan = "slow-loader:worker=1,from_iteration=10,seconds=0.005"
    ordinary, renamed = (train(path, "--iterations", "30", fault=plan) for path in (script, moved))
    assert losses(ordinary) == losses(renamed)
    assert min(*paces(ordinary)[1:], *paces(renamed)[1:]) >= 8 * 5


def test_a_slow_dataset_is_slow_inside_loader_processes_too(script: Path) -> None:
    plan = "slow-loader:worker=0,from_iteration=10,seconds=0.02"
    output = train(script, "--iterations", "30", "--loader-workers", "2", fault=plan)
    assert paces(output)[-1] >= 0.8 * 8 * 20 / 2


@pytest.mark.long
def test_a_fault_ends_where_its_plan_says_so(script: Path) -> None:
    output = train(script, "--iterations", "30", fault="slow-loader:worker=0,until=10,seconds=0.05")
    assert paces(output)[0] >= 8 * 50 > paces(output)[2]


@pytest.mark.parametrize("fault", ["gc-pause", *(pytest.param(one, marks=pytest.mark.long) for one in LONGER_FAULTS)])
def test_a_fault_changes_no_loss_and_leaves_no_process_behind(script: Path, healthy: list[str], fault: str) -> None:
    separator = "," if ":" in fault else ":"
    assert losses(train(script, "--iterations", "20", fault=f"{fault}{separator}from_iteration=5")) == healthy
    assert not [process for process in psutil.process_iter() if "4.3217" in _command(process)]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


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


@pytest.mark.long
def test_all_workers_stop_together_when_the_seconds_are_over(script: Path) -> None:
    assert len(losses(train(script, "--iterations", "100000", "--seconds", "2"))) >= 1


def test_a_plan_that_cannot_be_built_stops_the_job_with_the_reason(script: Path) -> None:
    with pytest.raises(AssertionError, match="no fault is called 'slow-coffee'"):
        train(script, "--iterations", "1", fault="slow-coffee")


def test_many_faults_of_the_loop_at_once_end_with_the_job(script: Path) -> None:
    plans = [
        {"name": "blocking-checkpoint", "worker": 0, "megabytes": 1, "every": 2, "from_iteration": 5},
        {"name": "blocking-log", "worker": 1, "delay_s": 0.001, "from_iteration": 5},
        {"name": "tiny-collectives", "tensors": 3, "from_iteration": 5, "until": 15},
        {"name": "memory-copies", "worker": 1, "megabytes": 1},
        {"name": "load-imbalance", "worker": 1, "from_iteration": 5},
        {"name": "slow-storage", "worker": 0, "delay_s": 0.001, "from_iteration": 5},
        {"name": "burners", "worker": 0, "processes": 1, "from_iteration": 10},
    ]
    before = _programs()
    output = train(script, "--iterations", "20", "--bucket-mb", "0.0001", "--layers", "1", fault=json.dumps(plans))
    assert len(losses(output)) == 2
    assert _programs() == before


@pytest.mark.long
def test_a_pipeline_can_be_cut_unevenly(script: Path) -> None:
    output = train(script, "--iterations", "20", "--layout", "pipeline", "--layers", "4", "--first-layers", "3")
    assert len(losses(output)) == 2


def _programs() -> set[int]:
    """Programs that faults start beside a job."""
    ours = ("storage.py", "throttle.py", "housekeeping.py")
    commands = {process.pid: " ".join(_command(process)) for process in psutil.process_iter()}
    return {pid for pid, command in commands.items() if any(program in command for program in ours)}
