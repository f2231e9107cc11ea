"""Iteration times of a job over its life: from reports to a bounded history, its marks, and what is new in it."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import httpx
import msgspec
import pytest

from eroica.archive.forget import forget
from eroica.archive.load import SavedRun, decode_history, open_saved
from eroica.collector.intake import clean_report
from eroica.collector.ledger import News
from eroica.collector.pace import FINE, MOST_MARKS, Pace, PaceUpdate, Stretch
from eroica.collector.service import Collector
from eroica.errors import InputError
from eroica.model.history import IterationHistory, Mark
from eroica.model.verdict import Verdict
from eroica.model.window import Window, WindowKind, WindowPurpose
from eroica.model.worker import Worker
from eroica.wire.messages import AgentReport, WorkerStatus, WorkerTrigger
from support.collectors import finish, post, with_collector
from support.verdicts import plain

WALL = 1_700_000_000.0
MOST_STRETCHES = 2_000


def status(rank: int, done: int, latest_s: float | None, **more: object) -> WorkerStatus:
    worker = Worker(global_rank=rank, pid=100 + rank, host="h", world_size=2)
    return WorkerStatus(**{"worker": worker, "state": "steady", "iteration": done, "latest_s": latest_s, **more})


class Job:
    """A job of two workers on one host that reports four times a second."""

    def __init__(self, pace: Pace | None = None, now: float = 0.0, done: int = 0) -> None:
        self.pace = pace or Pace("j", WALL, now)
        self.now, self.done, self.sent = now, done, done

    def train(self, seconds: float, iteration_s: float, slower: float = 1.0, **more: object) -> None:
        """Both complete the same iterations; worker 1 says that its own take `slower` times as long."""
        end, spent = self.now + seconds, 0.0
        while self.now < end - 1e-9:
            self.now += 0.25
            spent += 0.25
            fresh = int((spent + 1e-9) / iteration_s)
            spent -= fresh * iteration_s
            self.done += fresh
            latest = iteration_s if fresh else None
            self.tell(status(0, self.done, latest, **more), status(1, self.done, latest and latest * slower))

    def tell(self, *workers: WorkerStatus, host: str = "h") -> None:
        self.pace.reported(self.now, host, workers)
        self.pace.tick(self.now)

    def show(self, phase: str, window: Window, verdict: Verdict | None = None) -> None:
        self.pace.shown(self.now, News(window, phase, verdict))

    @property
    def history(self) -> IterationHistory:
        return self.pace.history()

    @property
    def marks(self) -> list[tuple[str, float, float | None]]:
        return [(mark.kind, mark.at_s, mark.until_s) for mark in self.history.marks]


def window(
    first: int = 0, last: int = 0, number: int = 1, purpose: WindowPurpose = "slow", kind: WindowKind = "iterations"
) -> Window:
    return Window(
        window_id=number, purpose=purpose, reason="why", first_iteration=first, last_iteration=last, kind=kind
    )


def verdict(summary: str = "It is the disk.") -> Verdict:
    return plain("slow", summary)


# ---------------------------------------------------------------------- stretches


def test_each_second_has_the_mean_over_workers_and_the_slowest_of_them() -> None:
    job = Job()
    job.train(10, 0.05, slower=1.2)
    history = job.history
    assert history.at_s == tuple(float(second) for second in range(1, 11))
    assert history.iteration[-1] == 200
    assert (set(history.mean_ms), set(history.slowest_ms)) == ({55.0}, {60.0})
    assert set(history.slowest_worker) == {1}


def test_a_stretch_lasts_until_everybody_has_completed_an_iteration() -> None:
    job = Job()
    job.tell(status(0, 0, None), status(1, 0, None))
    job.now = 30.0
    job.tell(status(0, 1, 30.0), status(1, 0, None))
    assert job.history.at_s == ()
    job.now = 30.5
    job.tell(status(0, 1, None), status(1, 1, 30.5))
    assert (job.history.at_s, job.history.mean_ms) == ((30.5,), (30_250.0,))


def test_a_pause_of_all_shows_on_all_though_their_hosts_report_at_different_moments() -> None:
    ends, pace = [0.0], Pace("j", WALL, 0.0)
    while ends[-1] < 60:
        ends.append(ends[-1] + (1.0 if len(ends) % 37 == 0 else 0.1))
    told = [0] * 4
    for tick in range(4 * 4 * 55):  # four hosts, a sixteenth of a second after each other
        now, host = tick / 16 + 0.01, tick % 4
        done = bisect_right(ends, now) - 1
        latest = (ends[done] - ends[told[host]]) / (done - told[host]) if done > told[host] else None
        pace.reported(now, f"h{host}", [status(host, done, latest)])
        told[host] = done
    history = pace.history()
    assert len(history.at_s) > 30 and max(history.mean_ms) > 150
    assert all(
        slowest < 1.5 * mean for slowest, mean in zip(history.slowest_ms, history.mean_ms, strict=True)
    )  # cut by the second, one host would now and then seem to take twice as long as the others


def lived(rows: int) -> IterationHistory:
    """What a job of so many stretches of a second keeps."""
    at = range(1, rows + 1)
    return IterationHistory(
        job="j", began=WALL, at_s=tuple(map(float, at)), iteration=tuple(at),
        mean_ms=tuple(100.0 + one % 7 for one in at), slowest_ms=tuple(900.0 if one == 4321 else 110.0 for one in at),
        slowest_worker=tuple(one % 5 for one in at),
    )  # fmt: skip


def test_a_long_life_is_thinned_evenly_and_its_time_and_its_worst_moment_stay() -> None:
    pace = Pace("j", WALL + 20_000, 0.0)
    pace.resume(lived(20_000))
    found = [Stretch._make(row) for row in whole(pace)]
    assert len(found) <= MOST_STRETCHES
    assert [one.at_s for one in found[-FINE:]] == [float(at) for at in range(20_001 - FINE, 20_001)]
    lengths = [later.at_s - one.at_s for one, later in pairwise(found)][: -FINE - 1]
    assert max(lengths) < 2 * min(lengths)
    starts = [0.0, *(one.at_s for one in found)]
    spent = sum(one.mean_ms * (one.at_s - start) for one, start in zip(found, starts, strict=False))
    assert spent == pytest.approx(sum(100.0 + at % 7 for at in range(1, 20_001)), rel=1e-5)
    assert [(one.slowest_ms, one.slowest_worker) for one in found if one.slowest_ms > 200] == [(900.0, 1)]


# ---------------------------------------------------------------------- marks


def test_a_window_is_marked_where_its_iterations_are() -> None:
    job = Job()
    job.train(5, 0.1)
    job.show("probe", window(50, 51))
    job.show("window", window(60, 80))
    assert job.marks == []
    job.train(1.5, 0.1)
    assert job.marks == [("window", 6.0, None)]
    job.train(5, 0.1)
    job.show("summarizing", window(60, 80))
    job.show("analysis", window(60, 80))
    job.show("done", window(60, 80), verdict())
    assert job.marks == [("window", 6.0, 8.0), ("verdict", 11.5, None)]
    first, second = job.history.marks
    assert (first.iteration, first.last_iteration, first.window_id, first.text) == (60, 80, 1, "why")
    assert (second.window_id, second.iteration, second.text) == (1, 115, "It is the disk.")


def test_workers_that_go_on_asking_make_one_mark_that_lasts() -> None:
    job = Job()
    asks = WorkerTrigger(count=1, reason="34 % above the best", baseline_s=0.1, current_s=0.134)
    job.train(2, 0.1)
    job.train(2, 0.1, trigger=asks)
    job.train(30, 0.1, trigger=msgspec.structs.replace(asks, count=2))
    job.train(100, 0.1)
    assert job.marks == [("trigger", 2.25, 4.25)]
    job.train(1, 0.1, trigger=msgspec.structs.replace(asks, count=3))
    assert job.marks == [("trigger", 2.25, 4.25), ("trigger", 134.25, None)]
    assert job.history.marks[0].text == "worker 0: 34 % above the best"


@pytest.mark.parametrize("end", ["passed", "restarted", "given up"])
def test_a_standstill_is_marked_from_the_last_iteration_on_until_somebody_moves(end: str) -> None:
    job, still = Job(), window(30, 30, 4, "blocked", "blocked")
    job.train(3, 0.1)
    job.train(12, 1e9)
    job.show("looking", still)
    job.show("examining", still)
    job.show("done", still, verdict("Blocked: a queue is full."))
    assert job.marks == [("blocked", 3.0, None), ("verdict", 15.0, None)]
    job.train(5, 1e9)
    job.show(end, still, None if end == "given up" else verdict("Blocked: a queue is full."))
    assert job.marks == [("blocked", 3.0, 20.0), ("verdict", 15.0, None)]


def test_marks_are_bounded_and_windows_outlive_triggers() -> None:
    job = Job()
    for number in range(1, MOST_MARKS + 200):
        job.now += 1000
        asks = WorkerTrigger(count=number, reason="slow", baseline_s=0.1, current_s=0.2)
        job.tell(status(0, 1, None, trigger=asks))
        if number % 2:
            job.show("window", window(0, 1, number))
            job.tell(status(0, 1, None, trigger=asks))
    kinds = [mark.kind for mark in job.history.marks]
    assert len(kinds) == MOST_MARKS and kinds.count("window") == (MOST_MARKS + 200) // 2


# ---------------------------------------------------------------------- what is new


class Page:
    """Someone who keeps what updates say, as `PaceUpdate` asks for."""

    def __init__(self) -> None:
        self.version, self.wholes = 0, 0
        self.columns: list[tuple[float, ...]] = []
        self.marks: dict[tuple[str, int, float], Mark] = {}

    def hear(self, update: PaceUpdate) -> None:
        news = update.news
        rows = list(zip(news.at_s, news.iteration, news.mean_ms, news.slowest_ms, news.slowest_worker, strict=True))
        self.columns = rows if update.whole else [*self.columns, *rows]
        marks = {(mark.kind, mark.window_id, mark.at_s): mark for mark in news.marks}
        self.marks = marks if update.whole else {**self.marks, **marks}
        self.version, self.wholes = update.version, self.wholes + update.whole


def whole(pace: Pace) -> list[tuple[float, ...]]:
    page = Page()
    page.hear(pace.since(0))
    return page.columns


def test_a_page_that_hears_every_update_has_everything() -> None:
    job, page = Job(), Page()
    job.train(5, 0.1)
    for second in range(20):
        job.train(2.5, 0.1, slower=1 + second / 10)
        if second == 5:
            job.show("window", window(job.done, job.done + 30))
        page.hear(job.pace.since(page.version))
        nothing = job.pace.since(page.version).news
        assert (nothing.at_s, nothing.marks) == ((), ())
    assert page.wholes == 1 and page.columns == whole(job.pace)
    assert tuple(page.marks.values()) == job.history.marks


def test_a_collector_that_is_started_again_goes_on_in_the_same_history() -> None:
    first = Job()
    first.train(500, 0.1)
    first.show("window", window(first.done, first.done + 1000))
    first.train(1, 0.1)
    known = first.pace.since(0)
    second = Pace("j", WALL + 600, 9000.0)
    second.resume(first.history)
    assert second.since(known.version).whole
    job = Job(second, 9000.0, first.done)
    job.train(10, 0.2)
    history = job.history
    assert history.began == first.history.began and history.at_s[: len(first.history.at_s)] == first.history.at_s
    assert history.at_s[-1] == 610.0 and history.mean_ms[-1] == pytest.approx(200.0)
    assert job.marks == [("window", 500.25, 501.0)]  # it ended with the collector that had opened it
    for _ in range(10):  # however often that happens, it stays bounded
        again = Pace("j", WALL + 700, 0.0)
        again.resume(job.history)
        job = Job(again)
        job.train(300, 0.1)
    assert len(job.history.at_s) <= MOST_STRETCHES
    assert list(job.history.at_s) == sorted(job.history.at_s)


# ---------------------------------------------------------------------- through the collector


@pytest.mark.parametrize("latest", [math.nan, math.inf, -1.0, 1e300, 0.0])
def test_a_duration_that_cannot_be_is_left_out(latest: float) -> None:
    report = clean_report(AgentReport(host="h", pid=1, workers=(status(0, 1, latest), status(1, 1, 0.5))))
    assert [worker.latest_s for worker in report.workers] == [None, 0.5]


def watch(run: Path, reports: Sequence[AgentReport], resumes: bool = False) -> None:
    """A collector's whole life, in process, with a second between reports."""

    now = 50.0

    async def script(collector: Collector, client: httpx.AsyncClient) -> None:
        nonlocal now
        for report in reports:
            now += 1.0
            assert (await post(client, "/v1/report", report)).status_code == 200
        await finish(collector, client)

    with_collector(run, script, resume="it died" if resumes else "", clock=lambda: now)


