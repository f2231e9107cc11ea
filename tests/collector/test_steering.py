"""Orders are given for sure verdicts only, once a fault, and written down."""

from __future__ import annotations

import asyncio
import datetime
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import pytest

from eroica.archive.store import Store
from eroica.collector import orders as giving
from eroica.collector.__main__ import _listeners
from eroica.collector.orders import ORDERS_FILE, Orders, Steering
from eroica.collector.service import Collector
from eroica.model.communication import Communication, Place
from eroica.model.verdict import Coverage, Finding, FindingFunction, IterationTimes, Order, Verdict
from eroica.model.window import Window
from eroica.settings import Settings
from eroica.wire.places import Places

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


def finding(cause: str, workers: tuple[int, ...], hosts: tuple[str, ...]) -> Finding:
    function = FindingFunction(name="f", kind="other")
    return Finding(
        order=1,
        role="cause",
        cause=cause,
        function=function,
        workers=workers,
        scope="some",
        hosts=hosts,
        confidence=0.97,
    )


def test_a_slow_connection_beside_a_slow_worker_isolates_nobody() -> None:
    late, way = Place(kind="worker", workers=(6,), hosts=("c",)), Place(kind="connection", hosts=("a", "b"))
    given = msgspec.structs.replace(
        verdict("slow"),
        findings=(finding("slow-link", (), ("a", "b")), finding("unknown", (6,), ("c",))),
        communication=Communication(kind="both-slow", place=late, further=(way,)),
    )
    order = Steering("j", SURE).judged(0.0, 1, given)
    assert isinstance(order, Order) and (order.action, order.hosts) == ("avoid-path", ("a", "b"))


@pytest.mark.parametrize(
    ("named", "place", "action"),
    [
        (finding("slow-link", (0, 1, 2, 3), ("a", "b")), None, "avoid-path"),
        (finding("slow-link", (), ("a",)), Place(kind="sending", hosts=("a",)), "avoid-path"),
        (finding("slow-link", (), ("a",)), Place(kind="link", hosts=("a",)), "isolate-host"),
        (finding("unknown", (0, 1), ("a",)), Place(kind="host", workers=(0, 1), hosts=("a",)), "isolate-host"),
        (finding("slow-computation", (3,), ("b",)), None, "isolate-worker"),
    ],
    ids=["a window's path", "sending", "all of a link", "a host", "a worker"],
)
def test_what_is_ordered_follows_from_what_was_found(named: Finding, place: Place | None, action: str) -> None:
    given = msgspec.structs.replace(verdict("slow", place=place), findings=(named,))
    order = Steering("j", SURE).judged(0.0, 1, given)
    assert isinstance(order, Order) and order.action == action


def test_an_order_hides_no_later_one_that_asks_for_more() -> None:
    place = Place(kind="connection", hosts=("a", "b"))
    slow_way = verdict("slow", workers=(), hosts=("a", "b"), place=place)
    steering = Steering("j", SURE)
    assert isinstance(steering.judged(0.0, 1, slow_way), Order)
    assert steering.judged(1000.0, 2, slow_way) is None
    slow = steering.judged(2000.0, 3, verdict("slow"))
    assert isinstance(slow, Order) and slow.action == "isolate-worker"
    stopped = steering.judged(3000.0, 4, verdict())
    assert isinstance(stopped, Order) and stopped.restart and stopped.hosts == ("b",)
    assert steering.judged(4000.0, 5, slow_way) is None and steering.judged(5000.0, 6, verdict()) is None


def test_an_order_for_a_standstill_waits_for_the_end_of_the_pause() -> None:
    steering = Steering("j", SURE)
    steering.judged(0.0, 1, verdict())
    assert "act_pause_s" in str(steering.judged(100.0, 2, verdict(workers=(5,), hosts=("c",))))
    assert steering.holds and steering.tick(299.0, {2}) is None
    order = steering.tick(301.0, {2})
    assert isinstance(order, Order) and (order.order, order.window, order.hosts) == (2, 2, ("c",))
    assert not steering.holds


