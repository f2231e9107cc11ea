"""The demo: plans of faults, when they start and stop, what is told while the job runs, and who judges the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from eroica.cli.demo import Story
from eroica.demo import FAULTS, Fault, FaultPlan, inject, read_plans
from eroica.demo.faults import Place, SlowLoader, build_fault
from eroica.demo.rehearsal import EXPECTED, Rehearsal, judge
from eroica.errors import UsageError
from eroica.model.verdict import Verdict
from eroica.wire.messages import JobStatus, WindowLine
from support import verdicts

# --- plans and faults ---


def test_plans_are_read_from_a_short_form() -> None:
    plan = FaultPlan("slow-loader", worker=2, from_iteration=150, options={"seconds": 0.01})
    assert read_plans(str(plan)) == read_plans("slow-loader:worker=2,from_iteration=150,seconds=0.01") == (plan,)
    assert read_plans("gc-pause; slow-python:worker=1") == (FaultPlan("gc-pause"), FaultPlan("slow-python", 1))
    assert read_plans("none") == read_plans("") == ()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("slow-loader:oops", "oops"),
        ("slow-loader:worker=true", "True"),
        ("slow-loader:from_iteration=2.5", "2.5"),
        ("slow-loader:seconds=NaN", "nan"),
        ("slow-coffee", "slow-coffee.*slow-loader"),
        ("slow-loader:worker=9,minutes=1", "minutes.*seconds"),
    ],
)
def test_a_bad_plan_is_refused_on_every_worker_with_what_is_wrong(text: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        inject(*read_plans(text), worker=0, workers=1, code=PARTS)


PARTS = ModuleType("parts")
PARTS.PARTS = {}  # type: ignore[attr-defined]


@dataclass
class Recorder(Fault):
    """Notes what it is told."""

    name: ClassVar[str] = "recorder"
    log: ClassVar[list[str]] = []
    size: float = 1.0

    def start(self, model: Any, place: Any) -> None:
        self.log.append(f"start {self.size}")

    def stop(self) -> None:
        self.log.append("stop")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setitem(FAULTS, "recorder", Recorder)
    monkeypatch.setattr(Recorder, "log", [])
    return Recorder.log


def test_a_fault_starts_and_stops_once_at_the_iterations_of_its_plan_on_its_worker(log: list[str]) -> None:
    plans = FaultPlan("recorder", from_iteration=2, options={"size": 7}), FaultPlan("recorder", worker=1)
    told = []
    with inject(*plans, worker=0, workers=2, code=PARTS) as faults:
        for iteration in range(6):
            faults.iteration(iteration, model=None)
            told.append(len(log))
    assert (log, told) == (["start 7", "stop"], [0, 0, 1, 1, 1, 1])


def test_a_fault_is_stopped_when_the_training_fails(log: list[str]) -> None:
    with pytest.raises(KeyError), inject(FaultPlan("recorder"), worker=0, workers=1, code=PARTS) as faults:
        faults.iteration(0, model=None)
        raise KeyError
    assert log[-1] == "stop"


# --- verdicts ---


def said(cause: str, workers: tuple[int, ...] = (2,), scope: str = "some", word: str = "slow") -> Verdict:
    return verdicts.plain(word, "", verdicts.cause(cause, *workers, scope=scope))


@pytest.mark.parametrize(
    ("fault", "verdict", "right"),
    [
        ("slow-loader", said("slow-data-loading"), True),
        ("gc-pause", said("garbage-collection", (0, 1, 2, 3), "rotating"), True),
        ("slow-python", said("python-on-critical-path", (0, 1, 2, 3), "all"), True),
        ("hang", said("desynchronized-collective", word="blocked"), True),
        ("none", verdicts.plain(), True),
        ("slow-loader", verdicts.plain(), False),
        ("slow-loader", said("slow-data-loading", (1, 2)), False),
        ("slow-loader", said("slow-data-loading", scope="all"), False),
        ("slow-compute", said("cpu-contention"), False),
        ("hang", said("desynchronized-collective"), False),
        ("none", said("slow-link"), False),
    ],
)
def test_a_verdict_is_right_if_it_names_the_fault_and_both_are_said_if_not(
    fault: str, verdict: Verdict, right: bool
) -> None:
    judgement = judge(verdict, fault, 2, EXPECTED[fault])
    assert judgement.right == right
    assert right or (EXPECTED[fault].cause in judgement.words and verdict.verdict in judgement.words)


# --- what is told meanwhile ---


def status(iteration: int, *windows: WindowLine) -> JobStatus:
    return JobStatus(job="j", phase="watching", message="", iteration=iteration, windows=windows)


def window(phase: str, purpose: Any = "slow", verdict: str = "", last: int = 360) -> WindowLine:
    return WindowLine(
        window_id=2, purpose=purpose, phase=phase, first_iteration=300, last_iteration=last, verdict=verdict,
        summary="because",
    )  # fmt: skip


def story(fault: str) -> Story:
    return Story(Rehearsal(fault, 1, 2, Path(), from_iteration=200))


def test_the_story_tells_each_step_once_and_in_order() -> None:
    told, over = story("slow-loader"), window("done", "slow", "slow")
    course = [status(0), status(3), status(201), status(310, window("window")), status(390, over)]
    assert [line for step in course for seen in (step, step) for line in told.tell(seen)] == [
        "training",
        "slow-loader begins (iteration 200)",
        "window 2 (slower than before) opens",
        "window 2 (slower than before): slow: because",
    ]


@pytest.mark.parametrize(
    ("fault", "line", "over"),
    [
        ("slow-loader", window("analysis"), False),
        ("slow-loader", window("done", verdict="healthy"), False),
        ("slow-loader", window("done", verdict="slow", last=199), False),
        ("slow-loader", window("done", "baseline"), False),
        ("slow-loader", window("done", verdict="slow"), True),
        ("none", window("done", verdict="slow"), False),
        ("none", window("done", "manual", "healthy"), True),
        ("hang", window("done", verdict="slow"), False),
        ("hang", window("done", "blocked", "blocked"), True),
    ],
)
def test_a_job_is_stopped_only_for_a_verdict_on_its_fault(fault: str, line: WindowLine, over: bool) -> None:
    assert story(fault).concluded(status(390, line)) == over


def test_a_slow_loader_steers_all_its_parts_by_one_number() -> None:
    fault = build_fault(FaultPlan("slow-loader", options={"seconds": 0.01}))
    assert isinstance(fault, SlowLoader)
    first = fault.shared_number()
    assert fault.shared_number() is first and first.value == 0
    fault.start(None, Place(worker=0, workers=1, parts={}, callbacks=[]))
    assert first.value == 0.01
