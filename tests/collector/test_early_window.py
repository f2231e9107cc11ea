"""A baseline window that looks slow itself: looked at again, for longer, and only that counts."""

from __future__ import annotations

import msgspec
import pytest

from eroica.collector.history import Hints, final_verdict
from eroica.collector.windows import Analyze, Windows
from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import Coverage, Verdict
from eroica.model.worker import Worker
from eroica.settings import Settings
from eroica.wire.messages import AgentReport, OrderResult, ProfileRequest, WorkerStatus
from support.verdicts import cause, plain


def verdict(word: str, gain: float | None = None) -> Verdict:
    finding = cause("slow-data-loading", 0, hosts=("h",), gain=gain)
    return plain(word, "Worker 0 reads.", *([finding] if gain is not None else []))


class Job:
    """One worker that obeys orders at once, and a collector whose verdicts are given."""

    def __init__(self, **settings: object) -> None:
        self.windows = Windows("j", Settings(baseline_window_s=1.0, window_s=1.0, **settings))
        self.now = 0.0
        self.obeys = True
        self.duration_s = 1.0
        self.status = WorkerStatus(
            worker=Worker(global_rank=0, pid=7, host="h"), state="steady", iteration=100, steady=True,
            current_s=0.1, baseline_s=0.1,
        )  # fmt: skip

    def train(self, iterations: int = 60) -> list[Analyze]:
        work: list[Analyze] = []
        for _ in range(iterations):
            self.now += 0.1
            self.status = msgspec.structs.replace(self.status, iteration=self.status.iteration + 1)
            order = self.windows.order
            if self.obeys and order is not None and self.status.iteration >= order.last_iteration:
                result = OrderResult(window_id=order.window_id, status="done", kind=order.kind, events=100)
                self.status = msgspec.structs.replace(self.status, result=result)
            self.windows.take(self.now, AgentReport(host="h", pid=1, workers=(self.status,)))
            work += self.windows.tick(self.now)
            window = self.windows.window
            if window is not None and self.status.result.kind == "window":
                self.windows.take_pattern(self._pattern(window.window_id))
                work += self.windows.tick(self.now)
        return work

    def _pattern(self, window_id: int) -> WorkerPattern:
        return WorkerPattern(
            worker=self.status.worker, window_id=window_id, first_iteration=0, last_iteration=10,
            duration_s=self.duration_s, iteration_us=b"", wait_us=b"", functions=(),
        )  # fmt: skip

    def judge(self, work: Analyze, said: Verdict) -> None:
        self.windows.analyzed(self.now, work.window.window_id, said)


def test_what_the_first_window_shows_is_looked_at_again_and_only_the_second_verdict_counts() -> None:
    job = Job()
    (first,) = job.train()
    assert first.window.purpose == "baseline" and not first.counts and first.baseline == ()
    job.judge(first, verdict("slow", gain=0.4))
    assert job.windows.ledger.verdicts == {} and job.windows.suspicion is not None
    (second,) = job.train()
    assert second.window.purpose == "early" and second.counts and second.baseline == ()
    assert "slow-data-loading on worker 0" in second.window.reason
    job.judge(second, verdict("slow", gain=0.4))
    assert list(job.windows.ledger.verdicts) == [second.window.window_id] and not job.windows.suspicion
    assert job.train(400) == []


def test_a_job_that_got_far_slower_before_the_second_look_is_compared_with_the_first() -> None:
    job = Job()
    (first,) = job.train()
    job.judge(first, verdict("slow", gain=0.4))
    job.duration_s = 1.6
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
    (first,) = job.train()
    job.judge(first, verdict("slow", gain=0.4))
    (second,) = job.train()
    job.judge(second, verdict("slow", gain=0.4))
    assert not job.windows.asked(job.now, ProfileRequest()).refused
    (third,) = job.train()
    assert third.baseline == () and any("it was slow from its start" in note for note in third.notes)


@pytest.mark.parametrize("said", [verdict("healthy"), verdict("undetermined"), verdict("slow", gain=0.05)])
def test_nothing_of_note_asks_for_no_other_window(said: Verdict) -> None:
    job = Job()
    (first,) = job.train()
    job.judge(first, said)
    assert job.train(300) == [] and not job.windows.suspicion


def test_an_early_window_that_never_opens_is_tried_once_more() -> None:
    job = Job()
    (first,) = job.train()
    job.judge(first, verdict("slow", gain=0.4))
    job.obeys = False
    job.train(2000)
    purposes = [line.purpose for line in job.windows.status().windows]
    assert purposes.count("early") == 2
    assert job.windows.suspicion


def test_the_job_is_not_over_while_its_first_window_is_being_judged() -> None:
    job = Job()
    (first,) = job.train()
    job.windows.job_ended(job.now)
    assert job.windows.busy
    job.judge(first, verdict("slow", gain=0.4))
    assert not job.windows.busy
    final = final_verdict("j", {}, 1, 1, hints=Hints(suspicion=job.windows.suspicion))
    assert (final.verdict, final.summary) == ("slow", "Worker 0 reads.")
    assert "first, short window" in final.coverage.notes[0]
    final = final_verdict("j", {}, 1, 1, hints=Hints(slowed=3.0, suspicion=job.windows.suspicion, missed="no answer"))
    assert final.verdict == "undetermined" and "3.0 times" in final.summary and "no answer" in final.summary
