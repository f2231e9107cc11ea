from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from eroica.errors import UsageError
from support.faults import FAULTS, Fault, FaultPlan, inject, read_plans


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
        ("slow-loader:worker=two", "two"),
    ],
)
def test_a_bad_plan_is_refused_with_the_value_that_is_wrong(text: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        read_plans(text)


@dataclass
class Recorder(Fault):
    """Notes what it is told."""

    name: ClassVar[str] = "recorder"
    log: ClassVar[list[str]] = []
    size: float = 1.0
    tag: str = field(default="", init=False)

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
    with inject(*plans, worker=0, workers=2) as faults:
        told = []
        for iteration in range(6):
            faults.iteration(iteration, model=None)
            told.append(len(log))
    assert log == ["start 7", "stop"]
    assert told == [0, 0, 1, 1, 1, 1]


def test_a_fault_is_stopped_when_the_training_fails(log: list[str]) -> None:
    with pytest.raises(KeyError), inject(FaultPlan("recorder"), worker=0, workers=1) as faults:
        faults.iteration(0, model=None)
        raise KeyError
    assert log[-1] == "stop"


@pytest.mark.parametrize(
    ("plan", "named"),
    [
        (FaultPlan("slow-coffee"), "slow-coffee.*slow-loader"),
        (FaultPlan("slow-loader", worker=9, options={"minutes": 1}), "minutes.*seconds"),
    ],
)
def test_an_unknown_fault_or_option_is_refused_on_every_worker(plan: FaultPlan, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        inject(plan, worker=0, workers=1)
