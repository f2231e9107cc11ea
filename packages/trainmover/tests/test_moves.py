"""Real jobs of four processes that lose members, by order and by surprise, and train on to the same bit."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.rehearsal import SHAPE, Rehearsal, losses, rehearsal, states

pytestmark = pytest.mark.jobs
PACE_S = 0.3


def same(job: Rehearsal, undisturbed: Path) -> None:
    job.pace(0.0)
    assert job.finish() == 0, job.log()
    assert losses(job.out) == losses(undisturbed)
    assert states(job.out) == states(undisturbed)


def test_a_planned_move_a_killed_member_and_a_killed_controller_change_no_bit(
    tmp_path: Path, undisturbed: Path
) -> None:
    """Parameters, optimizer, random numbers, data position and every loss are those of the undisturbed job."""
    with rehearsal(tmp_path, 4, *SHAPE, pace_s=PACE_S) as job:
        job.standby("spare-1")
        job.until_ready()
        answer = job.move("node-1", "spare-1")
        assert answer["done"], job.log()
        os.kill(json.loads((tmp_path / "controller.json").read_text())["pid"], signal.SIGKILL)
        job.until(lambda now: len(now["members"]) == 4 and now["generation"] == 1)
        job.standby("spare-2")
        job.until_ready()
        job.hit(3)
        job.until(lambda now: now["generation"] > 1 and not now["under_way"])
        assert {one["host"] for one in job.status()["members"]} == {"node-0", "spare-1", "node-2", "spare-2"}
        same(job, undisturbed)


def test_without_a_standby_the_seat_starts_one_and_a_stopped_process_counts_as_lost(
    tmp_path: Path, undisturbed: Path
) -> None:
    with rehearsal(tmp_path, 4, *SHAPE, pace_s=PACE_S, times=json.dumps({"beat_s": 3.0})) as job:
        job.until_step(5)
        job.hit(2, signal.SIGSTOP)
        job.until(lambda now: now["generation"] > 0 and not now["under_way"])
        same(job, undisturbed)


def test_two_machines_move_at_the_same_boundary_and_so_do_they_when_they_are_each_others_twins(
    tmp_path: Path, undisturbed: Path
) -> None:
    """Newcomers connect to each other, too; one of two that dies in its shadow calls the whole order off."""
    with rehearsal(tmp_path, 4, *SHAPE, pace_s=PACE_S) as job:
        for host in ("spare-1", "spare-2"):
            job.standby(host)
        job.until_ready(2)
        answer = job.move_all({"node-0": "spare-1", "node-2": "spare-2"})
        assert answer["done"], (answer, job.log())
        job.until(lambda now: len(now["members"]) == 4 and now["generation"] == 1)
        assert [one["host"] for one in job.status()["members"]] == ["spare-1", "node-1", "spare-2", "node-3"]
        job.standby("good")
        job.standby("dies", TRAINMOVER_FAULT="kill@state")
        job.until_ready(2)
        answer = job.move_all({"node-1": "good", "node-3": "dies"})
        assert not answer["done"], answer
        assert job.status()["generation"] == 1
        same(job, undisturbed)


def test_a_tensor_parallel_job_moves_members_of_two_stages_one_after_another(tmp_path: Path) -> None:
    """A standby runs the script once in each role; what torch keeps of one role's groups must not serve the next."""
    shape = ("--dp", "1", "--tp", "2", "--pp", "2", "--iterations", "100")
    with rehearsal(tmp_path / "undisturbed", 4, *shape) as job:
        assert job.finish() == 0, job.log()
        undisturbed = job.out
    with rehearsal(tmp_path / "moved", 4, *shape, pace_s=PACE_S) as job:
        for rank in (0, 3):
            job.standby(f"spare-{rank}")
            job.until_ready()
            answer = job.move(f"node-{rank}", f"spare-{rank}")
            assert answer["done"], (answer, job.log())
        same(job, undisturbed)
