"""The collector's HTTP side, in process."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import msgspec
import pytest

from eroica.archive.load import open_window, read_patterns
from eroica.archive.store import Store
from eroica.collector.ledger import History, read_history
from eroica.collector.service import MAX_LOOKS_BYTES, MAX_PATTERN_BYTES, Collector
from eroica.collector.windows import Analyze
from eroica.model.look import HostLooks
from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import Recurrence, Verdict
from eroica.model.worker import Worker
from eroica.settings import Settings
from eroica.wire.address import Address, announce_to_all
from eroica.wire.codec import encode_record
from eroica.wire.messages import (
    AgentReport,
    CollectorReply,
    FinishRequest,
    JobStatus,
    OrderMessage,
    OrderResult,
    WorkerStatus,
)
from support.verdicts import cause as named
from support.verdicts import plain

TOKEN = "secret"


def status(iteration: int, order: OrderResult | None = None) -> WorkerStatus:
    return WorkerStatus(
        worker=Worker(global_rank=0, pid=7, host="h"),
        state="steady",
        iteration=iteration,
        current_s=0.1,
        baseline_s=0.1,
        result=order or OrderResult(),
    )


def pattern(window_id: int) -> WorkerPattern:
    return WorkerPattern(
        worker=Worker(global_rank=0, pid=7, host="h"), window_id=window_id, first_iteration=1, last_iteration=2,
        duration_s=0.1, iteration_us=b"", wait_us=b"", functions=(),
    )  # fmt: skip


def judge(job: str, order: Analyze, settings: Settings) -> Verdict:
    return plain("healthy", f"{len(order.patterns)} seen", job=job)


def with_collector(
    tmp_path: Path, script: Callable[[Collector, httpx.AsyncClient], Awaitable[None]], analysis: object = judge
) -> None:
    async def go() -> None:
        collector = Collector("j", Store(tmp_path), Settings(baseline_window=False), TOKEN, analysis)
        transport = httpx.ASGITransport(app=collector.application())
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://c", headers=headers) as client:
            await script(collector, client)

    asyncio.run(go())


async def tell(client: httpx.AsyncClient, *workers: WorkerStatus) -> CollectorReply:
    body = msgspec.msgpack.encode(AgentReport(host="h", pid=1, workers=workers))
    answer = await client.post("/v1/report", content=body)
    assert answer.status_code == 200
    return msgspec.msgpack.decode(answer.content, type=CollectorReply)


def test_a_window_runs_from_request_to_verdict_on_disk(tmp_path: Path) -> None:
    async def script(collector: Collector, client: httpx.AsyncClient) -> None:
        await tell(client, status(100))
        await client.post("/v1/profile", content=msgspec.msgpack.encode({}))
        probe = (await tell(client, status(101))).order
        assert probe is not None and probe.kind == "probe"
        done = OrderResult(window_id=1, status="done", kind="probe", events=10)
        window = (await tell(client, status(113, done))).order
        assert window is not None and window.kind == "window"
        await tell(client, status(400, OrderResult(window_id=1, status="done", kind="window")))
        assert (await client.post("/v1/patterns", content=encode_record(pattern(1)))).status_code == 204
        await asyncio.sleep(0.2)
        shown = msgspec.json.decode((await client.get("/v1/status")).content, type=JobStatus)
        assert shown.windows[0].summary == "1 seen"
        await client.post("/v1/finish")
        await asyncio.wait_for(collector.run(0.01), 5)

    with_collector(tmp_path, script)
    final = Verdict.from_json((tmp_path / "verdict.json").read_bytes())
    assert final.summary == "1 seen" and final.cost.trigger_to_verdict_s is not None
    window, patterns, notes = read_patterns(open_window(tmp_path / "windows" / "1"))
    assert window.window_id == 1 and len(patterns) == 1 and notes == ()


def test_without_the_token_nothing_is_answered(tmp_path: Path) -> None:
    async def script(collector: Collector, client: httpx.AsyncClient) -> None:
        for method, path in (("POST", "/v1/report"), ("GET", "/v1/status"), ("POST", "/v1/finish")):
            answer = await client.request(method, path, headers={"Authorization": "Bearer guess"})
            assert answer.status_code == 401
        assert not collector.windows.ended

    with_collector(tmp_path, script)


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/v1/report", b"garbage", 400),
        ("/v1/report", msgspec.msgpack.encode({"host": 3, "pid": "x"}), 400),
        ("/v1/patterns", b"\x00" * 100, 400),
        ("/v1/patterns", b"\x00" * (MAX_PATTERN_BYTES + 1), 413),
        ("/v1/profile", msgspec.msgpack.encode({"iterations": "many"}), 400),
        ("/v1/windows/1/failures", b"", 400),
        ("/v1/looks", b"garbage", 400),
        ("/v1/looks", bytes(MAX_LOOKS_BYTES + 1), 413),
        ("/v1/looks", msgspec.msgpack.encode(HostLooks(look_id=1, host=" ")), 400),
        ("/v1/report", msgspec.msgpack.encode(AgentReport(host="", pid=1)), 400),
        ("/v1/finish", b"garbage", 400),
        ("/v1/profile", msgspec.msgpack.encode({"seconds": math.nan}), 400),
        ("/v1/profile", msgspec.msgpack.encode({"iterations": -1}), 400),
        ("/v1/profile", msgspec.msgpack.encode({"iterations": 2**63}), 400),
    ],
)
def test_garbage_is_refused_with_a_reason(tmp_path: Path, path: str, body: bytes, code: int) -> None:
    async def script(collector: Collector, client: httpx.AsyncClient) -> None:
        answer = await client.post(path, content=body)
        assert answer.status_code == code and answer.json()["error"]

    with_collector(tmp_path, script)


def test_a_run_directory_that_cannot_be_written_is_a_note_not_an_end(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")

    async def script(collector: Collector, client: httpx.AsyncClient) -> None:
        await tell(client, status(10))
        await client.post("/v1/finish")
        await asyncio.wait_for(collector.run(0.01), 5)
        assert collector.final is not None and collector.final.verdict == "undetermined"
        assert any("could not write" in note for note in collector.windows.ledger.notes)

    with_collector(blocked, script)


def test_a_windows_verdict_on_disk_says_that_an_earlier_window_found_the_same(tmp_path: Path) -> None:
    cause = named("compute-slow", 0, kind="compute", gain=0.2, confidence=0.8)
    found = plain("slow", "Slow.", cause)

    async def script(collector: Collector, client: httpx.AsyncClient) -> None:
        collector.resume(History(last_id=1, verdicts=((1, found),)))
        await tell(client, status(100))
        await client.post("/v1/profile", content=msgspec.msgpack.encode({}))
        assert (await tell(client, status(101))).order is not None
        await tell(client, status(113, OrderResult(window_id=3, status="done", kind="probe", events=10)))
        await tell(client, status(400, OrderResult(window_id=3, status="done", kind="window")))
        await client.post("/v1/patterns", content=encode_record(pattern(3)))
        await asyncio.sleep(0.2)
        await client.post("/v1/finish")
        await asyncio.wait_for(collector.run(0.01), 5)

    with_collector(tmp_path, script, lambda *_: found)
    kept = open_window(tmp_path / "windows" / "3").verdict
    assert kept is not None and kept.cause is not None and kept.cause.confidence == 0.8
    recurrence = Recurrence(kind="recurring", windows=(1, 3), looked=2, gains=(0.2, 0.2), costs_ms=(None, None))
    assert kept.cause.recurrence == recurrence
    final = Verdict.from_json((tmp_path / "verdict.json").read_bytes())
    assert final.summary == "Slow. Seen in both windows (1, 3)." and final.cause is not None
    assert final.cause.recurrence == recurrence and final.cause.confidence > 0.8


async def ended_by_a_scheduler(collector: Collector, client: httpx.AsyncClient) -> None:
    """One worker has reported, then the collector gets SIGTERM."""
    await tell(client, status(100))
    await tell(client, status(200))
    collector.interrupt()
    await asyncio.wait_for(collector.run(0.01), 5)


def test_a_collector_that_comes_after_the_workers_keeps_what_the_one_before_it_concluded(tmp_path: Path) -> None:
    """A scheduler's SIGTERM ends the first one, too; until the second one listens, the workers may be gone."""

    async def second(collector: Collector, client: httpx.AsyncClient) -> None:
        collector.resume(read_history(tmp_path, "ended with status 143"))
        await client.post("/v1/finish", content=msgspec.msgpack.encode(FinishRequest(exit_status=1)))
        await asyncio.wait_for(collector.run(0.01), 5)

    async def killed(collector: Collector, client: httpx.AsyncClient) -> None:
        collector.resume(read_history(tmp_path, "ended with status 143"))

    with_collector(tmp_path, ended_by_a_scheduler)
    concluded = Verdict.from_json((tmp_path / "verdict.json").read_bytes())
    assert concluded.coverage.workers_reported == 1
    with_collector(tmp_path, killed)
    with_collector(tmp_path, second)
    final = Verdict.from_json((tmp_path / "verdict.json").read_bytes())
    assert final.coverage.workers_reported == 1 and "No worker" not in final.summary
    assert final.verdict == "undetermined" and "status 1" in final.summary, final.summary


