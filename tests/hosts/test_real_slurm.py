"""The batch scripts of deploy/slurm in a real Slurm of two nodes on this machine."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eroica.model.verdict import Verdict
from support.fixtures import let_others_in
from support.slurm import Slurm, why_no_slurm

pytestmark = [
    pytest.mark.root,
    pytest.mark.jobs,
    pytest.mark.thorough,
    pytest.mark.timeout(240),
    pytest.mark.skipif(bool(why_no_slurm()), reason=f"no Slurm here: {why_no_slurm()}"),
]

SCRIPTS = Path(__file__).parents[2] / "deploy" / "slurm"
TRAIN = """
import os, time, torch
import torch.distributed as dist
variables = os.environ
rank = int(variables["RANK"] if "RANK" in variables else variables["SLURM_PROCID"])
world = int(variables["WORLD_SIZE"] if "RANK" in variables else variables["SLURM_NTASKS"])
dist.init_process_group("gloo", rank=rank, world_size=world)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
over = torch.zeros(())
while not over:
    time.sleep(0.01)
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    over.fill_(os.path.exists("enough"))
    dist.all_reduce(over, op=dist.ReduceOp.MAX)
print(f"task {rank} trained", flush=True)
dist.destroy_process_group()
"""
PATIENCE_S = 150.0


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    directory = tmp_path_factory.mktemp("slurm")
    let_others_in(directory)
    with Slurm(directory) as running:
        yield running


def submit(slurm: Slurm, directory: Path, script: str) -> str:
    """Start a batch script as it stands, with one task a node, and wait for its iterations; the job's number."""
    programs = directory / "bin"
    programs.mkdir()
    commands = {
        "python": [],
        "eroica": ["-m", "eroica"],
        "torchrun": ["-m", "torch.distributed.run"],
    }
    for name, arguments in commands.items():
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {" ".join([sys.executable, *arguments])} "$@"\n')
        program.chmod(0o755)
    (directory / "train.py").write_text(TRAIN)
    given = f"ALL,PATH={programs}:/usr/bin:/bin,WORKERS=1,OMP_NUM_THREADS=1,EROICA_BASELINE_WINDOW=false"
    job = slurm.client(
        "sbatch", "--parsable", "--nodes=2", "--ntasks-per-node=1", f"--chdir={directory}", f"--export={given}",
        f"--output={directory / 'out'}", str(SCRIPTS / script),
    ).strip()  # fmt: skip
    assert job.isdecimal(), slurm.logs()
    end = time.monotonic() + 90
    while steady_workers(directory) < 2 and time.monotonic() < end:
        time.sleep(0.5)
    time.sleep(8)  # some hundred iterations more: fewer tell nothing of a worker
    return job


def await_end(slurm: Slurm, job: str, directory: Path) -> str:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        state = slurm.state(job)
        if state in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"):
            return state
        time.sleep(0.5)
    pytest.fail(f"job {job} is {state}: {(directory / 'out').read_text()}\n{slurm.logs()}")


@pytest.mark.parametrize(
    "script",
    [
        *(pytest.param(f"prefix-{at}.sbatch", marks=pytest.mark.thorough) for at in ("outside", "inside")),
        "torchrun.sbatch",
    ],
)
def test_a_batch_script_is_watched_on_both_nodes_and_speaks_once(slurm: Slurm, tmp_path: Path, script: str) -> None:
    job = submit(slurm, tmp_path, script)
    (tmp_path / "enough").touch()
    state = await_end(slurm, job, tmp_path)
    out = (tmp_path / "out").read_text()
    assert state == "COMPLETED", out
    assert out.count("trained") == 2, out
    verdict = Verdict.from_json((tmp_path / f"verdict-{job}.json").read_bytes())
    # how fast this machine is meanwhile is not what this is about
    assert verdict.verdict in ("healthy", "undetermined") and verdict.coverage.workers_reported == 2, verdict.summary
    assert out.count(verdict.verdict.upper()) == 1, out
    logs = {path.name for path in tmp_path.glob("eroica-report/*/log/agent-*")}
    assert logs == {"agent-node0.log", "agent-node1.log"}


def test_a_cancelled_job_has_its_verdict(slurm: Slurm, tmp_path: Path) -> None:
    job = submit(slurm, tmp_path, "prefix-inside.sbatch")
    slurm.client("scancel", job)
    end = time.monotonic() + 40
    written = tmp_path / f"verdict-{job}.json"
    while not written.exists() and time.monotonic() < end:
        time.sleep(0.5)
    verdict = Verdict.from_json(written.read_bytes())
    assert verdict.coverage.workers_reported == 2, verdict.summary


def steady_workers(directory: Path) -> int:
    """Workers whose iterations are known so far."""
    try:
        (file,) = directory.glob("eroica-report/*/status.json")
        return sum(worker["iteration"] > 130 for worker in json.loads(file.read_bytes())["workers"])
    except (OSError, ValueError):
        return 0
