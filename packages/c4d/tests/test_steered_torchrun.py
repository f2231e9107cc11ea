"""`eroica steer` with torchrun as in the README: a worker stops, an order names its host, a spare takes its place."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.hosts import Hosts, available
from support.node_jobs import environment, left_behind

pytestmark = [
    pytest.mark.root,
    pytest.mark.jobs,
    pytest.mark.thorough,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not available()[0], reason=f"no hosts here: {available()[1]}"),
]
EROICA = [sys.executable, "-m", "eroica"]
#: As ssh: a shell of its own makes one line of all words, in another session, and is told no signal.
REACH = """#!/bin/sh
case "$1" in
{cases}
esac
shift
$enter env GLOO_SOCKET_IFNAME=$card setsid -w sh -c "$*"
exit $?
"""


class Job:
    """Two hosts train, a third one is the spare; `eroica steer` runs on the first."""

    def __init__(self, hosts: Hosts, place: Path) -> None:
        self._place = place
        self.faults = place / "faults"
        self.faults.mkdir()
        cases = [
            f'{hosts.address(at)}) enter="{" ".join(hosts.entrance(at))}"; card={hosts.interface(at)};;'
            for at in range(hosts.count)
        ]
        reach = place / "reach.sh"
        reach.write_text(REACH.replace("{cases}", "\n".join(cases)))
        reach.chmod(0o700)
        names = [hosts.address(host) for host in range(hosts.count)]
        steer = [*EROICA, "steer", "--hosts", ",".join(names[:-1]), "--spares", names[-1]]
        steer += ["--reach", f"{reach} {{host}}", "--stop-s", "5", "--log", str(place / "steer.jsonl"), "--"]
        watched = [*EROICA, "run", "--out", str(place / "report-{attempt}-{host}")]
        watched += ["--set", "baseline_window=false", "--set", "pages=false", "--"]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "{nnodes}", "--node-rank", "{node_rank}"]
        torchrun += ["--master-addr", "{master_addr}", "--master-port", "{master_port}", "--nproc-per-node", "1"]
        command = [*steer, *watched, *torchrun, "-m", "support.paced", "--faults", str(self.faults)]
        with (place / "out").open("w") as out, (place / "err").open("w") as err:
            self.process = hosts.run(
                0, command, environment(hosts, 0), cwd=place, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )

    @property
    def errors(self) -> str:
        """The end of what was said, for failures."""
        return (self._place / "err").read_text()[-4000:]

    @property
    def iterations(self) -> int:
        """How often worker 0 has said how far it is."""
        return (self._place / "out").read_text().count("iteration")

    @property
    def events(self) -> list[dict[str, Any]]:
        """What was done, in order."""
        return [json.loads(line) for line in (self._place / "steer.jsonl").read_text().splitlines()]

    def wait(self, condition: Callable[[], bool], patience_s: float) -> None:
        """Wait until it holds."""
        end = time.monotonic() + patience_s
        while not condition():
            assert time.monotonic() < end and self.process.poll() is None, self.errors
            time.sleep(0.1)


def test_torchrun_is_ended_on_all_hosts_and_started_again_with_the_spare(tmp_path: Path) -> None:
    with Hosts(3) as hosts:
        job = Job(hosts, tmp_path)
        job.wait(lambda: job.iterations > 10, 90)
        before = {host: set(hosts.processes_on(host)) - {job.process.pid} for host in range(2)}
        (job.faults / "stop-inside-1").touch()
        job.wait(lambda: any(one["event"] == "order" for one in job.events), 60)
        job.wait(lambda: job.events[-1]["event"] == "start", 30)
        left = [pid for host, pids in before.items() for pid in pids & set(hosts.processes_on(host))]
        said = job.iterations
        job.wait(lambda: job.iterations > said + 2, 90)
        (job.faults / "enough").touch()
        assert job.process.wait(60) == 0, job.errors
        assert left_behind(hosts) == []
        names = [hosts.address(host) for host in range(3)]
    events = job.events
    assert [one["event"] for one in events] == ["start", "order", "stopped", "start", "ended"]
    order = events[1]["order"]
    assert (order["hosts"], order["workers"], order["restart"]) == ([names[1]], [1], True)
    assert events[2]["given_up"] == [] and left == []
    assert events[3]["hosts"] == [names[0], names[2]] and events[4]["statuses"] == [0, 0]
