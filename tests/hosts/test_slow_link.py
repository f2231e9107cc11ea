"""A link gets slow while a job trains on several hosts: the verdict names it and its direction, not a worker."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from eroica.model.verdict import Verdict
from eroica.wire.messages import JobStatus
from support.hosts import Direction, Hosts, available
from support.node_jobs import end_job, environment, torchrun, wait_for_status, watched

pytestmark = [
    pytest.mark.root,
    pytest.mark.jobs,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not available()[0], reason=f"no hosts here: {available()[1]}"),
]

#: Gradients of a megabyte, and sleep instead of work: six workers share two cores.
SCRIPT = """
import itertools, os, time
import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
layers = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))
model = torch.nn.parallel.DistributedDataParallel(layers)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
enough = torch.zeros(1)
for number in itertools.count(1):
    time.sleep(0.08)
    model(torch.randn(4, 256)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if number % 10 == 0:
        enough[0] = float(os.path.exists(os.environ["ENOUGH"]))
        dist.all_reduce(enough, op=dist.ReduceOp.MAX)
        if enough[0] > 0:
            break
dist.destroy_process_group()
"""
SETTINGS = {
    "baseline_window": "true",
    "baseline_after_iterations": "20",
    "baseline_window_s": "2",
    "window_s": "3",
}


def start(hosts: Hosts, directory: Path) -> list[subprocess.Popen[str]]:
    script = directory / "train.py"
    script.write_text(SCRIPT)
    started = []
    for host in range(hosts.count):
        place = directory / f"node{host}"
        place.mkdir()
        command = watched(place, torchrun(hosts, host, 2, str(script)), SETTINGS)
        with (place / "out").open("w") as out, (place / "err").open("w") as err:
            variables = environment(hosts, host, ENOUGH=str(directory / "enough"))
            started.append(hosts.run(host, command, variables, cwd=place, stdout=out, stderr=err, text=True))
    return started


def ended(purpose: tuple[str, ...]) -> Callable[[JobStatus], bool]:
    """Whether a window of such a purpose has ended."""
    over = ("done", "failed", "given up")
    return lambda status: any(one.purpose in purpose and one.phase in over for one in status.windows)


def run(directory: Path, count: int, directions: tuple[Direction, ...]) -> tuple[Verdict | None, str]:
    """The verdict after host 1's link was limited in a healthy job on so many hosts, and what was logged."""
    with Hosts(count) as hosts:
        started = start(hosts, directory)
        report = directory / "node0" / "report"
        healthy = wait_for_status(report, 60, ended(("baseline",)), started[0])
        hosts.limit(1, "80mbit", directions)
        slow = wait_for_status(report, 60, ended(("slow",)), started[0])
        nodes = end_job(directory, started, 40)
        return nodes[0].verdict, f"{healthy}\n{slow}\n{nodes[0].logs}"


@pytest.mark.long
@pytest.mark.parametrize(
    ("count", "directions", "place", "workers"),
    [(3, ("send", "receive"), ("node1",), (2, 3)), (2, ("send",), ("node0", "node1"), (0, 1, 2, 3))],
    ids=["one of three hosts", "one direction between two hosts"],
)
def test_a_slow_link_is_named_by_its_place(
    tmp_path: Path, count: int, directions: tuple[Direction, ...], place: tuple[str, ...], workers: tuple[int, ...]
) -> None:
    verdict, logs = run(tmp_path, count, directions)
    assert verdict is not None, logs
    found = verdict.cause
    assert found is not None, f"{verdict.summary}\n{logs}"
    assert (found.cause, found.scope, found.hosts) == ("slow-link", "some", place), verdict.summary
    assert found.workers == workers
    assert count > 2 or "path from node1 to node0" in verdict.summary
    assert found.gain is not None and found.gain > 0.2
    assert found.confidence > 0.5
    assert found.resource is not None and found.resource.unit == "MB/s"
    assert 3 < found.resource.mean < 20, "80 Mbit/s are 10 MB/s"
    assert found.resource.peers_mean is not None and found.resource.peers_mean > 3 * found.resource.mean
    assert any("node1" in sentence and "under way" in sentence for sentence in found.evidence)