def reports(first: int, iteration_s: float) -> list[AgentReport]:
    return [
        AgentReport(host="h", pid=1, workers=(status(0, done, iteration_s), status(1, done, math.nan)))
        for done in range(first, first + 6)
    ]


def test_the_history_lies_in_the_run_directory_and_a_second_collector_adds_to_it(tmp_path: Path) -> None:
    watch(tmp_path, reports(1, 0.1))
    watch(tmp_path, reports(7, 0.3), resumes=True)
    saved = open_saved(tmp_path)
    assert isinstance(saved, SavedRun) and saved.history is not None
    assert saved.history.mean_ms == (*[100.0] * 3, *[300.0] * 3)
    assert saved.history.iteration[-1] == 12 and saved.history.job == "j"
    forget(tmp_path)
    assert not (tmp_path / "history.json").exists()


def test_a_worker_that_tells_wild_numbers_holds_nobody_up_for_long() -> None:
    job = Job()
    for second in range(400):
        job.now, job.done = second / 4, second
        job.tell(status(0, second, 0.25), status(1, 2**48 - second % 2, 9e6))
    assert len(job.history.at_s) > 5


@pytest.mark.parametrize("damage", [b"{", b'{"job": "j", "began": 1, "at_s": [1.0]}', b'{"job": "j", "began": "x"}'])
def test_a_damaged_history_costs_only_itself(tmp_path: Path, damage: bytes) -> None:
    watch(tmp_path, reports(1, 0.1))
    (tmp_path / "history.json").write_bytes(damage)
    saved = open_saved(tmp_path)
    assert isinstance(saved, SavedRun) and saved.history is None and saved.verdict is not None
    assert any("history.json" in note for note in saved.notes)
    watch(tmp_path, reports(7, 0.3), resumes=True)
    again = decode_history((tmp_path / "history.json").read_bytes())
    assert set(again.mean_ms) == {300.0}


