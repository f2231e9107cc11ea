"""The job's early window: compared with if the job was healthy then, looked at again if it was slow already."""

from __future__ import annotations

import msgspec
import pytest

from eroica.collector.history import Hints, final_verdict
from eroica.collector.ledger import History
from eroica.collector.windows import Analyze, Windows
from eroica.model.pattern import Neighbor, WorkerPattern
from eroica.model.verdict import Coverage, Verdict
from eroica.model.window import REFUSED, Window
from eroica.model.worker import Worker
from eroica.settings import Settings
from eroica.wire.messages import AgentReport, OrderResult, ProfileRequest, WindowLine, WorkerStatus
from support.collectors import pattern
from support.verdicts import cause, plain


class Job:
    """One worker that obeys orders at once."""

    def __init__(self, **settings: object) -> None:
        self.windows = Windows("j", Settings(baseline_window_s=1.0, window_s=1.0, **settings))
        self.now = 0.0
        self.inside = 1.0
        self.obeys = True
        self.host_facts: dict[str, float] = {}
        self.neighbors: tuple[Neighbor, ...] = ()
        self.work: list[Analyze] = []
        self.status = WorkerStatus(
            worker=Worker(global_rank=0, pid=7, host="h"), state="steady", iteration=100, steady=True
        )

    def train(self, current_s: float = 0.1, best_s: float = 0.1, iterations: int = 60) -> list[Analyze]:
        before = len(self.work)
        for _ in range(iterations):
            self.now += current_s
            self.status = msgspec.structs.replace(
                self.status, iteration=self.status.iteration + 1, current_s=current_s, baseline_s=best_s
            )
            self._obey()
            self.windows.take(self.now, AgentReport(host="h", pid=1, workers=(self.status,)))
            self.work += self.windows.tick(self.now)
            window = self.windows.window
            if window is not None and self.status.result.kind == "window":
                self.windows.take_pattern(self._pattern(window.window_id))
                self.work += self.windows.tick(self.now)
        return self.work[before:]

    def first(self, said: Verdict) -> Analyze:
        """The baseline window is taken, and judged."""
        (work,) = self.train()
        self.judge(work, said)
        return work

    def judge(self, work: Analyze, said: Verdict) -> None:
        self.windows.analyzed(self.now, work.window.window_id, said)

    def look(self, current_s: float, best_s: float) -> Analyze:
        assert not self.windows.asked(self.now, ProfileRequest()).refused
        self.train(current_s, best_s)
        self.windows.analyzed(self.now, self.work[-1].window.window_id, None)
        return self.work[-1]

    def _obey(self) -> None:
        order = self.windows.capturing.order
        if (
            self.obeys
            and order is not None
            and order.kind != "cancel"
            and self.status.iteration >= order.last_iteration
        ):
            result = OrderResult(window_id=order.window_id, status="done", kind=order.kind, events=100)
            self.status = msgspec.structs.replace(self.status, result=result)

    def _pattern(self, window_id: int) -> WorkerPattern:
        return pattern(
            worker=self.status.worker, window_id=window_id, first_iteration=self.status.iteration - 1,
            last_iteration=self.status.iteration, duration_s=self.inside * (self.status.current_s or 1.0),
            host_facts=self.host_facts, neighbors=self.neighbors,
        )  # fmt: skip


def unused(work: Analyze) -> list[str]:
    return [note for note in work.notes if note.startswith(REFUSED)]


def test_the_baseline_window_of_a_healthy_job_is_compared_with() -> None:
    job = Job()
    job.train(0.1, 0.1)
    work = job.look(0.15, 0.1)
    assert work.baseline and not work.doubted
    assert not unused(work)
    assert not job.work[0].doubted, "the baseline window itself is compared with nothing"


def test_a_baseline_window_taken_while_iterations_exceeded_the_expected_is_not_used() -> None:
    job = Job(expected_iteration_s=0.08)
    job.train(0.1, 0.1)
    work = job.look(0.1, 0.1)
    assert work.baseline == ()
    assert unused(work) == [f"{REFUSED}iterations took 100 ms when it was taken, and 80 ms are expected."]


