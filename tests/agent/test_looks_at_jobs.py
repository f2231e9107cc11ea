"""A real job that stands still, looked at from outside."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eroica.agent.roster import Roster
from eroica.agent.witnesses import Look, kernel_view, take_looks
from eroica.model.look import ThreadLook, WorkerLook
from eroica.settings import Settings
from eroica.wire.places import places, private_directory
from eroica.worker import bootstrap_directory
from support.watched import environment

pytestmark = pytest.mark.jobs
PROGRAM = Path(__file__).parent / "programs" / "standstill.py"
RANKS = 3


class Job:
    def __init__(self, root: Path) -> None:
        self.variables = environment(
            PYTHONPATH=str(bootstrap_directory()), EROICA_JOB="still", EROICA_LAUNCHED="1",
            EROICA_RUNTIME_DIR=str(root), EROICA_RUN_DIR=str(root / "run"), EROICA_SCRATCH_DIR=str(root / "scratch"),
        )  # fmt: skip
        runtime = private_directory(places(self.variables).runtime)
        self._lock = os.open(runtime / "agent.lock", os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)  # so that the workers start no agent
        meeting = f"file://{root}/meeting"
        self.processes = [
            subprocess.Popen([sys.executable, str(PROGRAM), meeting, str(rank)], env=self.variables)
            for rank in range(RANKS)
        ]
        settings = Settings(silence_s=1.5)
        self.roster = Roster(runtime, settings)

    def poll_until(self, done: Callable[[], bool], limit_s: float = 120.0) -> None:
        end = time.monotonic() + limit_s
        while not done():
            assert time.monotonic() < end, [worker.report() for worker in self.roster.workers.values()]
            assert all(process.poll() is None for process in self.processes)
            self.roster.scan()
            self.roster.poll()
            time.sleep(0.05)

    def silent(self) -> int:
        return sum(worker.silence.silent for worker in self.roster.living)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        os.close(self._lock)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    running = Job(tmp_path_factory.mktemp("still"))
    yield running
    running.close()


def by_rank(looks: tuple[WorkerLook, ...]) -> dict[int, WorkerLook]:
    return {look.worker.global_rank: look for look in looks}


def training(look: WorkerLook) -> ThreadLook:
    return next(thread for thread in look.process.threads if thread.thread_id == look.training_thread_id)


def switches(pid: int, tid: int) -> int:
    lines = Path(f"/proc/{pid}/task/{tid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)


def answering_thread(pid: int) -> int:
    """The thread that waits until its pipe can be read."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        for place in Path(f"/proc/{pid}/task").iterdir():
            if (place / "wchan").read_text().startswith(("poll", "do_poll", "do_sys_poll")):
                return int(place.name)
        time.sleep(0.05)
    raise AssertionError("no thread waits for a pipe")


@pytest.mark.thorough
def test_a_standing_job_is_seen_through(job: Job) -> None:
    job.poll_until(lambda: len(job.roster.living) == RANKS)
    sleeper = answering_thread(job.processes[0].pid)
    before = switches(job.processes[0].pid, sleeper)
    job.poll_until(lambda: job.silent() == RANKS)
    assert switches(job.processes[0].pid, sleeper) == before  # asleep all the time, the job's standing still included
    status = next(iter(job.roster.living)).report()
    assert status.silent and "no event for" in status.silence and status.silent_s > 1.5

    looks = take_looks(3, "here", lambda: [worker.subject() for worker in job.roster.living], pause_s=1.0)
    first, second = by_rank(looks.first), by_rank(looks.second)
    assert set(first) == set(second) == {0, 1, 2}
    assert all(first[rank].events == second[rank].events for rank in first)
    assert all(training(first[rank]).stack == training(second[rank]).stack for rank in first)

    queue, collective, locked = (first[rank] for rank in range(RANKS))
    assert all(look.process.source == "py-spy" and look.silent for look in first.values())
    assert training(queue).stack[1].startswith("next_batch (programs/standstill.py:")
    assert training(queue).stack[-1].startswith(("Condition.wait (threading.py:", "wait (threading.py:"))
    assert "all_reduce" in " ".join(training(collective).stack)
    assert training(locked).stack[-1].startswith("<module> (programs/standstill.py:")
    assert training(locked).holds_interpreter_lock and not training(queue).holds_interpreter_lock
    assert (queue.answered, collective.answered, locked.answered) == (True, True, False)
    assert training(queue).state == "S" and "futex" in training(queue).wait_channel
    assert training(queue).cpu_s is not None and training(queue).cpu_s == training(second[0]).cpu_s
    assert any(thread.name == "feeder" for thread in queue.process.threads)
    assert not any("pristine.py" in frame for thread in queue.process.threads for frame in thread.stack)
    assert {group.ranks for group in queue.groups} == {(0, 1, 2), (0, 1)}
    assert any("did not answer" in note for note in locked.notes)

    waits, absent = collective.flight, queue.flight
    assert waits is not None and absent is not None and locked.flight is None
    (missing,) = waits.open
    assert (missing.name, missing.elements, missing.is_p2p) == ("gloo:all_reduce", 4, False)
    steps = {state.name: state for state in waits.progress}
    assert steps[missing.group].enqueued == missing.sequence == steps[missing.group].completed + 1
    reached = {state.name: state.enqueued for state in absent.progress}
    assert absent.open == () and reached[missing.group] == missing.sequence - 1
    assert len(absent.recent) == 60 and absent.recent[-1].elements == 5


def test_a_stopped_worker_shows_its_state_and_costs_the_look_no_patience(job: Job) -> None:
    job.poll_until(lambda: len(job.roster.living) == RANKS == job.silent())
    stopped = next(worker for worker in job.roster.living if worker.worker.global_rank == 1)
    os.kill(stopped.worker.pid, signal.SIGSTOP)
    job.poll_until(lambda: kernel_view(stopped.worker.pid)[0] == "T")
    try:
        began = time.monotonic()
        (look,) = Look(9).at([stopped.subject()])
        assert time.monotonic() - began < 2.0
    finally:
        os.kill(stopped.worker.pid, signal.SIGCONT)
    assert look.process.state == "T" and not look.answered and "no answer: it is stopped" in look.notes
    assert "all_reduce" in " ".join(training(look).stack)


def test_without_py_spy_the_worker_tells_its_own_stacks(job: Job, tmp_path: Path) -> None:
    job.poll_until(lambda: job.silent() == RANKS)
    workers = {worker.worker.global_rank: worker for worker in job.roster.living}
    queue, locked = Look(10, tmp_path / "no-py-spy").at([workers[0].subject(), workers[2].subject()])
    assert queue.process.source == "answer" and queue.answered
    assert training(queue).stack[1].startswith("next_batch (programs/standstill.py:")
    assert {thread.name for thread in queue.process.threads} >= {"MainThread", "feeder"}
    assert locked.process.source == "" and locked.process.threads == () and locked.process.state == "S"
    assert len(locked.notes) == 2
