"""One job on three hosts, `eroica run` on each: worker 0's host collects and concludes, whatever the clocks say."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.hosts import Hosts, available, clocks_available
from support.node_jobs import SMALL, end_job, has_verdict, left_behind, start_job, wait_for_status

pytestmark = [
    pytest.mark.root,
    pytest.mark.jobs,
    pytest.mark.timeout(200),
    pytest.mark.skipif(not available()[0], reason=f"no hosts here: {available()[1]}"),
]


@pytest.mark.long
def test_a_late_worker_of_another_host_is_named_although_the_clocks_are_an_hour_apart(tmp_path: Path) -> None:
    fault = "slow-loader:worker=3,from_iteration=0,seconds=0.01"
    clocks = (0, 600, 3600) if clocks_available() else ()
    settings = {"expected_iteration_s": "0.002", "window_s": "3"}
    with Hosts(3) as hosts:
        started = start_job(
            hosts, tmp_path, *SMALL, "--iterations", "100000", "--fault", fault, clocks=clocks, settings=settings
        )
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
