"""Patterns go from agents to the collector."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import msgspec
import pytest

from eroica.agent.link import CollectorLink
from eroica.archive.load import open_window, read_patterns
from eroica.archive.store import Store
from eroica.collector.service import Collector
from eroica.collector.windows import Analyze
from eroica.model.pattern import FunctionKey, FunctionPattern, WorkerPattern
from eroica.model.verdict import Coverage, IterationTimes, Verdict
from eroica.model.worker import Worker
from eroica.settings import Settings
from eroica.wire.codec import encode_record
from eroica.wire.messages import (
    PROTOCOL,
    AgentReport,
    CollectorReply,
    OrderResult,
    WorkerStatus,
)

TOKEN, WORKERS = "secret", 4


def pattern(rank: int, window_id: int = 1, functions: int = 30) -> WorkerPattern:
    return WorkerPattern(
        worker=Worker(global_rank=rank, world_size=WORKERS, pid=7, host=f"h{rank}"), window_id=window_id,
        first_iteration=1, last_iteration=2, duration_s=0.1, iteration_us=b"", wait_us=b"",
        functions=tuple(
            FunctionPattern(key=FunctionKey(kind="python", name=f"f{at}", stack=(f"f{at} (a.py:{at})",)), beta=0.01)
            for at in range(functions)
        ),
    )  # fmt: skip


def judge(job: str, order: Analyze, settings: Settings) -> Verdict:
    names = {row.key.name for one in order.patterns for row in one.functions}
    return Verdict(
        eroica_version="0", job=job, verdict="healthy", summary=f"{len(order.patterns)} of {len(names)}", window=None,
        iteration=IterationTimes(), coverage=Coverage(workers_expected=1, workers_reported=1),
    )  # fmt: skip


class Job:
    """Four hosts of one worker each, their links, and a collector that may be started again."""

    def __init__(self, run: Path) -> None:
        self.run, self.delivered = run, list[bytes]()
        self.links = [CollectorLink(run, "h") for _ in range(WORKERS)]
        self.start()

    def start(self) -> None:
        """A new collector where the old one was."""
        self.collector = Collector("j", Store(self.run), Settings(baseline_window=False), TOKEN, judge)
        transport, headers = httpx.ASGITransport(app=self.collector.application()), {"Authorization": f"Bearer {TOKEN}"}
        for link in self.links:
            hooks = {"request": [self._see]}
            link._client = httpx.AsyncClient(
                transport=transport, base_url="http://c", headers=headers, event_hooks=hooks
            )

    async def _see(self, request: httpx.Request) -> None:
        if request.url.path == "/v1/patterns":
            self.delivered.append(request.content)

    async def tell(self, iteration: int, result: OrderResult | None = None) -> CollectorReply:
        """All hosts report."""
        for rank, link in enumerate(self.links):
            worker = Worker(global_rank=rank, world_size=WORKERS, pid=7, host=f"h{rank}")
            status = WorkerStatus(
                worker=worker, state="steady", iteration=iteration, current_s=0.1, baseline_s=0.1,
                result=result or OrderResult(),
            )  # fmt: skip
            reply = await link.report(AgentReport(host=f"h{rank}", pid=1, workers=(status,), protocol=PROTOCOL))
            assert reply is not None
        return reply

    async def open(self, iteration: int) -> int:
        """A window is asked for, probed and captured; its number."""
        await self.tell(iteration)
        assert self.links[0]._client is not None
        await self.links[0]._client.post("/v1/profile", content=msgspec.msgpack.encode({}))
        probe = (await self.tell(iteration + 1)).order
        assert probe is not None
        window_id = probe.window_id
        await self.tell(iteration + 20, OrderResult(window_id=window_id, status="done", kind="probe", events=10))
        await self.tell(iteration + 400, OrderResult(window_id=window_id, status="done", kind="window"))
        return window_id

    async def verdict(self, window_id: int) -> str:
        """What is said of a window."""
        for _ in range(100):
            if window_id in self.collector.windows.ledger.verdicts:
                return self.collector.windows.ledger.verdicts[window_id].summary
            await asyncio.sleep(0.02)
        raise AssertionError(f"window {window_id} has no verdict")


def with_job(run: Path, script: Callable[[Job], Awaitable[None]]) -> None:
    async def go() -> None:
        job = Job(run)
        try:
            await asyncio.wait_for(script(job), 30)
        finally:
            for link in job.links:
                await link.close()

    asyncio.run(go())


def test_the_patterns_of_two_windows_come(tmp_path: Path) -> None:
    async def script(job: Job) -> None:
        for window_id, iteration in ((1, 100), (2, 1000)):
            assert await job.open(iteration) == window_id
            sent = [pattern(rank, window_id) for rank in range(WORKERS)]
            assert set(await asyncio.gather(*map(deliver_of(job), sent))) == {"taken"}
            assert await job.verdict(window_id) == "4 of 30"
        assert sorted(job.delivered) == sorted(
            encode_record(pattern(rank, at)) for rank in range(WORKERS) for at in (1, 2)
        )

    with_job(tmp_path, script)
    _, patterns, notes = read_patterns(open_window(tmp_path / "windows" / "2"))
    assert not notes
    assert list(patterns) == [pattern(rank, 2) for rank in range(WORKERS)]


def deliver_of(job: Job) -> Callable[[WorkerPattern], Awaitable[str]]:
    return lambda one: job.links[one.worker.global_rank].deliver(encode_record(one))


def test_a_pattern_with_numbers_that_are_none_is_refused(tmp_path: Path) -> None:
    async def script(job: Job) -> None:
        window_id = await job.open(100)
        odd = msgspec.structs.replace(pattern(0, window_id), host_facts={"cpu": float("nan")}, duration_s=-1.0)
        assert await job.links[0].deliver(encode_record(odd)) == "refused"

    with_job(tmp_path, script)


@pytest.mark.parametrize("body", [b"?", b"\x92\xc4\x01?\xc4\x01?", encode_record(pattern(0))[:-9]])
def test_what_is_no_pattern_is_refused_with_one_error(tmp_path: Path, body: bytes) -> None:
    async def script(job: Job) -> None:
        assert job.links[0]._client is not None
        assert (await job.links[0]._client.post("/v1/patterns", content=body)).status_code == 400

    with_job(tmp_path, script)
