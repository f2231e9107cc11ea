"""Real jobs of four processes that lose members, by order and by surprise, and train on to the same bit."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import SHAPE, RunningJob, alone, losses, running_job, states

pytestmark = pytest.mark.jobs
PACE_S = 0.3


def same(job: RunningJob, undisturbed: Path) -> None:
    job.pace(0.0)
    assert job.finish() == 0, job.log()
    assert losses(job.out) == losses(undisturbed)
    assert states(job.out) == states(undisturbed)


def test_two_moved_at_once_one_killed_one_stopped_and_a_killed_controller_change_no_bit(
    tmp_path: Path, undisturbed: Path
) -> None:
    """Parameters, optimizer, random numbers, data position and every loss are those of the undisturbed job.

    Two machines move at the same boundary. They are replicas of each other, so joiners connect to each other, too. One
    of two joiners that dies in its shadow calls the next order off. No standby is there for the stopped member, so its
    supervisor starts another process.
    """
    with running_job(tmp_path, 4, *SHAPE, pace_s=PACE_S, timeouts=json.dumps({"heartbeat_timeout_s": 10.0})) as job:
        for host in ("spare-1", "spare-2"):
            job.standby(host)
        job.until_ready(2)
        job.standby("good")  # these two warm up meanwhile
        job.standby("dies", TRAINMOVER_FAULT="kill@state")
        answer = job.move_all({"node-0": "spare-1", "node-2": "spare-2"})
        assert answer["done"], (answer, job.log())
        assert hosts(job.until(lambda now: len(now["members"]) == 4 and now["generation"] == 1)) == [
            "spare-1", "node-1", "spare-2", "node-3",
        ]  # fmt: skip
        job.until_ready(2)
        answer = job.move_all({"node-1": "good", "node-3": "dies"})
        assert not answer["done"], answer
        assert job.status()["generation"] == 1
        job.kill_controller()
        job.until(lambda now: len(now["members"]) == 4 and now["generation"] == 1)
        job.until_ready()
        job.hit(3)
        now = job.until(lambda now: now["generation"] > 1 and not now["under_way"])
        assert hosts(now) == ["spare-1", "node-1", "spare-2", "good"]
        job.hit(2, signal.SIGSTOP)  # not the joiner's replica, whose copy may not be there yet
        now = job.until(lambda later: later["generation"] > now["generation"] and not later["under_way"])
        assert hosts(now) == ["spare-1", "node-1", "node-2", "good"]
        same(job, undisturbed)


def hosts(now: dict[str, Any]) -> list[str]:
    """Who holds the ranks, in order."""
    return [one["host"] for one in now["members"]]


def test_a_tensor_parallel_job_moves_members_of_two_stages_one_after_another(tmp_path: Path) -> None:
    """A standby runs the script once in each role; what torch keeps of one role's groups must not serve the next."""
    shape = ("--dp", "1", "--tp", "2", "--pp", "2", "--layers", "1", "--iterations", "40")
    undisturbed = alone(tmp_path / "undisturbed", 4, *shape)
    with running_job(tmp_path / "moved", 4, *shape, pace_s=PACE_S) as job:
        for rank in (0, 3):
            job.standby(f"spare-{rank}")
        job.until_ready(2)
        for rank in (0, 3):
            answer = job.move(f"node-{rank}", f"spare-{rank}")
            assert answer["done"], (answer, job.log())
        same(job, undisturbed)