def test_after_the_end_of_a_collector_the_looks_of_the_next_one_at_the_standstill_are_held() -> None:
    """What the first one held is not kept: the next one looks again (`test_blockage`), and orders what it sees."""
    order = Steering("j", SURE).judged(0.0, 1, verdict())
    assert isinstance(order, Order)
    later = Steering("j", SURE)
    later.resume(5000.0, [order], wall(order, 100))
    assert "act_pause_s" in str(later.judged(5010.0, 5, verdict(workers=(5,), hosts=("c",)), {3, 5}))
    assert later.tick(5199.0, {3, 5}) is None
    given = later.tick(5201.0, {3, 5})
    assert isinstance(given, Order) and (given.order, given.window) == (2, 5)


def test_what_is_held_is_forgotten_if_the_job_goes_on_or_is_only_slow() -> None:
    steering = Steering("j", SURE)
    steering.judged(0.0, 1, verdict())
    steering.judged(100.0, 2, verdict(workers=(5,), hosts=("c",)))
    assert steering.tick(200.0, ()) is None and not steering.holds
    assert steering.tick(301.0, {2}) is None
    steering.judged(200.0, 3, verdict("slow", workers=(5,), hosts=("c",)))
    assert not steering.holds


@pytest.mark.parametrize(
    "later",
    [
        verdict("undetermined", workers=(), hosts=()),
        verdict(workers=(6,), hosts=("c",), confidence=0.9),
        verdict(workers=(6,), hosts=("d",), confidence=0.9),
        verdict(workers=(5,), hosts=("c",), scope="all"),
        verdict(),
    ],
    ids=["undetermined", "another worker", "another host", "all", "whom an order named before"],
)
def test_what_is_held_is_forgotten_if_a_later_look_does_not_bear_it_out(later: Verdict) -> None:
    steering = Steering("j", SURE)
    steering.judged(0.0, 1, verdict())
    steering.judged(100.0, 2, verdict(workers=(5,), hosts=("c",)), {2})
    said = steering.judged(110.0, 3, later, {2, 3})
    assert isinstance(said, str) and "window 2" in said and "window 3 does not bear it out" in said
    assert not steering.holds and steering.tick(301.0, {2, 3}) is None


def test_a_later_look_that_agrees_takes_the_place_of_what_is_held_if_it_is_sure() -> None:
    steering = Steering("j", SURE)
    steering.judged(0.0, 1, verdict())
    steering.judged(100.0, 2, verdict(workers=(5,), hosts=("c",)), {2})
    assert steering.judged(110.0, 3, verdict(workers=(5,), hosts=("c",), confidence=0.8), {2, 3}) is None
    assert steering.holds
    steering.judged(120.0, 4, verdict(workers=(5, 6), hosts=("c",)), {2, 3, 4})
    order = steering.tick(301.0, {2, 3, 4})
    assert isinstance(order, Order) and (order.window, order.workers) == (4, (5, 6))
    assert not steering.holds and steering.tick(1000.0, {2, 3, 4}) is None


def test_of_two_standstills_in_the_pause_only_the_last_one_is_ordered() -> None:
    steering = Steering("j", SURE)
    steering.judged(0.0, 1, verdict())
    steering.judged(100.0, 2, verdict(workers=(5,), hosts=("c",)), {2})
    steering.judged(110.0, 3, verdict(workers=(6,), hosts=("d",)), {2, 3})
    order = steering.tick(301.0, {2, 3})
    assert isinstance(order, Order) and order.window == 3
    assert steering.tick(700.0, {2, 3}) is None


def standstill(window_id: int) -> Window:
    return Window(
        window_id=window_id, purpose="blocked", kind="blocked", reason="", first_iteration=1, last_iteration=1
    )


def test_the_collector_gives_a_held_order_while_the_job_stands(tmp_path: Path) -> None:
    settings = Settings(act_from=0.95, act_pause_s=0.2, on_verdict="true", pages=False)
    collector = Collector("j", Store(tmp_path), settings, "t", lambda *_: verdict())

    async def act() -> None:
        (orders,) = _listeners(Places("j", "h", tmp_path, tmp_path, tmp_path), collector, settings, False)
        collector.windows.ledger.show(standstill(2), "done", verdict())
        (tell,) = collector.listeners
        tell(1, verdict())
        tell(2, verdict(workers=(5,), hosts=("c",)))
        tell(3, verdict(workers=(6,), hosts=("d",)))
        end = time.monotonic() + 10
        while len(given()) < 2 and time.monotonic() < end:
            await asyncio.sleep(0.05)
        await orders.close(10.0)

    def given() -> list[int]:
        lines = map(json.loads, (tmp_path / ORDERS_FILE).read_text().splitlines())
        return [line["window"] for line in lines if "window" in line]

    asyncio.run(act())
    assert given() == [1, 2]
    assert collector.standing == {2}
    collector.windows.ended = True
    assert collector.standing == frozenset()


