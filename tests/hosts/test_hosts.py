"""Jobs on several hosts, `eroica run` on each: worker 0's host concludes, and slow links are named by their place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from eroica.demo.rehearsal import write_training
from eroica.model.verdict import Verdict
from eroica.wire.messages import JobStatus
from support.hosts import Direction, Hosts, available, clocks_available
from support.node_jobs import end_job, has_verdict, left_behind, start_job, wait_for_status

pytestmark = [
    pytest.mark.root,
    pytest.mark.jobs,
    pytest.mark.long,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not available()[0], reason=f"no hosts here: {available()[1]}"),
]

#: The demo's training, small enough for six workers on two cores, which ends when the test wants it to.
ENDLESS = """
import os
from tinylm import loop

class Trainer(loop.Trainer):
    def after_step(self, iteration, loss):
        if iteration % 10:
            return True
        over = loop.torch.tensor(float(os.path.exists(os.environ["ENOUGH"])))
        loop.dist.all_reduce(over, op=loop.dist.ReduceOp.MAX)
        return not over

if __name__ == "__main__":
    loop.Trainer = Trainer
    loop.main()
"""
SMALL = ("--width", "32", "--layers", "1", "--length", "16", "--batch", "4", "--iterations", "100000")


def test_a_late_worker_of_another_host_is_named_although_the_clocks_are_an_hour_apart(tmp_path: Path) -> None:
    script = write_training(tmp_path / "code")
    script.write_text(ENDLESS)
    clocks = (0, 600, 3600) if clocks_available() else ()
    settings = {"expected_iteration_s": "0.002", "window_s": "3"}
    fault = {"EROICA_FAULT": "slow-loader:worker=3,seconds=0.01"}
    with Hosts(3) as hosts:
        started = start_job(hosts, tmp_path, str(script), *SMALL, clocks=clocks, settings=settings, variables=fault)
        wait_for_status(tmp_path / "node0" / "report", 120, has_verdict, started[0])
        nodes = end_job(tmp_path, started, 60)
        remains = left_behind(hosts)
    logs = "\n".join(node.logs for node in nodes)
    assert [node.status for node in nodes] == [0, 0, 0], logs
    verdict = nodes[0].verdict
    assert verdict is not None and verdict.cause is not None, logs
    assert (verdict.cause.cause, verdict.cause.workers) == ("slow-data-loading", (3,)), verdict.summary
    assert verdict.summary.startswith("Worker 3") and verdict.cause.hosts == ("node1",)
    assert (verdict.coverage.workers_expected, verdict.coverage.workers_reported) == (6, 6), verdict.coverage
    assert nodes[0].json.read_bytes() == (nodes[0].report / "verdict.json").read_bytes()
    for node in nodes[1:]:
        assert node.verdict is None and not node.json.exists()
        assert "node0" in node.errors and "SLOW" not in node.errors
    assert not list(tmp_path.glob("node*/report/collector.json")) and not list(tmp_path.glob("node*/report/hosts/*"))
    assert remains == []


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
SETTINGS = {"baseline_window": "true", "baseline_after_iterations": "20", "baseline_window_s": "2", "window_s": "3"}


def ended(purpose: str) -> Callable[[JobStatus], bool]:
    """Whether a window of such a purpose has ended."""
    over = ("done", "failed", "given up")
    return lambda status: any(one.purpose == purpose and one.phase in over for one in status.windows)


def limited(directory: Path, count: int, directions: tuple[Direction, ...]) -> tuple[Verdict | None, str]:
    """The verdict after host 1's link was limited in a healthy job on so many hosts, and what was logged."""
    script = directory / "train.py"
    script.write_text(SCRIPT)
    with Hosts(count) as hosts:
        started = start_job(hosts, directory, str(script), settings=SETTINGS)
        report = directory / "node0" / "report"
        healthy = wait_for_status(report, 60, ended("baseline"), started[0])
        hosts.limit(1, "80mbit", directions)
        slow = wait_for_status(report, 60, ended("slow"), started[0])
        nodes = end_job(directory, started, 40)
        return nodes[0].verdict, f"{healthy}\n{slow}\n{nodes[0].logs}"


@pytest.mark.parametrize(
    ("count", "directions", "place", "workers"),
    [(3, ("send", "receive"), ("node1",), (2, 3)), (2, ("send",), ("node0", "node1"), (0, 1, 2, 3))],
    ids=["one of three hosts", "one direction between two hosts"],
)
def test_a_slow_link_is_named_by_its_place(
    tmp_path: Path, count: int, directions: tuple[Direction, ...], place: tuple[str, ...], workers: tuple[int, ...]
) -> None:
    verdict, logs = limited(tmp_path, count, directions)
    assert verdict is not None, logs
    found = verdict.cause
    assert found is not None, f"{verdict.summary}\n{logs}"
    assert (found.cause, found.scope, found.hosts) == ("slow-link", "some", place), verdict.summary
    assert found.workers == workers
    assert count > 2 or "path from node1 to node0" in verdict.summary
    assert found.gain is not None and found.gain > 0.2 and found.confidence > 0.5
    assert found.resource is not None and found.resource.unit == "MB/s"
    assert 3 < found.resource.mean < 20, "80 Mbit/s are 10 MB/s"
    assert found.resource.peers_mean is not None and found.resource.peers_mean > 3 * found.resource.mean
    assert any("node1" in sentence and "under way" in sentence for sentence in found.evidence)
