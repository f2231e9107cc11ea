"""The watcher's rounds, with a made-up kernel, transport and planner."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from c4p import watcher
from c4p.catalogue import Entry
from c4p.demand import PathReport
from c4p.errors import NoPath, PlannerError
from c4p.model import NetworkPath
from c4p.watcher import Watcher


class Kernel:
    """Says once that a route has changed."""

    def __init__(self) -> None:
        self.changes = 1

    def changed(self) -> bool:
        self.changes -= 1
        return self.changes >= 0

    def wait(self, timeout_s: float) -> None:
        time.sleep(min(timeout_s, 0.01))

    def close(self) -> None:
        pass


@dataclass
class Transport:
    moves: list[tuple[dict[NetworkPath, list[int]], list[NetworkPath], bool]] = field(default_factory=list)

    @property
    def sender(self) -> Transport:
        return self

    def planned(self) -> list[NetworkPath]:
        return [("a",), ("b",)]

    def move(self, ports: dict[NetworkPath, list[int]], planned: list[NetworkPath], all_anew: bool = False) -> None:
        self.moves.append((ports, planned, all_anew))


@dataclass
class Subscription:
    told: list[PathReport] = field(default_factory=list)
    asked: int = 0

    def report_paths(self, report: PathReport) -> None:
        self.told.append(report)

    def poll(self) -> list[str] | None:
        self.asked += 1
        if self.asked == 1:
            raise PlannerError("away")
        return None

    def leave(self) -> None:
        pass


def entry(paths: dict[str, list[int]]) -> Entry:
    return Entry("10.0.0.1", "10.0.0.2", 5000, paths, {}, time.time(), "kernel", list(paths))


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


def test_after_a_change_paths_are_learned_until_that_succeeds_and_the_planner_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "c4p")
    tries: list[float] = []
    asked: list[int] = []
    subscription, transport = Subscription(), Transport()
    enough = threading.Event()

    def learn(source: str, target: tuple[str, int], rounds: int) -> Entry:
        tries.append(time.monotonic())
        asked.append(subscription.asked)
        if not enough.is_set():
            raise NoPath("the far side has not converged")
        return entry({"b": [2], "c": [3]})

    monkeypatch.setattr(watcher.routes, "Watch", Kernel)
    monkeypatch.setattr(watcher, "is_current", lambda known: False)
    monkeypatch.setattr(watcher, "learn", learn)
    watched = Watcher(transport, entry({"a": [1], "b": [2]}), subscription)  # type: ignore[arg-type]
    try:
        until(lambda: len(tries) == 3)
        assert "converged" in caplog.text
        assert asked[2] > asked[0]  # the planner is asked all the same: the job keeps its place there
        enough.set()
        until(lambda: bool(subscription.told))
    finally:
        watched.close()
    assert min(b - a for a, b in itertools.pairwise(tries)) >= watcher.ROUND_S
    assert transport.moves == [({("b",): [2], ("c",): [3]}, [("c",), ("b",)], True)]
    assert subscription.told == [PathReport("10.0.0.1", "10.0.0.2", 2, ["b", "c"], ["b", "c"])]
    assert len(tries) == 4


@dataclass
class Confused(Subscription):
    """A planner whose answers are no use, and which sometimes takes long."""

    slow_s: float = 0.0
    left_by: list[str] = field(default_factory=list)
    inside: int = 0

    def poll(self) -> list[str] | None:
        self.asked += 1
        self.inside += 1
        time.sleep(self.slow_s)
        self.inside -= 1
        raise KeyError("stale")

    def leave(self) -> None:
        assert not self.inside
        self.left_by.append(threading.current_thread().name)


def test_nothing_that_a_planner_says_ends_the_watch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "c4p")
    monkeypatch.setattr(watcher.routes, "Watch", Kernel)
    monkeypatch.setattr(watcher, "is_current", lambda known: True)
    subscription, transport = Confused(), Transport()
    watched = Watcher(transport, entry({"a": [1], "b": [2]}), subscription)  # type: ignore[arg-type]
    try:
        until(lambda: subscription.asked >= 2)
        assert "stale" in caplog.text
    finally:
        watched.close()
    assert transport.moves == []


def test_the_planners_connection_is_used_by_one_thread_also_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher.routes, "Watch", Kernel)
    monkeypatch.setattr(watcher, "is_current", lambda known: True)
    monkeypatch.setattr(watcher, "CLOSE_S", 0.1, raising=False)
    subscription = Confused(slow_s=1.0)
    watched = Watcher(Transport(), entry({"a": [1]}), subscription)  # type: ignore[arg-type]
    until(lambda: subscription.inside == 1)
    began = time.monotonic()
    watched.close()
    assert time.monotonic() - began < 0.9
    until(lambda: bool(subscription.left_by))
    assert subscription.left_by == ["c4p-watcher"]
