"""Patterns go from agents to the collector."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import msgspec
import pytest

from eroica.agent.home import CollectorLink
from eroica.archive.forget import BUNDLE_FILE
from eroica.archive.load import open_window, read_patterns
from eroica.archive.store import Store
from eroica.collector import arrivals
from eroica.collector.arrivals import head_in
from eroica.collector.baseline import disturbance
from eroica.collector.ledger import read_history
from eroica.collector.service import Collector
from eroica.collector.windows import Analyze
from eroica.model.pattern import FunctionKey, FunctionPattern, Neighbor, WorkerPattern
from eroica.model.verdict import Verdict
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
from support.verdicts import plain

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
    return plain("healthy", f"{len(order.patterns)} of {len(names)}", job=job)


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


def deliver_of(job: Job) -> Callable[[WorkerPattern], Awaitable[str]]:
    return lambda one: job.links[one.worker.global_rank].deliver(encode_record(one))


def test_a_collector_that_is_killed_inside_a_window_loses_nothing_that_it_has_taken(tmp_path: Path) -> None:
    async def script(job: Job) -> None:
        window_id = await job.open(100)
        for rank in (0, 2):
            assert await deliver_of(job)(pattern(rank, window_id)) == "taken"
        file = tmp_path / "windows" / str(window_id) / "patterns" / BUNDLE_FILE
        with file.open("ab") as cut:
            cut.write(b"\x01\x03\x00\x00\x00\xff\x07")
        job.start()
        job.collector.resume(read_history(tmp_path, "was ended by SIGKILL"))
        assert not job.collector.windows.tick(job.collector.clock()), "nobody is missed before he can have reported"
        told = await job.tell(510, OrderResult(window_id=window_id, status="done", kind="window"))
        assert told.order is not None and (told.order.window_id, told.order.kind) == (window_id, "window")
        for rank in (1, 3):
            assert await deliver_of(job)(pattern(rank, window_id)) == "taken"
        assert await job.verdict(window_id) == "4 of 30"
        assert not file.exists() and len(list(file.parent.glob("*.pattern"))) == WORKERS

    with_job(tmp_path, script)


def test_a_worker_whose_pattern_is_damaged_is_left_out_with_the_reason(tmp_path: Path) -> None:
    seen: list[Analyze] = []

    def keep(job: str, order: Analyze, settings: Settings) -> Verdict:
        seen.append(order)
        return judge(job, order, settings)

    async def script(job: Job) -> None:
        job.collector._analysis = keep
        window_id = await job.open(100)
        for rank in range(WORKERS):
            if rank == WORKERS - 1:  # the last one has not come when a disk damages another one
                file = tmp_path / "windows" / str(window_id) / "patterns" / BUNDLE_FILE
                data = bytearray(file.read_bytes())
                data[-9] ^= 1
                file.write_bytes(data)
            assert await deliver_of(job)(pattern(rank, window_id)) == "taken"
        assert await job.verdict(window_id) == "3 of 30"

    with_job(tmp_path, script)
    assert [one.worker.global_rank for one in seen[0].patterns] == [0, 1, 3]
    (note,) = seen[0].notes
    assert note.startswith("worker 2: ") and "damaged" in note


def test_many_workers_keep_one_file_and_few_get_one_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(job: Job) -> None:
        for at, few in ((100, WORKERS - 1), (1000, WORKERS)):
            monkeypatch.setattr(arrivals, "FEW_WORKERS", few)
            window_id = await job.open(at)
            for rank in range(WORKERS):
                await deliver_of(job)(pattern(rank, window_id))
            assert await job.verdict(window_id) == "4 of 30"

    with_job(tmp_path, script)
    names = [sorted(path.name for path in tmp_path.glob(f"windows/{one}/patterns/*")) for one in (1, 2)]
    assert names == [[BUNDLE_FILE], [f"{rank}.pattern" for rank in range(WORKERS)]]
    for window_id in (1, 2):
        _, found, notes = read_patterns(open_window(tmp_path / "windows" / str(window_id)))
        assert not notes
        assert list(found) == [pattern(rank, window_id) for rank in range(WORKERS)]


def test_a_disk_that_takes_nothing_costs_the_files_and_not_the_verdict(tmp_path: Path) -> None:
    async def script(job: Job) -> None:
        window_id = await job.open(100)
        (tmp_path / "windows" / str(window_id) / "patterns").write_bytes(b"in the way")
        for rank in range(WORKERS):
            assert await deliver_of(job)(pattern(rank, window_id)) == "taken"
        assert await job.verdict(window_id) == "4 of 30"
        assert any("could not write into" in note for note in job.collector.windows.ledger.notes)
        assert not job.collector._arrivals._unwritten

    with_job(tmp_path, script)


def test_a_head_tells_whether_others_disturbed_its_window_and_that_a_device_was_traced() -> None:
    facts = {"cores_outside": 30.0, "run_queue_wait": 0.5, "cpu_count": 32.0, "load": 40.0}
    beside = tuple(Neighbor(name=f"other{at}", pid=at, cpu_cores=float(at)) for at in range(1, 9))
    whole = msgspec.structs.replace(pattern(0), host_facts=facts, neighbors=beside, has_accelerator=True)
    head = head_in(encode_record(whole))
    assert disturbance([head]) == disturbance([whole]) != "" and head.has_accelerator
    assert len(head.neighbors) < len(beside) and head.host_facts.keys() < facts.keys()
