"""Jobs that stand still, replayed without sockets or clocks."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eroica.collector.blockage import Blockages, Examine
from eroica.collector.ledger import History
from eroica.collector.windows import Windows
from eroica.model.look import Ending, HostLooks
from eroica.model.verdict import Verdict
from eroica.model.window import Window
from eroica.model.worker import Worker
from eroica.settings import Settings
from eroica.wire.messages import AgentReport, ProfileRequest, WindowLine, WorkerStatus, WorkerTrigger
from support.verdicts import plain

KILLED = Ending(kind="signal", number=9)
STANDING = "worker 1 waits for a lock"


def verdict(word: str = "blocked", summary: str = STANDING) -> Verdict:
    return plain(word, summary)


class Fleet:
    """Two hosts with two workers each; their agents report four times a second and look when told."""

    def __init__(self, **settings: object) -> None:
        self.settings = Settings(baseline_window=False, **settings)  # type: ignore[arg-type]
        self.windows = Windows("j", self.settings)
        self.blockages = Blockages(self.windows, self.settings)
        self.now = 0.0
        self.agents = {"h0": 1, "h1": 1}
        self.deaf: set[str] = set()
        self.mute: set[str] = set()
        self.work: list[Examine] = []
        self._looked: set[tuple[str, int]] = set()
        self.statuses = {rank: self.newborn(rank, 100 + rank) for rank in range(4)}

    @staticmethod
    def newborn(rank: int, pid: int) -> WorkerStatus:
        worker = Worker(global_rank=rank, world_size=4, pid=pid, host=f"h{rank // 2}")
        return WorkerStatus(worker=worker, state="steady", iteration=0, current_s=0.1, baseline_s=0.1, silent_s=0.05)

    def change(self, *ranks: int, **changes: object) -> None:
        for rank in ranks or range(4):
            self.statuses[rank] = msgspec.structs.replace(self.statuses[rank], **changes)

    def silence(self, *ranks: int) -> None:
        """They have shown no event for 12 s."""
        self.change(*ranks, silent=True, silent_s=12.0, silence="no event for 12.0 s, limit 10.0 s")

    def wake(self, *ranks: int) -> None:
        self.change(*ranks, silent=False, silent_s=0.05, silence="")

    def die(self, rank: int, ending: Ending = KILLED) -> None:
        self.change(rank, ended=True, state="gone", silent=False, ending=ending)

    def step(self, seconds: float = 0.25) -> None:
        """Time passes: silent workers stay silent, the others train; everybody reports and looks."""
        for _ in range(round(seconds / 0.25)):
            self.now += 0.25
            for rank, status in self.statuses.items():
                if status.ending is not None:
                    self.change(rank, ending=msgspec.structs.replace(status.ending, ago_s=status.ending.ago_s + 0.25))
                elif status.silent:
                    self.change(rank, silent_s=status.silent_s + 0.25)
                elif not status.ended and status.silent_s < 0.1:
                    self.change(rank, iteration=status.iteration + 2)
            for host in ("h0", "h1"):
                if host not in self.mute:
                    self.report(host)
            self.work += self.blockages.tick(self.now)
            self.windows.hold = self.blockages.on
            self.windows.tick(self.now)

    def report(self, host: str) -> None:
        workers = tuple(status for status in self.statuses.values() if status.worker.host == host)
        report = AgentReport(host=host, pid=self.agents[host], workers=workers)
        self.windows.take(self.now, report)
        self.work += self.blockages.reported(self.now, report)
        look = self.blockages.look
        if look and host not in self.deaf and (host, look) not in self._looked:
            self._looked.add((host, look))
            self.work += self.blockages.looked(self.now, HostLooks(look_id=look, host=host))

    def judge(self, answer: Verdict | None) -> Examine:
        (work,) = self.work
        self.work = self.blockages.examined(self.now, work.window.window_id, answer)
        return work

    def blocked(self, *ranks: int) -> Examine:
        """They stand still, and the verdict says so."""
        self.step(1.0)
        self.silence(*ranks)
        self.step(0.5)
        return self.judge(verdict())

    def lines(self) -> list[tuple[int, str, str]]:
        return [(line.window_id, line.phase, line.verdict) for line in self.windows.status().windows]

    def in_phase(self, phase: str) -> frozenset[int]:
        return self.windows.ledger.judged(phase)

    @property
    def notes(self) -> str:
        return "\n".join(self.windows.ledger.notes)


def test_a_silent_worker_opens_a_look_and_all_hosts_make_the_blockage() -> None:
    fleet = Fleet()
    fleet.step(1.0)
    fleet.silence(1)
    fleet.report("h0")
    assert fleet.blockages.look == 1 and fleet.lines() == [(1, "looking", "")] and fleet.blockages.busy
    fleet.report("h1")
    (work,) = fleet.work
    assert [looks.host for looks in work.blockage.looks] == ["h0", "h1"]
    assert work.blockage.world_size == 4 and work.blockage.baseline_iteration_s == 0.1
    assert work.window.kind == work.window.purpose == "blocked" and work.window.first_iteration == 8
    assert work.blockage.reason == "worker 1: no event for 12.0 s, limit 10.0 s"
    assert fleet.blockages.look == 0 and fleet.blockages.busy
    fleet.judge(verdict())
    assert fleet.lines() == [(1, "done", "blocked")] and fleet.blockages.standing == {1} and not fleet.blockages.busy
    assert fleet.windows.ledger.verdicts[1].summary == STANDING


def test_a_host_that_hands_nothing_in_is_left_out_after_the_deadline() -> None:
    fleet = Fleet()
    fleet.step(1.0)
    fleet.deaf = {"h1"}
    fleet.silence(0)
    fleet.step(8.0)
    assert fleet.work == []
    fleet.step(0.75)
    (work,) = fleet.work
    assert work.blockage.looks[1].notes == ("h1: its agent did not hand in its looks in time",)


def test_a_silence_that_ends_during_the_diagnosis_takes_its_verdict_back() -> None:
    fleet = Fleet()
    fleet.step(1.0)
    fleet.silence(2)
    fleet.step(0.25)
    fleet.wake(2)
    fleet.step(0.5)
    fleet.judge(verdict())
    assert fleet.lines() == [(1, "passed", "blocked")]
    assert fleet.blockages.standing == frozenset() and fleet.in_phase("passed") == {1}


def test_after_the_verdict_there_is_no_second_look_until_progress_and_then_the_verdict_counts_no_more() -> None:
    fleet = Fleet()
    fleet.blocked(1)
    fleet.step(300.0)
    assert fleet.lines() == [(1, "done", "blocked")] and fleet.work == [] and fleet.blockages.on
    fleet.wake(1)
    fleet.step(0.25)
    assert fleet.in_phase("passed") == {1} and fleet.lines() == [(1, "passed", "blocked")]
    assert f"worker 1 stood still for 312 s at iteration 8: {STANDING}; it went on by itself" in fleet.notes
    fleet.blocked(1)
    assert fleet.lines()[1] == (2, "done", "blocked") and fleet.blockages.standing == {2}


def test_nobody_moves_only_because_a_new_agent_knows_neither_limit_nor_past() -> None:
    fleet = Fleet()
    fleet.blocked(1)
    fleet.change(1, silent=False, silent_s=40.0)
    fleet.report("h0")
    fleet.agents["h0"] = 2
    fleet.change(1, silent_s=0.1)
    fleet.step(0.5)
    assert fleet.blockages.standing == {1}
    fleet.silence(1)
    fleet.step(0.5)
    fleet.wake(1)
    fleet.change(1, iteration=8)
    fleet.report("h0")
    assert fleet.in_phase("passed") == {1}


def test_somebody_moved_between_the_looks_is_no_verdict_and_another_look_comes_after_a_pause() -> None:
    fleet = Fleet()
    fleet.step(1.0)
    fleet.silence(3)
    fleet.step(0.5)
    fleet.judge(None)
    assert fleet.windows.status().windows[0].summary == "nothing: somebody moved"
    assert "somebody moved between the looks" in fleet.notes and fleet.windows.ledger.verdicts == {}
    fleet.step(29.0)
    assert fleet.work == []
    fleet.step(2.0)
    assert len(fleet.work) == 1 and fleet.work[0].window.window_id == 2


@pytest.mark.parametrize("state", ["finished", "failed"])
def test_a_blocked_worker_that_ends_by_an_exception_or_is_watched_no_more_has_not_gone_on(state: str) -> None:
    fleet = Fleet()
    fleet.blocked(0, 1, 2, 3)
    fleet.change(state=state, silent=False, silent_s=0.0, silence="")  # seen between its sign-off and its end
    fleet.report("h0")
    fleet.report("h1")
    for rank in range(4):
        fleet.change(rank, ended=True, ending=Ending(kind="signed-off", number=1))
    fleet.step(0.5)
    assert end(fleet, 1) == [] and fleet.blockages.standing == {1}


def test_while_the_job_stands_still_no_other_window_opens() -> None:
    fleet = Fleet()
    fleet.blocked(1)
    fleet.change(0, trigger=WorkerTrigger(count=1, reason="slow", baseline_s=0.1, current_s=0.2))
    fleet.step(2.0)
    assert "stands still" in fleet.windows.asked(fleet.now, ProfileRequest()).refused
    assert len(fleet.lines()) == 1
    fleet.wake(1)
    fleet.step(0.5)
    assert fleet.lines()[1][:2] == (2, "probe")


def test_late_foreign_and_repeated_looks_are_dropped() -> None:
    fleet = Fleet()
    fleet.step(1.0)
    fleet.deaf = {"h0", "h1"}
    fleet.silence(1)
    fleet.step(0.25)
    for looks in (HostLooks(look_id=7, host="h0"), HostLooks(look_id=1, host="elsewhere")):
        assert fleet.blockages.looked(fleet.now, looks) == [] and not fleet.blockages.expects(looks)
    assert fleet.blockages.looked(fleet.now, HostLooks(look_id=1, host="h0")) == []
    assert not fleet.blockages.expects(HostLooks(look_id=1, host="h0"))
    assert len(fleet.blockages.looked(fleet.now, HostLooks(look_id=1, host="h1"))) == 1
    assert fleet.blockages.looked(fleet.now, HostLooks(look_id=0, host="h0")) == []


def end(fleet: Fleet, exit_status: int | None, asked: bool = False) -> list[Examine]:
    return fleet.blockages.finished(fleet.now, exit_status, asked)


def test_a_command_that_failed_because_a_worker_died_first_gets_a_verdict() -> None:
    fleet = Fleet()
    fleet.step(2.0)
    fleet.die(3)
    fleet.step(0.5)
    for rank in range(3):
        fleet.die(rank, Ending(kind="signal", number=15))
    fleet.step(0.25)
    fleet.work = end(fleet, 1)
    assert fleet.blockages.busy
    work = fleet.judge(verdict())
    assert work.blockage.looks == () and [d.worker.global_rank for d in work.blockage.deaths] == [3]
    assert "SIGKILL at iteration 16" in work.window.reason and "status 1" in work.window.reason
    assert fleet.blockages.standing == {1}


@pytest.mark.parametrize(("status", "asked"), [(0, False), (None, False), (143, True)])
def test_a_command_that_did_not_fail_or_was_told_to_end_gets_none(status: int | None, asked: bool) -> None:
    fleet = Fleet()
    fleet.step(2.0)
    for rank in range(4):
        fleet.die(rank, Ending(kind="signal", number=15 if rank else 9))
    fleet.step(0.25)
    assert end(fleet, status, asked) == [] and not fleet.blockages.loss


@pytest.mark.parametrize(("status", "standing"), [(0, frozenset()), (1, {1})])
def test_where_nobody_knows_the_commands_status_that_of_the_workers_tells(status: int, standing: set[int]) -> None:
    fleet = Fleet()
    fleet.blocked(1)
    for rank in range(4):
        fleet.die(rank, Ending(kind="signed-off"))
    fleet.step(0.25)
    fleet.die(2, Ending(kind="signed-off", number=status))  # its process ends a moment after it has signed off
    fleet.step(0.25)
    assert end(fleet, None) == []
    assert fleet.blockages.standing == standing


def test_a_restart_leaves_the_verdict_in_the_history_and_says_so() -> None:
    fleet = Fleet()
    fleet.blocked(1)
    for rank in range(4):
        fleet.die(rank)
    fleet.step(0.5)
    fleet.statuses = {rank: Fleet.newborn(rank, 200 + rank) for rank in range(4)}
    fleet.step(0.5)
    assert fleet.lines() == [(1, "restarted", "blocked")] and not fleet.blockages.on
    assert fleet.blockages.standing == fleet.in_phase("passed") == frozenset() and 1 in fleet.windows.ledger.verdicts
    assert fleet.in_phase("restarted") == {1}
    assert "after that it was started again" in fleet.notes
    fleet.die(2)
    fleet.step(0.5)
    (work,) = end(fleet, 1)
    assert [death.worker.pid for death in work.blockage.deaths] == [202]


def test_a_new_collector_takes_earlier_verdicts_over_until_somebody_gets_further() -> None:
    window = Window(window_id=3, purpose="blocked", kind="blocked", reason="", first_iteration=8, last_iteration=8)
    line = WindowLine(window_id=3, purpose="blocked", phase="done")
    history = History(last_id=3, lines=(line,), windows=(window,), verdicts=((3, verdict()),))
    fleet = Fleet()
    fleet.windows.resume(fleet.now, 0.0, history)
    fleet.blockages.resume(history)
    fleet.change(iteration=6)
    fleet.silence(0, 1, 2, 3)
    fleet.step(0.25)
    assert fleet.blockages.standing == {3} and fleet.work[0].window.window_id == 5
    fleet.wake(0, 1, 2, 3)
    fleet.step(1.0)
    assert fleet.in_phase("passed") == {3} and "went on by itself after iteration 8" in fleet.notes


WORDS = ["step", "wait", "silence", "wake", "die", "deaf", "judge", "pass", "restart", "mute"]


@given(st.lists(st.tuples(st.sampled_from(WORDS), st.integers(0, 3)), max_size=40), st.sampled_from([None, 0, 1, -9]))
def test_whatever_happens_every_look_ends_and_the_end_is_never_held_up(
    script: list[tuple[str, int]], exit_status: int | None
) -> None:
    fleet = Fleet()
    generation = 1
    for word, rank in script:
        if word == "step":
            fleet.step(0.5)
        elif word == "wait":
            fleet.step(9.0)
        elif word == "silence" and not fleet.statuses[rank].ended:
            fleet.silence(rank)
        elif word == "wake" and not fleet.statuses[rank].ended:
            fleet.wake(rank)
        elif word == "die":
            fleet.die(rank)
        elif word == "deaf":
            fleet.deaf ^= {f"h{rank // 2}"}
        elif word == "mute":
            fleet.mute ^= {f"h{rank // 2}"}
        elif word == "restart":
            generation += 1
            fleet.statuses = {each: Fleet.newborn(each, 100 * generation + each) for each in range(4)}
        while word in ("judge", "pass") and fleet.work:
            fleet.judge(verdict() if word == "judge" else None)
        assert len(fleet.work) <= 1
        assert fleet.blockages.standing <= set(fleet.windows.ledger.verdicts)
    fleet.work += end(fleet, exit_status)
    while fleet.work:
        fleet.judge(None)
    assert not fleet.blockages.busy and not (fleet.blockages.standing & fleet.in_phase("passed"))
    assert all(phase not in ("looking", "examining") for _, phase, _ in fleet.lines())


def test_a_new_agent_that_counts_from_zero_moves_nobody() -> None:
    fleet = Fleet()
    fleet.blocked(0, 1, 2, 3)
    stood_at = {rank: status.iteration for rank, status in fleet.statuses.items()}
    fleet.agents["h0"] = 2
    fleet.change(0, 1, iteration=0, silent=False, silent_s=0.3, silence="", state="learning")
    fleet.report("h0")
    for rank in (0, 1):
        fleet.change(rank, iteration=stood_at[rank], silent_s=0.5, state="steady")
    fleet.report("h0")
    assert fleet.blockages.standing == {1}
    fleet.change(0, iteration=stood_at[0] + 1)
    fleet.report("h0")
    assert fleet.blockages.standing == frozenset()
