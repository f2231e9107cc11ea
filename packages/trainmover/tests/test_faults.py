"""Faults inside moves, and members without a replica: training goes on, or falls back, and says why."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import PAIR, SHAPE, RunningJob, running_job
from tests.test_moves import PACE_S, same
from trainmover.errors import TrainmoverError

pytestmark = pytest.mark.jobs


@pytest.mark.thorough
def test_whatever_fails_inside_a_move_training_goes_on(tmp_path: Path, undisturbed: Path) -> None:
    """A joiner that dies at a stage, has the wrong role, code or version; a leaver that dies while it is moved."""

    def fails(job: RunningJob, name: str) -> None:
        answer = job.move("node-1", name)
        assert not answer["done"], answer
        assert "training goes on" in answer["text"]

    with running_job(tmp_path, 4, *SHAPE, pace_s=PACE_S) as job:
        job.until_step(3)
        turned_away = [job.standby("old", TRAINMOVER_FAULT="other-version")]
        turned_away.append(job.standby("edited", TRAINMOVER_FAULT="other-code"))
        job.standby("kill-prepare", TRAINMOVER_FAULT="kill@prepare")
        job.until_ready()
        assert [one.wait(60) for one in turned_away] == [1, 1]
        kept = job.standby("wrong-role", TRAINMOVER_FAULT="wrong-role")  # these three warm up together
        job.standby("kill-state", TRAINMOVER_FAULT="kill@state")
        job.standby("kill-switch", TRAINMOVER_FAULT="kill@switch")
        fails(job, "kill-prepare")
        job.until_ready(3)
        fails(job, "kill-state")
        fails(job, "wrong-role")
        kept.kill()
        job.until(lambda now: [one["host"] for one in now["standbys"]] == ["kill-switch"])
        assert job.status()["generation"] == 0
        assert job.move("node-1", "kill-switch")["done"]
        job.until(lambda now: any(one["what"] == "recovery" for one in now["history"]))
        job.standby("short-lived", TRAINMOVER_FAULT="kill@hold")
        job.standby("good")
        job.until_ready(2)
        generation = job.status()["generation"] + 1
        assert job.move("node-1", "short-lived")["done"]
        answer = job.move("short-lived", "good")
        assert not answer["done"], answer
        job.until(lambda now: now["generation"] > generation and not now["under_way"])
        assert "good" in {one["host"] for one in job.status()["members"]}
        same(job, undisturbed)
    said = (tmp_path / "controller.log").read_text()
    assert "trainmover 0.0.0 here, 0.1.0 in the job" in said
    assert "its script has another content" in said
    assert "wrong role" in said


@pytest.mark.thorough
def test_a_standby_that_is_slower_than_the_job_is_given_up_or_waited_for_and_training_goes_on(
    tmp_path: Path, undisturbed_pair: Path
) -> None:
    """It has too little time for another role, then says nothing at all, then is slow in each later stage."""
    slow = "slow@shadow,slow@prepare,slow@state"
    timeouts = json.dumps({"become_s": 1.5, "heartbeat_timeout_s": 3.0})

    def ordered(job: RunningJob) -> tuple[dict[str, Any], float]:
        """The answer, and how long it took; meanwhile training went on."""
        step, began = min(one["step"] for one in job.status()["members"]), time.monotonic()
        answer = job.move("node-0", "slow")
        took_s = time.monotonic() - began
        job.until_step(step + int(took_s), 1.0)  # three would be possible in each second
        return answer, took_s

    with running_job(tmp_path, 2, *PAIR, pace_s=PACE_S, timeouts=timeouts) as job:
        spare = job.standby("slow", TRAINMOVER_FAULT=slow)
        assert job.until_ready()["standbys"][0]["rank"] == 1
        answer, took_s = ordered(job)
        assert not answer["done"] and "the standby on slow took too long (becoming)" in answer["text"]
        assert 1.5 <= took_s < 3.0
        job.until(lambda now: [(one["rank"], one["ready"]) for one in now["standbys"]] == [(0, True)])
        spare.send_signal(signal.SIGSTOP)
        answer, took_s = ordered(job)
        assert not answer["done"] and "the standby on slow has said nothing for 3 s" in answer["text"]
        assert took_s < 5.0
        spare.send_signal(signal.SIGCONT)
        job.until_ready()
        assert job.status()["generation"] == 0
        began = time.monotonic()
        answer = job.move("node-0", "slow")
        assert answer["done"], (answer, job.log())
        assert time.monotonic() - began >= 4.0
        same(job, undisturbed_pair)
    assert counted(job.out) == {rank: list(range(100)) for rank in (0, 1)}


@pytest.mark.thorough
def test_a_controller_that_is_killed_in_a_move_gives_it_up_and_a_later_move_works(
    tmp_path: Path, undisturbed_pair: Path
) -> None:
    """Once while a slow joiner prepares connections, once while everybody stands at the boundary and waits for it."""
    with running_job(tmp_path, 2, *PAIR, pace_s=PACE_S) as job:
        job.standby("spare", TRAINMOVER_FAULT="slow@prepare,slow@state")
        job.until_ready()
        holders = [job.pid_of(0), job.pid_of(1)]
        for stage in ("preparing", "holding"):
            thread = threading.Thread(target=_order, args=(job,), daemon=True)
            thread.start()
            step = job.until(lambda now, stage=stage: now["under_way"] == f"move, {stage}")["members"][0]["step"]
            job.kill_controller()
            thread.join(10)
            assert not thread.is_alive()
            now = job.until(lambda now: len(now["members"]) == 2 and any(one["ready"] for one in now["standbys"]))
            assert (now["generation"], now["under_way"]) == (0, "")
            assert decided(tmp_path) == ("start", 0)
            job.until_step(step + 4, 10)
            assert [job.pid_of(0), job.pid_of(1)] == holders
        answer = job.move("node-0", "spare")
        assert answer["done"], (answer, job.log())
        assert decided(tmp_path) == ("switch", 3)
        same(job, undisturbed_pair)
    assert counted(job.out) == {rank: list(range(100)) for rank in (0, 1)}
    assert decided(tmp_path) == ("end", 3)  # of the third move: no recovery came between


def decided(folder: Path) -> tuple[str, int]:
    """The last decision and its generation; no process has two ranks in it."""
    decision = json.loads((folder / "decision.json").read_text())
    assert len(set(decision["owners"].values())) == len(decision["owners"]) == 2
    return decision["what"], decision["generation"]


def _order(job: RunningJob) -> None:
    """The connection of whoever ordered the move ends with the controller."""
    with contextlib.suppress(TrainmoverError, OSError):
        job.move("node-0", "spare")


def counted(out: Path) -> dict[int, list[int]]:
    """Iterations by rank, in the order in which they were counted; two members of one rank would count one twice."""
    files = {rank: (out / f"losses-{rank}.jsonl").read_text().splitlines() for rank in (0, 1)}
    return {rank: [json.loads(line)["step"] for line in lines] for rank, lines in files.items()}


def test_members_without_a_replica_send_their_shards_and_two_losses_at_once_fall_back_to_the_checkpoint(
    tmp_path: Path, undisturbed_pair: Path
) -> None:
    """FSDP2: nobody has the same shard, so the buddy holds all of it; when both are gone, there is the checkpoint."""
    saved = tmp_path / "saved"
    options = ("--checkpoint-every", "20", "--checkpoint", str(saved))
    with running_job(tmp_path / "hit", 2, *PAIR, *options, pace_s=0.1) as job:
        job.until_step(25)
        job.hit(1)
        job.until(lambda now: now["generation"] == 1 and not now["under_way"])
        assert job.until_step(45)["generation"] == 1
        job.until(lambda _now: len(list(saved.glob("step-00000040/*.pt"))) == 2)
        pids = [job.pid_of(0), job.pid_of(1)]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        job.until(lambda now: now["generation"] > 1 and not now["under_way"])
        same(job, undisturbed_pair)
    said = (tmp_path / "hit" / "controller.log").read_text()
    assert "states come from {1: 0}" in said
    assert "states come from {0: -1, 1: -1}" in said


def test_a_member_that_is_killed_at_once_after_a_move_is_replaced_from_the_copies_of_the_boundary(
    tmp_path: Path, undisturbed_pair: Path
) -> None:
    """Nobody has the same shard and there is no checkpoint: the leaver held the only other copy of the victim's."""
    with running_job(tmp_path, 2, *PAIR, pace_s=PACE_S) as job:
        for host in ("spare-1", "spare-2"):
            job.standby(host)
        job.until_ready(2)
        victim = job.pid_of(1)
        answer = job.move("node-0", "spare-1")
        os.kill(victim, signal.SIGKILL)
        assert answer["done"], (answer, job.log())
        job.until(lambda now: now["generation"] > 1 and not now["under_way"])
        same(job, undisturbed_pair)
    said = (tmp_path / "controller.log").read_text()
    boundary = answer["text"].rpartition(" ")[2]
    assert f"all members go back to iteration {boundary}" in said
