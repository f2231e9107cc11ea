"""A job's records in, verdicts out, with a clock of the test's own."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from eroica.collector.communication_watch import Sense, Sensed
from eroica.collector.windows import Windows
from eroica.model.communication import Flow, GroupCount, HostCommunication, WorkerOperations
from eroica.model.look import Ending
from eroica.model.window import Window
from eroica.model.worker import ProcessGroup, Worker
from eroica.settings import Settings
from eroica.wire.messages import AgentReport, WorkerStatus

HOSTS, PER_HOST = 4, 2
WORLD = HOSTS * PER_HOST
GROUP = ProcessGroup(name="0", description="default_pg", ranks=tuple(range(WORLD)))
STEP_S = 0.5


@dataclass
class Job:
    """Two workers on each of four hosts; every host sends to every other."""

    sense: Sense
    windows: Windows
    now: float = 100.0
    iteration: float = 0.0
    iteration_s: float = 0.1
    outside: dict[int, float] = field(default_factory=dict)
    delays: dict[tuple[int, int], float] = field(default_factory=dict)
    behind: dict[int, str] = field(default_factory=dict)
    busy: set[int] = field(default_factory=set)
    silent: set[int] = field(default_factory=set)
    ends: dict[int, Ending] = field(default_factory=dict)
    mute: set[int] = field(default_factory=set)
    elsewhere: set[int] = field(default_factory=set)
    hooked: set[int] = field(default_factory=set)
    writing: set[int] = field(default_factory=set)
    uploading: set[int] = field(default_factory=set)
    before: int = -1
    sent: int = 200_000
    alive: int = 0
    group: str = "0"
    away_s: float = 0.0
    moves: bool = True
    pid: int = 1000
    draw: random.Random = field(default_factory=lambda: random.Random(1))

    def live(self, seconds: float) -> list[Sensed]:
        """So many seconds; returns what was sensed."""
        sensed: list[Sensed] = []
        for _ in range(round(seconds / STEP_S)):
            self.now += STEP_S
            if self.moves:
                self.iteration += STEP_S / self.iteration_s
            for host in set(range(HOSTS)) - self.silent:
                report = self.report(host)
                self.windows.take(self.now, report)
                self.sense.reported(self.now, report)
            for one in self.sense.tick(self.now):
                self.windows.ledger.show(one.window, "done", one.verdict)
                sensed.append(one)
        return sensed

    def report(self, host: int) -> AgentReport:
        workers = range(host * PER_HOST, (host + 1) * PER_HOST)
        return AgentReport(
            host=f"node{host}",
            pid=host + 1,
            workers=tuple(self.status(worker) for worker in workers),
            communication=HostCommunication(
                interval_s=max(STEP_S, self.away_s),
                workers=tuple(self.operations(worker) for worker in workers),
                flows=tuple(self.flows(host)),
                groups=(GROUP,),
            ),
        )

    def status(self, worker: int) -> WorkerStatus:
        known = Worker(global_rank=worker, world_size=WORLD, host=f"node{worker // PER_HOST}", pid=self.pid + worker)
        ending = self.ends.get(worker)
        return WorkerStatus(
            worker=known, state="steady", iteration=int(self.iteration), ended=ending is not None, ending=ending
        )

    def operations(self, worker: int) -> WorkerOperations:
        entered, late = int(self.iteration), worker in self.behind
        share = self.outside.get(worker, 0.5)
        answered = 2 if self.moves else 0
        return WorkerOperations(
            worker=worker,
            asked=answered,
            answered=answered,
            inside=sum(self.draw.random() >= share for _ in range(answered)),
            counts=()
            if worker in self.mute
            else (
                GroupCount(
                    group=self.group,
                    entered=entered - late,
                    completed=entered - 1,
                    before=self.before if not late else -1,
                ),
            ),
            state=self.behind.get(worker, "S"),
            cpu_s=self.now if worker in self.busy else 0.0,
            elsewhere_cpu_s=self.now if worker in self.elsewhere else 0.0,
            heard=int(2 * self.now) if worker in self.hooked else 0,
            io_bytes=int(1e6 * self.now) if worker in self.writing else 0,
        )

    def flows(self, host: int) -> list[Flow]:
        others = [other for other in range(HOSTS) if other != host]
        sent = self.sent if self.moves else self.alive
        uploads = [
            Flow(worker=worker, local=f"10.0.0.{host} {7000 + worker}", remote="192.0.2.1 443", sent_bytes=500_000)
            for worker in self.uploading
            if worker // PER_HOST == host
        ]
        return uploads + [
            Flow(
                worker=host * PER_HOST,
                local=f"10.0.0.{host} {5000 + other}",
                remote=f"10.0.0.{other} {5000 + host}",
                sent_bytes=sent,
                received_bytes=sent,
                waiting_byte_s=sent * self.delays.get((host, other), 0.0005),
                busy_s=min(0.45, 5 * self.delays.get((host, other), 0.0005)),
                arriving_s=0.2 if self.delays.get((other, host), 0) > 0.01 else 0.01,
                queued_bytes=0 if self.moves or other not in self.silent else 900,
            )
            for other in others
        ]


@pytest.fixture
def job() -> Job:
    windows = Windows("j", Settings(communication=True))
    job = Job(Sense(windows, Settings(communication=True)), windows)
    assert job.live(40) == []
    return job


@pytest.mark.parametrize(("purpose", "known"), [("baseline", True), ("slow", False)])
def test_a_baseline_window_is_part_of_the_healthy_past_and_others_are_not(
    purpose: str, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = Windows("j", Settings(communication=True))
    job = Job(Sense(windows, Settings(communication=True)), windows)
    window = Window(window_id=1, purpose=purpose, reason="", first_iteration=1, last_iteration=9)  # type: ignore[arg-type]
    monkeypatch.setattr(Windows, "window", window)
    assert job.live(24) == []
    job.iteration_s, job.delays = 0.2, {(1, 2): 0.05}
    job.outside = dict.fromkeys(range(WORLD), 0.25)
    assert bool(job.live(14)) is known


def places(sensed: Sensed) -> list[tuple[str, tuple[int, ...], tuple[str, ...]]]:
    told = sensed.verdict.communication
    assert told is not None
    return [(place.kind, place.workers, place.hosts) for place in (told.place, *told.further)]


def test_a_late_worker_is_told_once_and_in_time(job: Job) -> None:
    job.iteration_s, job.outside = 0.2, {worker: 0.9 if worker == 3 else 0.25 for worker in range(WORLD)}
    began = job.now
    (sensed,) = job.live(12)
    told = sensed.verdict.communication
    assert told is not None and told.kind == "non-communication-slow"
    assert places(sensed) == [("worker", (3,), ("node1",))]
    assert (sensed.verdict.verdict, sensed.verdict.found_by) == ("slow", "communication")
    assert sensed.since - began < 7
    assert job.live(60) == []


def test_a_slow_connection_is_told_and_again_after_it_was_mended(job: Job) -> None:
    for _ in range(2):
        job.iteration_s, job.delays = 0.2, {(1, 2): 0.05}
        job.outside = dict.fromkeys(range(WORLD), 0.25)
        (sensed,) = job.live(14)
        assert places(sensed) == [("connection", (), ("node1", "node2"))]
        assert sensed.verdict.cause is not None and sensed.verdict.cause.cause == "slow-link"
        job.iteration_s, job.delays, job.outside = 0.1, {}, {}
        assert job.live(80) == []


def test_both_at_once_are_two_findings(job: Job) -> None:
    job.iteration_s, job.delays = 0.3, {(1, 2): 0.06}
    job.outside = {worker: 0.6 if worker == 6 else 0.17 for worker in range(WORLD)}
    (sensed,) = job.live(16)
    assert sensed.verdict.communication is not None and sensed.verdict.communication.kind == "both-slow"
    assert {finding.cause for finding in sensed.verdict.findings} == {"unknown", "slow-link"}


def test_who_has_not_entered_is_told_within_seconds_and_taken_back_when_it_goes_on(job: Job) -> None:
    job.moves, job.behind = False, {5: "S"}
    assert job.live(2) == []
    (sensed,) = job.live(3)
    assert sensed.hangs and places(sensed) == [("worker", (5,), ("node2",))]
    assert sensed.verdict.verdict == "blocked"
    assert job.sense.standing == {sensed.window.window_id}
    job.moves, job.behind = True, {}
    job.live(2)
    assert job.sense.standing == set() and job.windows.ledger.judged("passed") == {sensed.window.window_id}
    assert any("went on by itself" in note for note in job.windows.ledger.notes)


def test_a_pause_that_the_job_has_survived_is_no_hang(job: Job) -> None:
    job.moves, job.behind, job.busy = False, {5: "S"}, {5}
    assert job.live(6) == []
    job.moves = True
    job.live(20)
    job.moves, job.busy = False, set()
    assert job.live(6) == []
    assert len(job.live(6)) == 1


def test_who_computes_while_all_wait_has_as_long_as_before(job: Job) -> None:
    job.moves, job.behind, job.busy = False, {5: "S"}, {5}
    assert job.live(9) == []
    assert len(job.live(3)) == 1


def test_a_host_that_nobody_hears_is_cut_off(job: Job) -> None:
    job.moves, job.behind, job.silent = False, {4: "S", 5: "S"}, {2}
    (sensed,) = job.live(6)
    assert places(sensed) == [("link", (), ("node2",))]
    assert sensed.verdict.communication is not None
    assert sensed.verdict.communication.kind == "communication-hang"


@pytest.mark.parametrize("silent", [{0}, {2, 3}, {1, 2, 3}], ids=str)
def test_where_the_collector_hears_nobody_nobody_is_accused(job: Job, silent: set[int]) -> None:
    job.moves, job.behind, job.silent = False, {4: "S", 5: "S"}, silent
    assert job.live(8) == []


def test_a_collector_that_did_not_run_itself_takes_its_own_pause_for_no_hang(job: Job) -> None:
    job.now += 20.0
    job.moves, job.behind = False, {5: "S"}
    assert job.live(1.5) == []


def test_signs_of_life_on_connections_are_no_movement(job: Job) -> None:
    job.live(20)
    job.moves, job.behind, job.alive = False, {5: "S"}, 240
    (sensed,) = job.live(6)
    assert places(sensed) == [("worker", (5,), ("node2",))]


def test_a_name_for_a_group_is_no_movement(job: Job) -> None:
    job.live(20)
    job.moves, job.behind = False, {5: "S"}
    job.group = "#0"
    job.live(2)
    job.group = "0"
    (sensed,) = job.live(2)
    assert places(sensed) == [("worker", (5,), ("node2",))]


def test_a_host_whose_agent_is_gone_blinds_nobody_and_is_not_accused_of_a_later_hang(job: Job) -> None:
    job.live(20)
    job.silent = {1}
    assert job.live(30) == []
    job.outside, job.iteration_s = {5: 0.8}, 0.16
    (slow,) = job.live(20)
    assert places(slow) == [("worker", (5,), ("node2",))]
    job.moves, job.behind = False, {5: "S"}
    (sensed,) = job.live(6)
    assert places(sensed) == [("worker", (5,), ("node2",))]


def test_an_agent_that_comes_back_while_the_job_hangs_is_no_movement(job: Job) -> None:
    job.live(20)
    job.silent = {1}
    job.live(20)
    job.moves, job.behind = False, {5: "S"}
    job.live(2)
    job.silent = set()
    (sensed,) = job.live(2)
    assert places(sensed) == [("worker", (5,), ("node2",))]


def test_a_host_whose_workers_are_done_is_not_taken_for_cut_off(job: Job) -> None:
    job.live(20)
    job.ends = dict.fromkeys((2, 3), Ending(kind="signed-off"))
    job.live(4)
    job.silent = {1}
    job.moves, job.behind = False, {5: "S"}
    (sensed,) = job.live(6)
    assert places(sensed) == [("worker", (5,), ("node2",))]


def test_who_tells_nothing_is_not_accused_beside_one_who_is_behind(job: Job) -> None:
    job.mute = {1}
    job.live(20)
    job.moves, job.behind = False, {5: "S"}
    (sensed,) = job.live(6)
    assert places(sensed) == [("worker", (5,), ("node2",))]
    assert sensed.verdict.cause is not None
    assert sensed.verdict.cause.function.name == "a collective of default_pg"


@pytest.mark.parametrize(
    ("ending", "passes"),
    [
        (Ending(kind="signed-off"), True),
        (Ending(kind="exit"), True),
        (Ending(kind="exit", number=1), False),
        (Ending(kind="signal", number=9), False),
    ],
    ids=["signed off", "exit 0", "exit 1", "killed"],
)
def test_workers_that_end_in_order_behind_a_last_barrier_hung_nowhere(job: Job, ending: Ending, passes: bool) -> None:
    job.moves, job.behind = False, {5: "S"}
    (sensed,) = job.live(6)
    job.ends = dict.fromkeys(range(WORLD), ending)
    job.live(1)
    assert (sensed.window.window_id in job.windows.ledger.judged("passed")) == passes
    assert (job.sense.standing == set()) == passes


def test_a_command_that_ends_with_success_hung_nowhere(job: Job) -> None:
    job.moves, job.behind = False, {5: "S"}
    (sensed,) = job.live(6)
    job.sense.finished(1)
    assert job.sense.standing
    job.sense.finished(0)
    assert job.windows.ledger.judged("passed") == {sensed.window.window_id}


@pytest.mark.parametrize("work", ["elsewhere", "hooked", "writing", "uploading"])
def test_who_is_at_work_on_something_else_for_minutes_hangs_nowhere(job: Job, work: str) -> None:
    """An evaluation in other threads or with a loader of its own, a last checkpoint, an upload: looks see more."""
    at_work: set[int] = getattr(job, work)
    job.moves, job.behind = False, {0: "S"}
    at_work.add(0)
    assert job.live(120) == []
    at_work.clear()
    assert len(job.live(200)) == 1


def test_helper_threads_that_all_have_are_no_work(job: Job) -> None:
    job.elsewhere = set(range(WORLD))
    job.live(5)
    job.moves, job.behind = False, {5: "S"}
    assert len(job.live(5)) == 1


def test_a_collective_that_the_job_has_not_done_before_is_left_to_the_looks(job: Job) -> None:
    """A last barrier, that of a first evaluation, that of the next epoch."""
    job.moves, job.behind, job.before = False, {0: "S"}, 0
    assert job.live(60) == []
    job.moves, job.behind = True, {}
    job.live(2)
    job.moves, job.behind, job.before = False, {0: "S"}, 37
    assert len(job.live(120)) == 1


def test_a_collective_that_it_does_again_and_again_is_told_in_time(job: Job) -> None:
    job.moves, job.behind, job.before = False, {5: "S"}, 37
    assert len(job.live(5)) == 1


def test_a_job_that_somebody_suspends_hangs_nowhere_and_its_next_hang_is_told_in_time(job: Job) -> None:
    job.moves, job.behind = False, dict.fromkeys(range(WORLD), "T")
    assert job.live(60) == []
    job.moves, job.behind = True, {}
    assert job.live(20) == []
    job.moves, job.behind = False, {5: "S"}
    assert len(job.live(5)) == 1


def test_hosts_that_wake_up_one_after_the_other_cut_nobody_off(job: Job) -> None:
    job.moves, job.silent = False, set(range(HOSTS))
    assert job.live(20) == []
    job.silent, job.away_s = {3}, 20.0
    assert job.live(STEP_S) == []
    job.away_s = 0.0
    assert job.live(2) == []
    job.moves, job.silent = True, set()
    assert job.live(20) == []


def test_an_agent_of_a_large_job_that_always_reports_seldom_does_not_hide_a_hang(job: Job) -> None:
    job.away_s = 4.0
    job.live(20)
    job.moves, job.behind = False, {5: "S"}
    assert len(job.live(6)) == 1


def test_what_a_look_refutes_is_taken_back_and_not_said_again_of_the_same_standstill(job: Job) -> None:
    job.moves, job.behind = False, {5: "S"}
    (sensed,) = job.live(6)
    job.sense.refuted()
    assert job.windows.ledger.judged("passed") == {sensed.window.window_id} and job.sense.standing == set()
    assert job.live(60) == []
    job.moves, job.behind = True, {}
    job.live(2)
    job.moves, job.behind = False, {5: "S"}
    assert len(job.live(120)) == 1


def pause(job: Job, seconds: float, worker: int = 0) -> list[Sensed]:
    """All wait in a collective, but for one worker that does something else; counters are still asked for."""
    rate, outside = job.iteration_s, job.outside
    job.iteration_s = 1e9
    job.outside = {**dict.fromkeys(range(WORLD), 0.0), worker: 1.0}
    sensed = job.live(seconds)
    job.iteration_s, job.outside = rate, outside
    return sensed


@pytest.mark.parametrize(("every_s", "seconds"), [(15.0, 3.0), (20.0, 6.0), (30.0, 12.0)])
def test_pauses_in_which_one_worker_saves_or_evaluates_make_it_no_slow_one(
    job: Job, every_s: float, seconds: float
) -> None:
    job.outside = {worker: 0.8 if worker == 0 else 0.3 for worker in range(WORLD)}
    for _ in range(6):
        assert job.live(every_s) == []
        assert pause(job, seconds) == []


def test_a_worker_with_more_to_do_is_not_late_in_a_job_of_few_and_long_iterations(job: Job) -> None:
    windows = Windows("j", Settings(communication=True))
    job = Job(Sense(windows, Settings(communication=True)), windows, iteration_s=2.7)
    job.outside = {worker: 0.9 if worker == 0 else 0.4 for worker in range(WORLD)}
    assert job.live(300) == []


def test_bytes_that_wait_because_there_are_more_of_them_are_no_slow_way(job: Job) -> None:
    """All-to-all of uneven sizes, gathering for an evaluation, longer sequences: as much comes through as before."""
    job.iteration_s, job.sent = 0.2, 16_000_000
    job.delays = {(1, 2): 0.02, (2, 1): 0.01}
    assert job.live(60) == []


def test_a_late_worker_is_told_within_nine_seconds(job: Job) -> None:
    job.iteration_s, job.outside = 0.2, {worker: 0.9 if worker == 3 else 0.25 for worker in range(WORLD)}
    assert len(job.live(9)) == 1


def test_a_slow_way_of_a_job_without_a_past_is_left_to_the_windows() -> None:
    windows = Windows("j", Settings(communication=True))
    job = Job(Sense(windows, Settings(communication=True)), windows, delays={(1, 2): 0.05})
    assert job.live(60) == []


def test_a_job_that_was_started_again_has_no_past(job: Job) -> None:
    job.pid, job.iteration_s = 2000, 0.3
    assert job.live(30) == []


def test_noise_of_a_healthy_job_is_no_verdict(job: Job) -> None:
    for _ in range(60):
        job.iteration_s = 0.1 * job.draw.uniform(0.97, 1.06)
        job.outside = {worker: job.draw.uniform(0.4, 0.6) for worker in range(WORLD)}
        assert job.live(5) == []


class Walked(dict[str, Any]):
    """Count how often somebody goes through all of it."""

    walks = 0

    def __iter__(self) -> Iterator[str]:
        self.walks += 1
        return super().__iter__()

    def values(self) -> Any:
        self.walks += 1
        return super().values()

    def items(self) -> Any:
        self.walks += 1
        return super().items()


def test_a_movement_costs_nothing_by_the_number_of_hosts(job: Job) -> None:
    walked = job.sense.ledger.latest = Walked(job.sense.ledger.latest)
    job.now += STEP_S
    job.iteration += 5
    for host in range(HOSTS):
        job.sense.reported(job.now, job.report(host))
    assert not walked.walks
    job.sense.tick(job.now)
    assert walked.walks


def test_the_matrix_of_the_last_seconds_is_there_to_be_shown(job: Job) -> None:
    job.live(20)
    matrix = job.sense.matrix(job.now)
    assert matrix is not None and matrix.hosts == ("node0", "node1", "node2", "node3")
    assert matrix.delay_s[0][0] is None and matrix.delay_s[0][1] == pytest.approx(0.0005)
    assert matrix.usual_s[0][1] == pytest.approx(0.0005)


def test_a_record_without_sense_is_refused() -> None:
    from eroica.collector.intake import clean_communication

    fine = HostCommunication(interval_s=0.5, groups=(GROUP,))
    assert clean_communication(fine) == fine
    strange: Mapping[str, float] = {"interval_s": float("nan")}
    assert clean_communication(msgspec.structs.replace(fine, **strange)) is None
