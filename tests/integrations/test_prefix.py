"""Frameworks under `eroica run` alone: an iteration is what each calls a step; `make test-tools`."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from support.watched import WatchedJob

PROGRAMS = Path(__file__).with_name("programs")
JOBS = Path(__file__).parents[2] / "benchmarks" / "jobs" / "frameworks"
TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node", "2")
EPOCHS, BATCHES = 4, 41


def skip_without(*packages: str) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"`make test-tools` has {', '.join(missing)}")


def run(directory: Path, *command: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run a program of a framework under the prefix: what it counted itself, and Eroica's last status."""
    variables = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "DS_ACCELERATOR": "cpu", "ITERS": "60"}
    variables |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    with WatchedJob(directory, [*command], {}, **variables) as job:
        assert job.process.wait(220) == 0, job.said
    made = json.loads(re.findall(r"\{\"job\": [^{}]*\}", job.said)[-1])
    return made, job.status()


@pytest.mark.jobs
@pytest.mark.parametrize(
    ("packages", "launcher", "program"),
    [
        (("transformers", "accelerate"), TORCHRUN, "hf"),
        (("trl", "datasets"), TORCHRUN, "sft"),
        (
            ("accelerate",),
            ("accelerate", "launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0"),
            "accelerated_accumulating",
        ),
        (("lightning",), ("python",), "pl"),
        (("lightning",), TORCHRUN, "fabric_accumulating"),
        (
            ("ray", "transformers"),
            ("python",),
            "ray_accumulating",
        ),  # only where all are: a dozen processes beside other jobs
    ],
    ids=["transformers", "trl", "accelerate", "lightning", "fabric", "ray"],
)
def test_an_iteration_is_a_step_of_the_framework_and_not_a_batch(
    tmp_path: Path, packages: tuple[str, ...], launcher: tuple[str, ...], program: str
) -> None:
    skip_without(*packages)
    made, status = run(tmp_path, *launcher, str(PROGRAMS / f"{program}.py"))
    assert made["batches"] == EPOCHS * BATCHES
    assert made["steps"] == EPOCHS * (BATCHES + 1) // 2
    assert (status["iteration"], len(status["workers"])) == (made["steps"], 2)


@pytest.mark.jobs
def test_workers_of_deepspeeds_launcher_are_found_and_their_steps_counted(tmp_path: Path) -> None:
    skip_without("deepspeed")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    launcher = ("deepspeed", "--num_gpus", "2", "--master_port", port)
    made, status = run(tmp_path, *launcher, str(JOBS / "deepspeed_mlp.py"))
    assert (status["iteration"], len(status["workers"])) == (made["iters"], 2)