@pytest.mark.parametrize("first_is_there", [True, False])
def test_a_collector_to_which_nobody_reported_says_nothing_over_that_of_the_job(
    tmp_path: Path, first_is_there: bool
) -> None:
    """Hosts share the run directory; a scheduler ends all processes of a job, with them a collector that came late."""

    async def second(collector: Collector, _client: httpx.AsyncClient) -> None:
        collector.interrupt()
        await asyncio.wait_for(collector.run(0.01), 5)
        collector.save_status()

    if first_is_there:
        announce_to_all(tmp_path, Address(url="http://192.0.2.2:1", token=TOKEN, pid=1, host="node0"))
        with_collector(tmp_path, second)
        assert not (tmp_path / "verdict.json").exists()
        (tmp_path / "collector.json").unlink()
    with_collector(tmp_path, ended_by_a_scheduler)
    status_text = (tmp_path / "status.json").read_bytes()
    with_collector(tmp_path, second)
    assert Verdict.from_json((tmp_path / "verdict.json").read_bytes()).coverage.workers_reported == 1
    assert (tmp_path / "status.json").read_bytes() == status_text


def test_a_window_goes_on_with_the_collector_that_comes_after_one_that_was_killed(tmp_path: Path) -> None:
    def two(iteration: int, order: OrderResult | None = None) -> list[WorkerStatus]:
        one = status(iteration, order)
        other = msgspec.structs.replace(one.worker, global_rank=1, pid=8, world_size=2)
        mine = msgspec.structs.replace(one.worker, world_size=2)
        return [msgspec.structs.replace(one, worker=worker) for worker in (mine, other)]

    ordered: list[OrderMessage] = []

    async def first(collector: Collector, client: httpx.AsyncClient) -> None:
        await tell(client, *two(100))
        await client.post("/v1/profile", content=msgspec.msgpack.encode({}))
        await tell(client, *two(101))
        told = await tell(client, *two(113, OrderResult(window_id=1, status="done", kind="probe", events=10)))
        assert told.order is not None and told.order.kind == "window"
        ordered.append(told.order)
        await tell(client, *two(400, OrderResult(window_id=1, status="done", kind="window")))
        await client.post("/v1/patterns", content=encode_record(pattern(1)))
        collector._tick()

    async def second(collector: Collector, client: httpx.AsyncClient) -> None:
        collector.resume(read_history(tmp_path, "was ended by SIGKILL"))
        assert not collector.windows.tick(collector.clock()), "nobody is missed before he can have reported"
        told = await tell(client, *two(410, OrderResult(window_id=1, status="done", kind="window")))
        assert told.order == ordered[0]
        other = msgspec.structs.replace(pattern(1).worker, global_rank=1, pid=8, world_size=2)
        await client.post("/v1/patterns", content=encode_record(msgspec.structs.replace(pattern(1), worker=other)))
        await asyncio.sleep(0.2)
        await client.post("/v1/finish")
        await asyncio.wait_for(collector.run(0.01), 5)

    with_collector(tmp_path, first)
    with_collector(tmp_path, second)
    verdict = Verdict.from_json((tmp_path / "windows" / "1" / "verdict.json").read_bytes())
    assert verdict.summary == "2 seen"
    assert [
        line.phase for line in msgspec.json.decode((tmp_path / "status.json").read_bytes(), type=JobStatus).windows
    ] == ["done"]
