"""Faults inside moves, and members without a twin: training goes on, or falls back, and says why."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.rehearsal import SHAPE, rehearsal
from tests.test_moves import PACE_S, same

pytestmark = pytest.mark.jobs


def test_whatever_fails_inside_a_move_training_goes_on(tmp_path: Path, undisturbed: Path) -> None:
    """A newcomer that dies at a stage, has the wrong role, code or version; a leaver that dies while it is moved."""
    with rehearsal(tmp_path, 4, *SHAPE, pace_s=PACE_S) as job:
        job.until_step(3)
        for host, fault in (("old", "other-version"), ("edited", "other-code")):
            turned_away = job.standby(host, TRAINMOVER_FAULT=fault)
            assert turned_away.wait(60) == 1
        for fault in ("kill@prepare", "kill@state", "wrong-role"):
            name = fault.replace("@", "-")
            job.standby(name, TRAINMOVER_FAULT=fault)
            job.until_ready()
            answer = job.move("node-1", name)
            assert not answer["done"], answer
            assert "training goes on" in answer["text"]
            job.others[-1].kill()
            job.until(lambda now: not now["standbys"])
        assert job.status()["generation"] == 0
        job.standby("kill-switch", TRAINMOVER_FAULT="kill@switch")
        job.until_ready()
        assert job.move("node-1", "kill-switch")["done"]
        job.until(lambda now: any(one["what"] == "recovery" for one in now["history"]))
        job.standby("short-lived", TRAINMOVER_FAULT="kill@hold")
        job.until_ready()
        generation = job.status()["generation"] + 1
        assert job.move("node-1", "short-lived")["done"]
        job.standby("good")
        job.until_ready()
        answer = job.move("short-lived", "good")
        assert not answer["done"], answer
        job.until(lambda now: now["generation"] > generation and not now["under_way"])
        assert "good" in {one["host"] for one in job.status()["members"]}
        same(job, undisturbed)
    said = (tmp_path / "controller.log").read_text()
    assert "trainmover 0.0.0 here, 0.1.0 in the job" in said
    assert "its script has another content" in said
    assert "wrong role" in said


def test_members_without_a_twin_send_their_shards_and_two_losses_at_once_fall_back_to_the_checkpoint(
    tmp_path: Path,
) -> None:
    """FSDP2: nobody has the same shard, so the buddy holds all of it; when both are gone, there is the checkpoint."""
    shape = ("--dp", "2", "--fsdp", "--iterations", "100", "--checkpoint-every", "20")
    with rehearsal(tmp_path / "plain", 2, *shape) as plain:
        assert plain.finish() == 0, plain.log()
    with rehearsal(tmp_path / "hit", 2, *shape, "--checkpoint", str(tmp_path / "saved"), pace_s=0.1) as job:
        job.until_step(25)
        job.hit(1)
        job.until(lambda now: now["generation"] == 1 and not now["under_way"])
        assert job.until_step(45)["generation"] == 1
        time.sleep(0.3)
        pids = [job.pid_of(0), job.pid_of(1)]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        job.until(lambda now: now["generation"] > 1 and not now["under_way"])
        same(job, plain.out)
    said = (tmp_path / "hit" / "controller.log").read_text()
    assert "states come from {1: 0}" in said
    assert "states come from {0: -1, 1: -1}" in said


def test_parts_of_a_move_that_are_left_out_to_measure_them_change_no_bit(tmp_path: Path) -> None:
    """All connections are made anew and the newcomer has run no iteration: slower, and the same."""
    shape = ("--dp", "2", "--fsdp", "--iterations", "60")
    with rehearsal(tmp_path / "plain", 2, *shape) as plain:
        assert plain.finish() == 0, plain.log()
    with rehearsal(tmp_path / "hit", 2, *shape, pace_s=0.3, TRAINMOVER_FAULT="rebuild") as job:
        job.standby("cold", TRAINMOVER_FAULT="rebuild,cold")
        job.until_ready()
        answer = job.move("node-1", "cold")
        assert answer["done"], (answer, job.log())
        same(job, plain.out)
