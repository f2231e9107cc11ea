"""The windows of a job, replayed without sockets or clocks."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eroica.collector import opening
from eroica.collector.ledger import History
from eroica.collector.opening import Wanted
from eroica.collector.windows import Analyze, Windows
from eroica.model.verdict import IterationTimes, Verdict
from eroica.model.worker import Worker
from eroica.settings import Settings
from eroica.wire.messages import AgentReport, OrderMessage, OrderResult, ProfileRequest, WorkerStatus, WorkerTrigger
from support.collectors import pattern
from support.verdicts import cause, plain

ITERATION_S = 0.1


def make_verdict(word: str, current_ms: float | None = None) -> Verdict:
    return plain(word, iteration=IterationTimes(current_ms=current_ms))


class Fleet:
    """Workers on one host that obey orders at once, in simulated time."""

    def __init__(self, windows: Windows, ranks: int = 2, events: int = 1000) -> None:
        self.windows = windows
        self.now = 0.0
        self.events = self.events_without_operators = events
        self.duration_s = 0.0
        self.deaf: set[int] = set()
        self.taken: dict[int, OrderMessage] = {}
        self.statuses = {
            rank: WorkerStatus(
                worker=Worker(global_rank=rank, pid=100 + rank, world_size=ranks, host="h"),
                state="steady",
                iteration=100,
                current_s=ITERATION_S,
                baseline_s=ITERATION_S,
            )
            for rank in range(ranks)
        }
        self.work: list[Analyze] = []

    def change(self, rank: int, **changes: object) -> None:
        self.statuses[rank] = msgspec.structs.replace(self.statuses[rank], **changes)

    def step(self, iterations: int = 1) -> None:
        """Everybody trains; orders whose last iteration is passed are answered with `done`."""
        for _ in range(iterations):
            self.now += ITERATION_S
            for rank, status in self.statuses.items():
                self.change(rank, iteration=status.iteration + 1)
                self._obey(rank)
            report = AgentReport(host="h", pid=1, workers=tuple(self.statuses.values()))
            self.windows.take(self.now, report)
            self.work += self.windows.tick(self.now)

    def _obey(self, rank: int) -> None:
        order, status = self.windows.capturing.order, self.statuses[rank]
        if order is None or order.kind == "cancel" or rank in self.deaf:
            return
        self.taken.setdefault(rank, order)
        if self.taken[rank].window_id != order.window_id and status.iteration < self.taken[rank].last_iteration:
            self.change(rank, result=msgspec.structs.replace(self.result(order, 0, 0.0), status="skipped", note="busy"))
            return
        self.taken[rank] = order
        answer = (order.window_id, order.kind, order.first_iteration)
        answered = (status.result.window_id, status.result.kind, status.result.first_iteration) == answer
        if status.iteration >= order.last_iteration and not answered:
            events = self.events if order.operators else self.events_without_operators
            self.change(rank, result=self.result(order, events, self.duration_s))

    @staticmethod
    def result(order: OrderMessage, events: int, duration_s: float) -> OrderResult:
        return OrderResult(
            window_id=order.window_id,
            status="done",
            kind=order.kind,
            first_iteration=order.first_iteration,
            events=events,
            duration_s=duration_s,
        )

    def deliver(self, *ranks: int) -> None:
        for rank in ranks:
            window_id = self.windows.status().windows[-1].window_id
            self.windows.take_pattern(pattern(worker=self.statuses[rank].worker, window_id=window_id))
            self.work += self.windows.tick(self.now)


def manual_fleet(**settings: object) -> Fleet:
    return Fleet(Windows("j", Settings(baseline_window=False, **settings)))


def test_a_window_is_one_probe_and_then_the_same_iterations_for_everybody() -> None:
    fleet = manual_fleet(window_s=2.0)
    fleet.step()
    assert fleet.windows.asked(fleet.now, ProfileRequest()).window_id == 1
    fleet.step()
    probe = fleet.windows.capturing.order
    assert probe is not None and probe.kind == "probe" and probe.last_iteration - probe.first_iteration == 1
    assert probe.first_iteration >= 102 + 10  # one second ahead
    fleet.step(14)
    window = fleet.windows.capturing.order
    assert window is not None and window.kind == "window"
    assert window.last_iteration - window.first_iteration == 20  # 2 s of 0.1 s iterations
    assert window.first_iteration > max(status.iteration for status in fleet.statuses.values())
    fleet.step(40)
    fleet.deliver(0)
    assert fleet.work == []
    fleet.deliver(1)
    (work,) = fleet.work
    assert [one.worker.global_rank for one in work.patterns] == [0, 1] and work.notes == ()


@pytest.mark.parametrize(
    ("events", "without", "expected", "told"),
    [
        pytest.param(20_000, 100, 25, "", id="fewer than wanted, but enough"),
        pytest.param(
            100_000, 100, 200, "operators are not recorded: one iteration makes 100,000 trace events", id="operators"
        ),
        pytest.param(
            100_000, 50_000, 10,
            "the window holds 10 iterations in 1 s: even without operators one iteration makes 50,000 trace events",
            id="less time",
        ),
        pytest.param(300_000, 240_000, 2, "the window holds 2 iterations in 0.2 s", id="never below two iterations"),
    ],
)  # fmt: skip
def test_a_window_of_many_events_gives_up_operators_first_then_time_and_says_so(
    events: int, without: int, expected: int, told: str
) -> None:
    fleet = manual_fleet(max_window_events=500_000)
    fleet.events, fleet.events_without_operators = events, without
    fleet.windows.asked(fleet.now, ProfileRequest())
    fleet.step()
    fleet.windows.asked(fleet.now, ProfileRequest())
    fleet.step(40)
    order = fleet.windows.capturing.order
    assert order is not None and order.kind == "window"
    assert order.operators == (events < 25_000)
    assert order.last_iteration - order.first_iteration == expected
    fleet.step(250)
    fleet.deliver(0, 1)
    assert (told in "; ".join(fleet.work[-1].notes)) if told else not fleet.work[-1].notes


@pytest.mark.parametrize(
    ("iteration_s", "wanted_s", "expected"),
    [(0.002, 5.0, 500), (0.002, 0.1, 500), (0.1, 1.0, 20), (0.1, 5.0, 50), (1.0, 3.0, 20), (5.0, 3.0, 12)],
)
def test_a_window_holds_twenty_iterations_and_a_second_but_no_more_than_a_minute_for_them(
    iteration_s: float, wanted_s: float, expected: int
) -> None:
    wanted = Wanted("baseline", "", wanted_s)
    length = opening.iterations(wanted, iteration_s, 10, 150_000, Settings())
    assert length == expected
    lack = opening.shortfall(length, iteration_s, 10, wanted)
    assert lack == ("the window holds 12 iterations in 60 s: iterations take 5 s" if iteration_s == 5.0 else "")


def test_a_probe_that_met_a_long_iteration_is_followed_by_another_before_it_shortens_the_window() -> None:
    fleet = manual_fleet(window_s=4.0, max_window_events=300_000)
    fleet.step()
    fleet.windows.asked(fleet.now, ProfileRequest())
    fleet.step()
    first = fleet.windows.capturing.order
    assert first is not None
    fleet.events, fleet.duration_s = 30_000, 0.3
    fleet.step(14)
    second = fleet.windows.capturing.order
    assert second is not None and second.kind == "probe" and second.serial > first.serial
    assert second.first_iteration > first.first_iteration and second.last_iteration - second.first_iteration == 1
    for rank in fleet.statuses:
        fleet.change(rank, result=fleet.result(second, 3_000, 0.05))
    fleet.step()
    window = fleet.windows.capturing.order
    assert window is not None and window.kind == "window"
    assert window.last_iteration - window.first_iteration == 300_000 // 8_400  # a fifth of 27,000 more than 3,000
    assert "given up" not in {line.phase for line in fleet.windows.status().windows}


def test_a_window_whose_two_iterations_would_stop_the_training_for_seconds_is_not_opened() -> None:
    fleet = manual_fleet()
    fleet.events = fleet.events_without_operators = 600_000
    fleet.step()
    fleet.windows.asked(fleet.now, ProfileRequest())
    fleet.step(40)
    line = fleet.windows.status().windows[0]
    assert line.phase == "given up" and "600000 trace events" in line.summary
    assert "hard_window_events to 1200000" in line.summary


def test_a_worker_that_misses_the_start_is_left_out_and_named() -> None:
    fleet = manual_fleet(window_s=1.0)
    fleet.step()
    fleet.windows.asked(fleet.now, ProfileRequest())
    fleet.step(16)
    missed = OrderResult(window_id=1, status="missed", kind="window", note="the window began at 117, I am at 118")
    fleet.change(1, result=missed)
    fleet.step(30)
    fleet.deliver(0)
    (work,) = fleet.work
    assert [one.worker.global_rank for one in work.patterns] == [0]
    assert work.notes == ("worker 1: the window began at 117, I am at 118",)
    assert work.expected_workers == 2


def test_after_the_deadline_whoever_reported_counts() -> None:
    fleet = manual_fleet(window_s=1.0, window_deadline_s=5.0)
    fleet.step()
    fleet.windows.asked(fleet.now, ProfileRequest())
    fleet.step(40)
    fleet.deliver(0)
    fleet.step(30)
    assert fleet.work == []
    fleet.step(40)
    (work,) = fleet.work
    assert work.notes == ("worker 1: no pattern before the deadline",)


def test_a_probe_that_nobody_answers_is_given_up_and_cancelled() -> None:
    fleet = manual_fleet()
    fleet.deaf = {0, 1}
    fleet.step()
    fleet.windows.asked(fleet.now, ProfileRequest())
    fleet.step(400)
    assert not fleet.windows.busy
    assert fleet.windows.capturing.order is not None and fleet.windows.capturing.order.kind == "cancel"
    assert "given up" in fleet.windows.status().windows[0].phase


def trigger(count: int, current_s: float = 0.134) -> WorkerTrigger:
    return WorkerTrigger(count=count, reason="34 % above the best", baseline_s=0.1, current_s=current_s)


def finish_window(fleet: Fleet, word: str, current_ms: float | None = None) -> None:
    fleet.step(400)
    fleet.deliver(0, 1)
    work = fleet.work.pop()
    fleet.windows.analyzed(fleet.now, work.window.window_id, make_verdict(word, current_ms))


def test_a_trigger_opens_one_window_and_then_there_is_a_cooldown() -> None:
    fleet = manual_fleet(cooldown_s=50.0, first_look_s=0.0)
    fleet.change(0, trigger=trigger(1))
    fleet.change(1, trigger=trigger(1))
    finish_window(fleet, "slow")
    assert not fleet.windows.busy
    fleet.change(0, trigger=trigger(2))
    fleet.step(100)  # 10 s: inside the cooldown
    assert not fleet.windows.busy
    fleet.step(450)
    fleet.change(0, trigger=trigger(3))
    fleet.step()
    assert fleet.windows.busy
    assert fleet.windows.status().windows[-1].window_id == 2


@pytest.mark.parametrize(("current_s", "opens"), [(0.16, False), (0.20, True)])
def test_a_job_that_is_far_slower_than_its_last_window_showed_need_not_wait(current_s: float, opens: bool) -> None:
    fleet = manual_fleet(cooldown_s=500.0, window_s=1.0)
    fleet.change(0, trigger=trigger(1))
    finish_window(fleet, "slow", current_ms=134.0)
    fleet.change(0, trigger=trigger(2, current_s))
    fleet.step(100)  # 10 s: what the window itself cost may be in these iterations
    assert not fleet.windows.busy
    fleet.step(250)
    fleet.change(0, trigger=trigger(3, current_s))
    fleet.step()
    assert fleet.windows.busy == opens


def sure(confidence: float) -> Verdict:
    finding = cause("garbage-collection", 0, gain=0.4, confidence=confidence)
    return msgspec.structs.replace(make_verdict("slow"), findings=(finding,))


@pytest.mark.parametrize(
    ("verdict", "is_over"), [(sure(0.9), True), (sure(0.7), False), (make_verdict("undetermined"), False), (None, True)]
)
def test_a_short_window_whose_verdict_is_not_sure_is_followed_by_a_whole_one(
    verdict: Verdict | None, is_over: bool
) -> None:
    fleet = manual_fleet(window_s=20.0, first_look_s=2.0, max_window_iterations=1000)
    fleet.change(0, trigger=trigger(1))
    fleet.step(400)
    fleet.deliver(0, 1)
    look = fleet.work.pop().window
    assert 20 <= look.last_iteration - look.first_iteration <= 30
    fleet.windows.analyzed(fleet.now, look.window_id, verdict)
    fleet.step(600)
    if is_over:
        assert not fleet.windows.busy
        return
    fleet.deliver(0, 1)
    whole = fleet.work.pop().window
    assert whole.last_iteration - whole.first_iteration >= 140
    assert (whole.purpose, whole.reason) == (look.purpose, look.reason)
    fleet.windows.analyzed(fleet.now, whole.window_id, make_verdict("undetermined"))
    fleet.step(100)
    assert not fleet.windows.busy, "one after a look is enough"


def test_a_first_look_that_another_collector_took_over_is_followed_by_a_whole_window_too() -> None:
    settings = Settings(baseline_window=False, window_s=20.0, first_look_s=2.0, max_window_iterations=1000)
    fleet = Fleet(Windows("j", settings))
    fleet.change(0, trigger=trigger(1))
    while fleet.windows.capturing.order is None or fleet.windows.capturing.order.kind != "window":
        fleet.step()
    current = fleet.windows.capturing.current
    assert current is not None
    underway, fleet.windows = current.record(fleet.now, 0.0), Windows("j", settings)
    fleet.windows.resume(fleet.now, 0.0, History(last_id=1, underway=underway))
    finish_window(fleet, "undetermined")
    fleet.step(600)
    fleet.deliver(0, 1)
    whole = fleet.work.pop().window
    assert whole.last_iteration - whole.first_iteration >= 140 and whole.purpose == "slow"


def test_the_baseline_window_is_taken_once_and_handed_to_later_analyses() -> None:
    fleet = Fleet(Windows("j", Settings(baseline_window_s=1.0, window_s=1.0)))
    fleet.step(5)
    assert not fleet.windows.busy
    for rank in (0, 1):
        fleet.change(rank, steady=True)
    fleet.step(100)
    fleet.deliver(0, 1)
    assert [work.counts for work in fleet.work] == [False] and len(fleet.windows.baseline.patterns) == 2
    assert fleet.windows.busy
    fleet.windows.analyzed(fleet.now, fleet.work[0].window.window_id, None)
    fleet.step(100)
    assert not fleet.windows.busy
    fleet.windows.asked(fleet.now, ProfileRequest())
    fleet.step(100)
    fleet.deliver(0, 1)
    _, work = fleet.work
    assert len(work.baseline) == 2 and work.window.window_id == 2 and work.counts


def test_a_baseline_window_that_has_not_opened_gives_way_to_a_trigger() -> None:
    """What it would show is what the trigger asks about."""
    fleet = Fleet(Windows("j", Settings(baseline_window_s=1.0, window_s=1.0)))
    for rank in (0, 1):
        fleet.change(rank, steady=True)
    fleet.step(1)
    assert fleet.windows.window is not None and fleet.windows.window.purpose == "baseline"
    slower = WorkerTrigger(count=1, reason="50 % longer", baseline_s=0.1, current_s=0.15)
    fleet.change(0, trigger=slower, steady=False)
    fleet.step(1)
    assert [(line.phase, line.purpose) for line in fleet.windows.status().windows] == [("probe", "slow")]
    fleet.step(100)
    fleet.deliver(0, 1)
    assert [(work.window.purpose, work.counts) for work in fleet.work] == [("slow", True)]


@pytest.mark.parametrize(
    ("state", "current_s", "missing"),
    [("learning", None, "ten equal ones are needed"), ("steady", None, "three are needed"), ("steady", 30.0, "")],
)
def test_a_request_that_comes_too_early_is_told_what_is_missing(
    state: str, current_s: float | None, missing: str
) -> None:
    fleet = manual_fleet()
    for rank in (0, 1):
        fleet.change(rank, state=state, iteration=12, current_s=current_s, baseline_s=None)
    fleet.step()
    refused = fleet.windows.asked(fleet.now, ProfileRequest()).refused
    assert missing in refused and bool(refused) == bool(missing)


def test_a_window_is_refused_before_anybody_trains_and_after_the_end() -> None:
    windows = Windows("j", Settings())
    assert "no worker" in windows.asked(0.0, ProfileRequest()).refused
    windows.job_ended(1.0)
    assert "over" in windows.asked(1.0, ProfileRequest()).refused


def test_the_end_of_the_job_waits_for_patterns_under_way_but_not_for_ever() -> None:
    fleet = manual_fleet(window_s=1.0, window_deadline_s=30.0)
    fleet.step()
    fleet.windows.asked(fleet.now, ProfileRequest())
    fleet.step(40)
    fleet.deliver(0)
    fleet.windows.job_ended(fleet.now)
    assert fleet.windows.busy
    fleet.work += fleet.windows.tick(fleet.now + 11.0)
    assert len(fleet.work) == 1


@given(st.lists(st.sampled_from(["step", "ask", "miss", "deliver", "die", "trigger"]), max_size=60), st.integers(1, 4))
def test_whatever_happens_there_is_at_most_one_window_and_time_closes_it(script: list[str], ranks: int) -> None:
    fleet = Fleet(Windows("j", Settings(baseline_window=False, window_s=0.5)), ranks=ranks)
    for number, word in enumerate(script):
        if word == "step":
            fleet.step(7)
        elif word == "ask":
            fleet.windows.asked(fleet.now, ProfileRequest())
        elif word == "miss":
            open_id = len(fleet.windows.status().windows)
            fleet.change(0, result=OrderResult(window_id=open_id, status="missed", kind="window"))
        elif word == "deliver" and fleet.windows.status().windows:
            fleet.deliver(number % ranks)
        elif word == "die":
            fleet.change(number % ranks, ended=True, state="gone")
        elif word == "trigger":
            fleet.change(number % ranks, trigger=trigger(number))
        for work in fleet.work:
            assert {p.worker.global_rank for p in work.patterns} <= set(range(ranks))
            fleet.windows.analyzed(fleet.now, work.window.window_id, make_verdict("healthy"))
        fleet.work.clear()
    fleet.windows.job_ended(fleet.now)
    fleet.now += 1000.0
    for work in fleet.windows.tick(fleet.now):
        fleet.windows.analyzed(fleet.now, work.window.window_id, make_verdict("healthy"))
    assert not fleet.windows.busy


def test_a_large_job_reports_more_seldom_and_gets_its_orders_earlier() -> None:
    assert opening.report_pause_s(8, is_busy=True) == pytest.approx(0.008)  # less than agents wait anyway
    assert opening.report_pause_s(8, is_busy=False) == pytest.approx(0.032)
    assert opening.report_pause_s(400, is_busy=False) == 0.5
    for is_busy in (False, True):
        assert opening.report_pause_s(2000, is_busy) == 2.0
        assert opening.report_pause_s(12_500, is_busy) == 4.0
    assert opening.lead(0.1, 8) * 0.1 <= 1.1
    assert opening.lead(0.1, 12_500) * 0.1 >= 5.0
