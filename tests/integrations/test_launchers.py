"""Launchers of the frameworks under `eroica run`, as `docs/tools.md` writes them; `make test-tools`."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).with_name("programs")
JOBS = Path(__file__).parents[2] / "benchmarks" / "jobs" / "frameworks"


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.mark.jobs
@pytest.mark.parametrize(
    ("launcher", "port_option", "program"),
    [
        (("deepspeed", "--num_gpus", "2"), "--master_port", JOBS / "deepspeed_mlp.py"),
        (
            ("accelerate", "launch", "--multi_gpu", "--num_processes", "2"),
            "--main_process_port",
            PROGRAMS / "accelerated.py",
        ),
    ],
    ids=["deepspeed", "accelerate"],
)
def test_workers_are_found_and_steps_counted(
    tmp_path: Path, launcher: tuple[str, ...], port_option: str, program: Path
) -> None:
    if importlib.util.find_spec(launcher[0]) is None:
        pytest.skip(f"`make test-tools` has {launcher[0]}")
    binaries = Path(sys.executable).parent
    command = [sys.executable, "-m", "eroica", "run", "--out", str(tmp_path / "run"), "--quiet", "--", *launcher]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("EROICA_")},
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "ITERS": "60",
    }
    done = subprocess.run(
        [*command, port_option, free_port(), str(program)], env=environment, cwd=tmp_path, capture_output=True,
        text=True, timeout=230, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    made = json.loads(re.findall(r"\{\"job\": [^{}]*\}", done.stdout)[-1])
    status = json.loads((tmp_path / "run" / "status.json").read_bytes())
    assert (status["iteration"], len(status["workers"])) == (made["iters"], 2)
