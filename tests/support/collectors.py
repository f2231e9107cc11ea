"""A collector in process, which hears what agents say without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec

from eroica.archive.store import Store
from eroica.collector.ledger import read_history
from eroica.collector.service import Collector
from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import Verdict
from eroica.model.worker import Worker
from eroica.settings import Settings
from eroica.wire.messages import AgentReport, CollectorReply, FinishRequest, JobStatus, WorkerStatus
from support.verdicts import plain

TOKEN = "secret"
Script = Callable[[Collector, httpx.AsyncClient], Awaitable[None]]


def seen(job: str, order: Any, settings: Settings) -> Verdict:
    """An analysis that says how many workers it saw."""
    return plain("healthy", f"{len(order.patterns)} seen", job=job)


def with_collector(run: Path, script: Script, analysis: Any = seen, resume: str = "", **more: Any) -> None:
    """Run a script with a collector of a run directory; `resume` says what became of the one before."""

    async def go() -> None:
        collector = Collector("j", Store(run), Settings(baseline_window=False), TOKEN, analysis, **more)
        if resume:
            collector.resume(read_history(run, resume))
        transport = httpx.ASGITransport(app=collector.application())
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://c", headers=headers) as client:
            await script(collector, client)

    asyncio.run(go())


async def tell(client: httpx.AsyncClient, *workers: WorkerStatus, host: str = "h") -> CollectorReply:
    """Report as an agent."""
    answer = await post(client, "/v1/report", AgentReport(host=host, pid=1, workers=workers))
    assert answer.status_code == 200, answer.text
    return msgspec.msgpack.decode(answer.content, type=CollectorReply)


async def post(client: httpx.AsyncClient, path: str, body: object) -> httpx.Response:
    """Post a record."""
    return await client.post(path, content=msgspec.msgpack.encode(body))


async def shown(client: httpx.AsyncClient) -> JobStatus:
    """The job's status."""
    return msgspec.json.decode((await client.get("/v1/status")).content, type=JobStatus)


async def finish(collector: Collector, client: httpx.AsyncClient, exit_status: int | None = None) -> None:
    """Tell that the command is over, and wait for the collector's end."""
    await post(client, "/v1/finish", FinishRequest(exit_status=exit_status))
    await asyncio.wait_for(collector.run(0.01), 5)


async def until(condition: Callable[[], object]) -> None:
    """Wait until something is true."""
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came")


def worker(rank: int = 0, **more: Any) -> Worker:
    """One of two workers of a host."""
    return Worker(**{"global_rank": rank, "pid": 7 + rank, "host": "h", "world_size": 2, **more})


def status(rank: int = 0, **more: Any) -> WorkerStatus:
    """A worker that trains."""
    return WorkerStatus(**{"worker": worker(rank), "state": "steady", "iteration": 100, "current_s": 0.1, **more})


def pattern(**more: Any) -> WorkerPattern:
    """What came of a worker, without rows."""
    given = {
        "worker": worker(), "window_id": 1, "first_iteration": 1, "last_iteration": 2, "duration_s": 0.1,
        "iteration_us": b"", "wait_us": b"", "functions": (),
    }  # fmt: skip
    return WorkerPattern(**{**given, **more})