def test_a_baseline_window_is_not_used_once_later_stretches_are_clearly_faster() -> None:
    job = Job()
    job.train(0.15, 0.15)
    work = job.look(0.15, 0.1)
    assert work.baseline == ()
    assert "150 ms when it was taken, and 100 ms at the job's best" in unused(work)[0]


@pytest.mark.parametrize(("now_s", "trusted"), [(0.13, False), (0.15, True), (1.0, True)])
def test_a_little_off_the_best_it_is_used_where_the_job_is_far_slower_now(now_s: float, trusted: bool) -> None:
    job = Job()
    job.train(0.12, 0.12)
    work = job.look(now_s, 0.1)
    assert bool(work.baseline) == trusted
    told = any("only what came after that window is seen" in note for note in work.notes)
    assert told == trusted


def test_no_baseline_window_is_taken_of_a_job_that_is_far_slower_than_at_its_best() -> None:
    job = Job()
    job.train(0.2, 0.1)
    assert not job.work
    job.train(0.12, 0.1)
    assert [work.window.purpose for work in job.work] == ["baseline"]


def test_another_baseline_window_is_taken_in_its_place_but_only_near_the_best() -> None:
    job = Job()
    job.train(0.15, 0.15)
    job.look(0.15, 0.1)
    job.train(0.15, 0.1)
    assert [line.purpose for line in job.windows.status().windows].count("baseline") == 1
    job.train(0.1, 0.1)
    assert [line.purpose for line in job.windows.status().windows].count("baseline") == 2
    assert job.look(0.15, 0.1).baseline


def test_a_collector_that_was_started_again_still_knows_that_the_job_was_slow_from_its_start() -> None:
    first = Job()
    first.train(0.1, 0.1)
    baseline = first.windows.baseline.patterns
    number = baseline[0].window_id
    taken = Window(
        window_id=number, purpose="baseline", reason="", first_iteration=1, last_iteration=2, current_iteration_s=0.1
    )
    lines = (
        WindowLine(window_id=number, purpose="baseline", phase="done", verdict="undetermined"),
        WindowLine(window_id=number + 1, purpose="early", phase="done", verdict="slow"),
        WindowLine(window_id=number + 2, purpose="early", phase="done", verdict="healthy"),
    )
    again = Job()
    again.windows.resume(0.0, 0.0, History(last_id=number + 2, lines=lines, windows=(taken,), baseline=baseline))
    again.train(0.1, 0.1, 2)
    assert again.windows.opening.absolved == 0
    work = again.look(0.11, 0.1)
    assert not work.baseline
    assert "slow from its start" in unused(work)[0]
    assert again.look(0.2, 0.1).baseline, "far slower than then, that tells what has come since"


def test_a_baseline_window_in_which_the_job_got_slow_is_not_used() -> None:
    job = Job()
    job.inside = 3.4
    job.train(0.1, 0.1, 30)
    job.train(0.34, 0.1, 30)
    job.inside = 1.0
    work = job.look(0.34, 0.1)
    assert work.baseline == ()
    assert "iterations took 340 ms in it, and 100 ms just before it opened" in unused(work)[0]


BESIDE = {"run_queue_wait": 0.3, "cores_outside": 1.4, "cpu_count": 2.0}


def test_a_baseline_window_taken_beside_other_work_is_marked_and_taken_again_once_that_is_gone() -> None:
    job = Job()
    job.host_facts, job.neighbors = BESIDE, (Neighbor(name="stress-ng", pid=9, cpu_cores=1.4),)
    job.train(0.12, 0.12)
    told = "other processes (stress-ng) used 1.4 of 2 cores of h when it was taken"
    assert any(told in note for note in job.windows.ledger.notes)
    assert job.work[-1].window.purpose == "baseline"
    work = job.look(0.13, 0.12)
    assert not work.baseline and told in unused(work)[0]
    job.host_facts, job.neighbors = {}, ()
    job.train(0.1, 0.1, 120)
    assert [line.purpose for line in job.windows.status().windows].count("baseline") == 2
    work = job.look(0.15, 0.1)
    assert work.baseline and not unused(work)


