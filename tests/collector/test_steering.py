"""Orders are given for sure verdicts only, once a fault, and written down."""

from __future__ import annotations

import asyncio
import datetime
import json
import sys
import time
from pathlib import Path

import msgspec
import pytest

from eroica.collector.orders import ORDERS_FILE, Orders
from eroica.collector.steering import Steering
from eroica.model.communication import Communication, Place
from eroica.model.order import Order
from eroica.model.verdict import Coverage, Finding, FindingFunction, IterationTimes, Verdict
from eroica.settings import Settings

SURE = Settings(act_from=0.95)


def verdict(
    word: str = "blocked", confidence: float = 0.97, workers: tuple[int, ...] = (3,), hosts: tuple[str, ...] = ("b",),
    scope: str = "some", place: Place | None = None,
) -> Verdict:  # fmt: skip
    finding = Finding(
        order=1, role="cause", cause="unknown", function=FindingFunction(name="no function", kind="other"),
        workers=workers, scope=scope, hosts=hosts, confidence=confidence,  # type: ignore[arg-type]
    )  # fmt: skip
    told = None if place is None else Communication(kind="communication-slow", place=place)
    return Verdict(
        eroica_version="0", job="j", verdict=word, summary="It hangs.", window=None, iteration=IterationTimes(),  # type: ignore[arg-type]
        coverage=Coverage(workers_expected=8, workers_reported=8), findings=(finding,), communication=told,
    )  # fmt: skip


def test_a_sure_verdict_is_an_order_that_names_worker_host_and_restart() -> None:
    order = Steering("j", SURE).judged(0.0, 7, verdict())
    assert isinstance(order, Order)
    assert (order.action, order.workers, order.hosts, order.restart) == ("isolate-worker", (3,), ("b",), True)
    assert (order.window, order.order) == (7, 1)


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        (verdict(), Settings()),
        (verdict("undetermined"), SURE),
        (verdict("healthy"), SURE),
        (verdict(confidence=0.94), SURE),
        (verdict(scope="rotating"), SURE),
        (verdict(workers=(), hosts=()), SURE),
    ],
    ids=["off", "undetermined", "healthy", "not sure", "nobody", "no place"],
)
def test_nothing_else_is(given: Verdict, settings: Settings) -> None:
    assert Steering("j", settings).judged(0.0, 1, given) is None


def test_the_final_verdict_orders_nothing() -> None:
    assert Steering("j", SURE).judged(0.0, 0, verdict()) is None


def test_one_fault_is_ordered_once_also_by_a_later_window_and_another_collector() -> None:
    steering = Steering("j", SURE)
    order = steering.judged(0.0, 1, verdict())
    assert isinstance(order, Order)
    assert steering.judged(1000.0, 2, verdict("slow", workers=(), hosts=("b",))) is None
    later = Steering("j", SURE)
    later.resume(0.0, [order], wall(order, 1000))
    assert later.judged(0.0, 3, verdict()) is None


def wall(order: Order, seconds: float) -> datetime.datetime:
    """The time of day so long after an order."""
    return datetime.datetime.fromisoformat(order.at) + datetime.timedelta(seconds=seconds)


def test_another_collector_keeps_the_pause_since_the_last_order() -> None:
    order = Steering("j", SURE).judged(0.0, 1, verdict())
    assert isinstance(order, Order)
    other = verdict(workers=(5,), hosts=("c",))
    soon, late = Steering("j", SURE), Steering("j", SURE)
    soon.resume(5000.0, [order], wall(order, 20))
    assert "act_pause_s" in str(soon.judged(5010.0, 2, other))
    assert isinstance(soon.judged(5281.0, 3, other), Order)
    late.resume(5000.0, [order], wall(order, 400))
    assert isinstance(late.judged(5000.0, 2, other), Order)


def test_an_order_that_does_not_say_when_counts_as_given_now() -> None:
    order = Steering("j", SURE).judged(0.0, 1, verdict())
    assert isinstance(order, Order)
    later = Steering("j", SURE)
    later.resume(5000.0, [msgspec.structs.replace(order, at="once")], wall(order, 4000))
    assert "act_pause_s" in str(later.judged(5010.0, 2, verdict(workers=(5,), hosts=("c",))))


def test_orders_are_few_and_far_between() -> None:
    steering = Steering("j", Settings(act_from=0.95, act_most=2, act_pause_s=300))
    assert isinstance(steering.judged(0.0, 1, verdict()), Order)
    assert "act_pause_s" in str(steering.judged(10.0, 2, verdict(workers=(5,), hosts=("c",))))
    assert isinstance(steering.judged(400.0, 3, verdict(workers=(5,), hosts=("c",))), Order)
    assert "act_most" in str(steering.judged(900.0, 4, verdict(workers=(6,), hosts=("d",))))


def test_a_slow_connection_isolates_nobody() -> None:
    place = Place(kind="connection", hosts=("a", "b"))
    order = Steering("j", SURE).judged(0.0, 1, verdict("slow", workers=(), hosts=("a", "b"), place=place))
    assert isinstance(order, Order) and order.action == "avoid-path" and not order.restart


def give(tmp_path: Path, settings: Settings) -> tuple[list[dict[str, object]], list[str]]:
    notes: list[str] = []

    async def act() -> None:
        orders = Orders("j", tmp_path, settings, notes.append, time.monotonic)
        orders.judged(7, verdict())
        await orders.close(20.0)

    asyncio.run(act())
    return [json.loads(line) for line in (tmp_path / ORDERS_FILE).read_text().splitlines()], notes


def test_a_command_gets_the_order_on_its_standard_input_and_what_became_of_it_is_written_down(tmp_path: Path) -> None:
    script = tmp_path / "take.py"
    script.write_text(f"import sys; open({str(tmp_path / 'got')!r}, 'w').write(sys.stdin.read())")
    lines, notes = give(tmp_path, Settings(act_from=0.95, on_verdict=f"{sys.executable} {script}"))
    got = msgspec.json.decode((tmp_path / "got").read_text(), type=Order)
    assert (got.hosts, got.window) == (("b",), 7)
    assert lines[0]["order"] == 1 and lines[1] == {"order": 1, "receiver": "command", "outcome": "taken"}
    assert notes == ["order 1: isolate-worker b (window 7)"]


@pytest.mark.parametrize(
    ("command", "why"), [("false", "status 1"), ("/no/such/thing", "started"), ("sleep 60", "longer")]
)
def test_a_command_that_fails_is_told_and_costs_nothing_else(tmp_path: Path, command: str, why: str) -> None:
    lines, notes = give(tmp_path, Settings(act_from=0.95, on_verdict=command, act_command_s=0.5))
    assert why in str(lines[1]["outcome"]) and why in notes[-1]