def test_no_order_is_given_for_a_standstill_that_is_over_when_its_verdict_comes(tmp_path: Path) -> None:
    settings = Settings(act_from=0.95, on_verdict="true", pages=False)
    collector = Collector("j", Store(tmp_path), settings, "t", lambda *_: verdict())

    async def act() -> None:
        (orders,) = _listeners(Places("j", "h", tmp_path, tmp_path, tmp_path), collector, settings, False)
        (tell,) = collector.listeners
        collector.windows.ledger.show(standstill(1), "passed", verdict())
        tell(1, verdict())
        await orders.close(10.0)

    asyncio.run(act())
    assert not (tmp_path / ORDERS_FILE).exists()


def test_an_order_is_not_sent_again_once_the_job_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(giving, "_PAUSES_S", (0.01,) * 3)
    notes: list[str] = []

    async def act(url: str, got: list[bytes]) -> None:
        settings = Settings(act_from=0.95, on_verdict_url=url)
        lapsed = lambda: {7} if got else set()  # noqa: E731 - as the collector gives it
        orders = Orders("j", tmp_path, settings, notes.append, lambda: {7}, lapsed)
        orders.judged(7, verdict())
        await orders.close(20.0)

    with server(503) as (url, got):
        asyncio.run(act(url, got))
    assert len(got) == 1
    assert "it answers 503; the job goes on, or was started again" in notes[-1]


def give(tmp_path: Path, settings: Settings) -> tuple[list[dict[str, object]], list[str]]:
    notes: list[str] = []

    async def act() -> None:
        orders = Orders("j", tmp_path, settings, notes.append)
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
def test_a_command_that_fails_is_told_and_costs_nothing_else(
    tmp_path: Path, command: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(giving, "_COMMAND_S", 0.5)
    lines, notes = give(tmp_path, Settings(act_from=0.95, on_verdict=command))
    assert why in str(lines[1]["outcome"]) and why in notes[-1]


@contextmanager
def server(*statuses: int) -> Iterator[tuple[str, list[bytes]]]:
    """An HTTP server that answers so, the last one for good; its address, and what it was sent."""
    got: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(statuses[min(len(got), len(statuses)) - 1])
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    listening = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.server_address[1]}/secret", got
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


@pytest.mark.parametrize(
    ("statuses", "tries", "outcome"),
    [((204,), 1, "taken"), ((503, 204), 2, "taken"), ((404,), 1, "it answers 404"), ((503,), 4, "it answers 503")],
    ids=["taken", "taken later", "refused", "never taken"],
)
def test_an_address_is_sent_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statuses: tuple[int, ...], tries: int, outcome: str
) -> None:
    monkeypatch.setattr(giving, "_PAUSES_S", (0.01,) * 3)
    with server(*statuses) as (url, got):
        lines, notes = give(tmp_path, Settings(act_from=0.95, on_verdict_url=url))
    assert len(got) == tries and msgspec.json.decode(got[0], type=Order).hosts == ("b",)
    assert lines[1] == {"order": 1, "receiver": "url", "outcome": outcome}
    assert not any("secret" in note for note in notes)


def test_an_address_where_nobody_listens_is_told_without_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(giving, "_PAUSES_S", (0.01,) * 3)
    with server(204) as (url, _):
        pass
    lines, notes = give(tmp_path, Settings(act_from=0.95, on_verdict_url=url))
    assert lines[1]["outcome"] == "no connection (ConnectError)"
    assert "was not taken by the url" in notes[-1] and "secret" not in notes[-1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [(Settings(on_verdict="true"), "--act-from"), (Settings(on_verdict_url="nowhere", act_from=0.9), "no http")],
)
def test_what_keeps_orders_from_being_given_is_said_at_the_start(tmp_path: Path, settings: Settings, said: str) -> None:
    notes: list[str] = []
    Orders("j", tmp_path, settings, notes.append)
    assert len(notes) == 1 and said in notes[0]