def verdict(word: str, gain: float | None = None) -> Verdict:
    finding = cause("slow-data-loading", 0, hosts=("h",), gain=gain)
    return plain(word, "Worker 0 reads.", *([finding] if gain is not None else []))


SLOW = verdict("slow", gain=0.4)


def test_what_the_first_window_shows_is_looked_at_again_and_only_the_second_verdict_counts() -> None:
    job = Job()
    (first,) = job.train()
    assert first.window.purpose == "baseline" and not first.counts and first.baseline == ()
    job.judge(first, SLOW)
    assert job.windows.ledger.verdicts == {}
    (second,) = job.train()
    assert second.window.purpose == "early" and second.counts and second.baseline == ()
    assert "slow-data-loading on worker 0" in second.window.reason
    job.judge(second, SLOW)
    assert list(job.windows.ledger.verdicts) == [second.window.window_id]
    assert job.train(iterations=400) == []


def test_a_job_that_got_far_slower_before_the_second_look_is_compared_with_the_first() -> None:
    job = Job()
    first = job.first(SLOW)
    job.inside = 1.6
    (second,) = job.train()
    assert second.window.purpose == "slow" and [one.window_id for one in second.baseline] == [first.window.window_id]
    job.judge(second, verdict("undetermined"))
    assert not job.windows.asked(job.now, ProfileRequest()).refused
    (third,) = job.train()
    assert third.baseline != ()  # it was not slow from its start


def test_a_window_that_the_end_cut_off_takes_back_nothing() -> None:
    nobody = msgspec.structs.replace(verdict("undetermined"), coverage=Coverage(workers_expected=1, workers_reported=0))
    told = msgspec.structs.replace(verdict("undetermined"), summary="Worker 0 seems to read, in too few iterations.")
    assert final_verdict("j", {2: told, 3: nobody}, 1, 1).summary == told.summary
    assert final_verdict("j", {3: nobody}, 1, 1).verdict == "undetermined"


def test_a_window_after_a_confirmed_one_is_not_compared_with_the_slow_beginning() -> None:
    job = Job(baseline_after_iterations=60)
    job.first(SLOW)
    (second,) = job.train()
    job.judge(second, SLOW)
    assert not job.windows.asked(job.now, ProfileRequest()).refused
    (third,) = job.train()
    assert third.baseline == () and any("it was slow from its start" in note for note in third.notes)


@pytest.mark.parametrize("said", [verdict("healthy"), verdict("undetermined"), verdict("slow", gain=0.05)])
def test_nothing_of_note_asks_for_no_other_window(said: Verdict) -> None:
    job = Job()
    job.first(said)
    assert job.train(iterations=300) == []


def test_an_early_window_that_never_opens_is_tried_once_more() -> None:
    job = Job()
    job.first(SLOW)
    job.obeys = False
    job.train(iterations=2000)
    purposes = [line.purpose for line in job.windows.status().windows]
    assert purposes.count("early") == 2


def test_the_job_is_not_over_while_its_first_window_is_being_judged() -> None:
    job = Job()
    (first,) = job.train()
    job.windows.job_ended(job.now)
    assert job.windows.busy
    job.judge(first, SLOW)
    assert not job.windows.busy
    final = final_verdict("j", {}, 1, 1, hints=Hints(look=job.windows.look))
    assert (final.verdict, final.summary) == ("slow", "Worker 0 reads.")
    assert "first, short window" in final.coverage.notes[0]
    final = final_verdict("j", {}, 1, 1, hints=Hints(slowed=3.0, look=job.windows.look, missed="no answer"))
    assert final.verdict == "undetermined" and "3.0 times" in final.summary and "no answer" in final.summary
