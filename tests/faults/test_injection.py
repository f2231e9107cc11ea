from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from eroica.errors import UsageError
from support.faults import FAULTS, Fault, FaultPlan, inject


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


def test_a_fault_starts_and_stops_once_at_the_iterations_of_its_plan(log: list[str]) -> None:
    with inject(FaultPlan("recorder", from_iteration=2, until=4, options={"size": 7}), worker=0, workers=2) as faults:
        told = []
        for iteration in range(6):
            faults.iteration(iteration, model=None)
            told.append(len(log))
    assert log == ["start 7", "stop"]
    assert told == [0, 0, 1, 1, 2, 2]


def test_a_fault_that_still_runs_at_the_end_is_stopped(log: list[str]) -> None:
    with inject(FaultPlan("recorder"), worker=0, workers=1) as faults:
        faults.iteration(0, model=None)
    assert log == ["start 1.0", "stop"]


def test_a_fault_is_stopped_when_the_training_fails(log: list[str]) -> None:
    with pytest.raises(KeyError), inject(FaultPlan("recorder"), worker=0, workers=1) as faults:
        faults.iteration(0, model=None)
        raise KeyError
    assert log[-1] == "stop"


def test_plans_of_other_workers_do_nothing_here(log: list[str]) -> None:
    with inject(FaultPlan("recorder", worker=1), worker=0, workers=2) as faults:
        faults.iteration(0, model=None)
    assert log == []


def test_rank_and_plan_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, log: list[str]) -> None:
    monkeypatch.setenv("EROICA_FAULT", "recorder:worker=3,size=2")
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with inject() as faults:
        faults.iteration(0, model=None)
    assert log[0] == "start 2"


@pytest.mark.parametrize(
    ("plan", "named"),
    [
        (FaultPlan("slow-coffee"), "slow-coffee.*slow-loader"),
        (FaultPlan("slow-loader", options={"minutes": 1}), "minutes.*seconds"),
        (FaultPlan("slow-loader", worker=9, options={"latency": 1}), "latency"),
    ],
)
def test_an_unknown_fault_or_option_is_refused_on_every_worker(plan: FaultPlan, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        inject(plan, worker=0, workers=1)