@pytest.mark.parametrize(
    "columns",
    [
        {"at_s": (2.0, 1.0), "iteration": (1, 2)},
        {"at_s": (1.0, 2.0), "iteration": (1, -2)},
        {"at_s": (1.0, 2.0), "iteration": (1,)},
        {"at_s": (1.0, 2.0), "iteration": (1, 2), "mean_ms": (1.0, -3.0)},
    ],
)
def test_a_history_whose_columns_do_not_fit_is_refused(columns: dict[str, tuple[float, ...]]) -> None:
    sound = {"mean_ms": (1.0, 1.0), "slowest_ms": (1.0, 1.0), "slowest_worker": (0, 0)}
    text = msgspec.json.encode({"job": "j", "began": 0.0, **sound, **columns})
    with pytest.raises(InputError):
        decode_history(text)


@pytest.mark.parametrize(("slow_s", "is_sure"), [(0.05, False), (0.17, True)])
def test_the_end_of_a_job_is_compared_with_its_best_level_but_for_what_windows_made_longer(
    slow_s: float, is_sure: bool
) -> None:
    job = Job()
    job.train(25.0, 0.05)
    job.show("window", window(job.done, job.done + 140))
    job.train(25.0, 0.17)
    job.show("done", window(job.done - 140, job.done), verdict())
    job.train(25.0, 0.05)
    job.train(25.0, slow_s)
    loss = job.pace.loss(is_traced=False)
    assert loss is not None and loss.is_sure == is_sure, loss
    assert loss.now == pytest.approx(1e3 * slow_s, rel=0.05) and loss.before == pytest.approx(50, rel=0.05)
