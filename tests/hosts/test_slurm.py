"""`srun` in front of `eroica run` and behind it, on namespaces; a small script stands for Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from eroica.model.verdict import Verdict
from support.hosts import Hosts, available
from support.node_jobs import environment, left_behind, watched

pytestmark = [
    pytest.mark.root,
    pytest.mark.jobs,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not available()[0], reason=f"no hosts here: {available()[1]}"),
]

#: Starts tasks as Slurm does: the caller's environment plus what each task is.
SRUN = """import json, os, subprocess, sys
nodes = json.loads(os.environ["FAKE_NODES"])
per_node = ",".join(str(node["tasks"]) for node in nodes)
started = []
for number, node in enumerate(nodes):
    for local in range(node["tasks"]):
        own = dict(node["variables"], SLURM_STEP_ID="0", SLURM_NTASKS=str(sum(node["tasks"] for node in nodes)))
        own |= dict(SLURM_PROCID=str(len(started)), SLURM_LOCALID=str(local), SLURM_NODEID=str(number))
        own |= dict(SLURM_STEP_TASKS_PER_NODE=per_node)
        started.append(subprocess.Popen([*node["entrance"], *sys.argv[1:]], env=dict(os.environ, **own)))
sys.exit(max(task.wait() for task in started))
"""

TRAIN = """
import os, sys, time, torch
import torch.distributed as dist
rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
dist.init_process_group("gloo", rank=rank, world_size=world)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
over = torch.zeros(())
while not over:
    time.sleep(0.01)
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    over.fill_(os.path.exists(os.environ["ENOUGH"]))
    dist.all_reduce(over, op=dist.ReduceOp.MAX)
print(f"task {rank} trained")
dist.destroy_process_group()
"""


#: Iterations after which a worker's speed is known, with a margin: before, nobody is told healthy.
TOLD_AFTER = 100


class Cluster:
    """Hosts that one fake Slurm job runs on."""

    def __init__(self, hosts: Hosts, directory: Path, tasks: Sequence[int]) -> None:
        self.hosts, self.directory = hosts, directory
        (directory / "bin").mkdir()
        srun = directory / "bin" / "srun"
        srun.write_text(f"#!{sys.executable}\n{SRUN}")
        srun.chmod(0o755)
        (directory / "train.py").write_text(TRAIN)
        names = ("EROICA_HOST", "GLOO_SOCKET_IFNAME")
        nodes = [
            {
                "tasks": tasks[host],
                "entrance": hosts.entrance(host),
                "variables": {name: environment(hosts, host)[name] for name in names},
            }
            for host in range(hosts.count)
        ]
        self.variables = {
            "PATH": f"{directory / 'bin'}:{os.environ['PATH']}",
            "FAKE_NODES": json.dumps(nodes),
            "SLURM_JOB_ID": str(os.getpid()),
            "SLURM_NNODES": str(hosts.count),
            "MASTER_ADDR": hosts.address(0),
            "MASTER_PORT": "29512",
            "ENOUGH": str(directory / "enough"),
        }

    def start(self, command: list[str]) -> subprocess.Popen[str]:
        """The batch script, on the first host."""
        variables = environment(self.hosts, 0, **self.variables)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return self.hosts.run(0, command, variables, cwd=self.directory, **pipes)

    def end_once(self, report: Path, hosts: set[str], workers: int, patience_s: float = 120.0) -> dict[str, object]:
        """Let the training end as soon as so many workers of these hosts train together; the status then."""
        end, status = time.monotonic() + patience_s, {}
        while time.monotonic() < end:
            try:
                status = json.loads((report / "status.json").read_text())
            except (OSError, ValueError):
                status = {}
            workers_now = status.get("workers", [])
            steady = [one for one in workers_now if one["state"] == "steady" and one["iteration"] > TOLD_AFTER]
            if hosts <= set(status.get("hosts", [])) and len(steady) >= workers:
                break
            time.sleep(0.2)
        (self.directory / "enough").touch()
        return status


def test_eroica_in_front_of_srun_watches_the_tasks_on_all_hosts(tmp_path: Path) -> None:
    settings = {"baseline_window": "false"}
    with Hosts(2) as hosts:
        cluster = Cluster(hosts, tmp_path, [1, 1])
        job = cluster.start(watched(tmp_path, ["srun", sys.executable, "train.py"], settings))
        status = cluster.end_once(tmp_path / "report", {"node0", "node1"}, 2)
        out, err = job.communicate(timeout=60)
        remains = left_behind(hosts, 10)
    assert job.returncode == 0, err
    assert out.count("trained") == 2
    assert {"node0", "node1"} <= set(status["hosts"]), status  # type: ignore[call-overload]
    verdict = Verdict.from_json((tmp_path / "report" / "verdict.json").read_bytes())
    assert verdict.verdict == "undetermined" and verdict.coverage.workers_reported == 2, verdict.summary
    assert "No window was judged" in err and remains == []


@pytest.mark.long
def test_eroica_behind_srun_works_once_per_host_and_speaks_once(tmp_path: Path) -> None:
    with Hosts(2) as hosts:
        cluster = Cluster(hosts, tmp_path, [2, 1])
        command = [sys.executable, "-m", "eroica", "run", "--set", "baseline_window=false", "--json", "verdict.json"]
        job = cluster.start(["srun", *command, "--", sys.executable, "train.py"])
        report = tmp_path / "eroica-report" / f"{os.getpid()}-0-{hosts.address(0)}-29512"
        cluster.end_once(report, {"node0", "node1"}, 3)
        out, err = job.communicate(timeout=60)
        remains = left_behind(hosts, 10)
    logs = "\n".join(path.read_text() for path in report.glob("log/*"))
    assert job.returncode == 0, err
    assert out.count("trained") == 3
    assert err.count("UNDETERMINED") == 1 and "verdict is written" not in err, err + logs
    verdict = Verdict.from_json((tmp_path / "verdict.json").read_bytes())
    assert verdict.verdict == "undetermined" and verdict.coverage.workers_reported == 3, verdict.summary + logs
    assert sorted(path.name for path in report.glob("log/agent-*")) == ["agent-node0.log", "agent-node1.log"]
    assert remains == []
