"""When the job's early window is no picture of health, it is not compared with."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from eroica.collector.baseline import Baseline
from eroica.collector.ledger import History
from eroica.collector.windows import Analyze, Windows
from eroica.model.pattern import Neighbor, WorkerPattern
from eroica.model.series import encode_series
from eroica.model.window import Window
from eroica.model.worker import Worker
from eroica.settings import Settings
from eroica.wire.messages import AgentReport, OrderResult, ProfileRequest, WindowLine, WorkerStatus


class Job:
    """One worker that obeys orders at once."""

    def __init__(self, **settings: object) -> None:
        self.windows = Windows("j", Settings(baseline_window_s=1.0, window_s=1.0, **settings))
        self.now = 0.0
        self.inside = 1.0
        self.iterations_ms: tuple[float, ...] = ()
        self.host_facts: dict[str, float] = {}
        self.neighbors: tuple[Neighbor, ...] = ()
        self.work: list[Analyze] = []
        self.status = WorkerStatus(
            worker=Worker(global_rank=0, pid=7, host="h"), state="steady", iteration=100, steady=True
        )

    def train(self, current_s: float, best_s: float, iterations: int = 60) -> None:
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

    def look(self, current_s: float, best_s: float) -> Analyze:
        assert not self.windows.asked(self.now, ProfileRequest()).refused
        self.train(current_s, best_s)
        self.windows.analyzed(self.now, self.work[-1].window.window_id, None)
        return self.work[-1]

    def _obey(self) -> None:
        order = self.windows.order
        if order is not None and order.kind != "cancel" and self.status.iteration >= order.last_iteration:
            result = OrderResult(window_id=order.window_id, status="done", kind=order.kind, events=100)
            self.status = msgspec.structs.replace(self.status, result=result)

    def _pattern(self, window_id: int) -> WorkerPattern:
        return WorkerPattern(
            worker=self.status.worker,
            window_id=window_id,
            first_iteration=self.status.iteration - 1,
            last_iteration=self.status.iteration,
            duration_s=self.inside * (self.status.current_s or 1.0),
            iteration_us=encode_series(1e3 * np.asarray(self.iterations_ms, dtype=np.float32)),
            wait_us=b"",
            functions=(),
            host_facts=self.host_facts,
            neighbors=self.neighbors,
        )


def unused(work: Analyze) -> list[str]:
    return [note for note in work.notes if "baseline window is not used" in note]


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
    assert unused(work) == [
        "The baseline window is not used, the job was not healthy then: iterations took 100 ms when it was taken, and "
        "80 ms are expected."
    ]


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
    baseline = first.windows.baseline
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
    assert again.windows.absolved == 0
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


def test_the_best_baseline_window_is_kept_not_the_last() -> None:
    baseline = Baseline(Settings())
    job = Job()
    job.train(0.1, 0.1)
    quiet = job.windows.baseline
    baseline.taken(quiet, 0.1)
    job.host_facts = BESIDE
    job.train(0.1, 0.1, 1)
    baseline.taken((job._pattern(2),), 0.1)
    assert baseline.patterns == quiet and not baseline.disturbed
