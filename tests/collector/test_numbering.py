"""Parts of patterns travel once a job: agents send numbers, and the collector asks for what it has never seen."""

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
from eroica.collector.numbering import ANSWER_S, MOST_PART_BYTES, Book
from eroica.collector.service import MAX_PARTS_BYTES, Collector
from eroica.collector.windows import Analyze
from eroica.errors import InputError
from eroica.model.pattern import FunctionKey, FunctionPattern, WorkerPattern
from eroica.model.verdict import Coverage, IterationTimes, Verdict
from eroica.model.worker import Worker
from eroica.settings import Settings
from eroica.wire.codec import encode_record
from eroica.wire.messages import (
    AgentReport,
    CollectorReply,
    NumberedPattern,
    OrderResult,
    PartsReply,
    PartsRequest,
    PatternReply,
    WorkerStatus,
)
from eroica.wire.parcels import from_parcel, pack_numbers, pack_parts, part_id, to_parcel, unpack_parts
from eroica.wire.version import PROTOCOL

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
        self.run, self.asked, self.texts, self.paths = run, 0, list[bytes](), list[str]()
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
        self.paths.append(request.url.path)
        if request.url.path == "/v1/parts" and not request.headers.get("x-odd"):
            sent = msgspec.msgpack.decode(request.content, type=PartsRequest)
            self.asked += len(sent.ids) // 16
            self.texts += unpack_parts(sent.texts) if sent.texts else ()

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
            if window_id in self.collector.windows.verdicts:
                return self.collector.windows.verdicts[window_id].summary
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


def test_parts_are_asked_for_once_a_job_and_only_numbers_travel_in_the_second_window(tmp_path: Path) -> None:
    async def script(job: Job) -> None:
        first = await job.open(100)
        sent = [pattern(rank, first) for rank in range(WORKERS)]
        assert set(await asyncio.gather(*map(deliver_of(job), sent))) == {"taken"}
        assert await job.verdict(first) == "4 of 30"
        parts = to_parcel(sent[0]).parts
        assert sorted(job.texts) == sorted(parts)  # each once, though four hosts have it
        assert job.asked == WORKERS * len(parts)
        job.asked, job.texts, job.paths = 0, [], []
        second = await job.open(1000)
        for rank in range(WORKERS):
            assert await job.links[rank].deliver(encode_record(pattern(rank, second))) == "taken"
        assert await job.verdict(second) == "4 of 30"
        assert not job.asked and not job.texts and job.paths.count("/v1/parcels") == WORKERS

    with_job(tmp_path, script)
    _, patterns, notes = read_patterns(open_window(tmp_path / "windows" / "2"))
    assert not notes
    assert list(patterns) == [from_parcel(to_parcel(pattern(rank, 2))) for rank in range(WORKERS)]


def deliver_of(job: Job) -> Callable[[WorkerPattern], Awaitable[str]]:
    return lambda one: job.links[one.worker.global_rank].deliver(encode_record(one))


def test_only_what_is_new_is_asked_for(tmp_path: Path) -> None:
    async def script(job: Job) -> None:
        window_id = await job.open(100)
        await job.links[0].deliver(encode_record(pattern(0, window_id)))
        job.asked, job.texts = 0, []
        await job.links[0].deliver(encode_record(pattern(0, window_id, functions=32)))
        assert job.asked == len(job.texts) == 2

    with_job(tmp_path, script)


def test_a_collector_that_is_started_again_asks_again_and_nothing_is_lost(tmp_path: Path) -> None:
    async def script(job: Job) -> None:
        first = await job.open(100)
        for rank in range(WORKERS):
            await job.links[rank].deliver(encode_record(pattern(rank, first)))
        job.start()
        job.texts = []
        again = await job.open(1000)
        for rank in range(WORKERS):
            assert await job.links[rank].deliver(encode_record(pattern(rank, again))) == "taken"
        assert await job.verdict(again) == "4 of 30"
        assert sorted(job.texts) == sorted(to_parcel(pattern(0, again)).parts)

    with_job(tmp_path, script)


def test_agents_of_both_versions_take_part_in_one_window(tmp_path: Path) -> None:
    async def script(job: Job) -> None:
        window_id = await job.open(100)
        job.links[0]._spoken = 1  # as if the collector were an earlier one
        for rank in range(WORKERS):
            assert await job.links[rank].deliver(encode_record(pattern(rank, window_id))) == "taken"
        assert job.paths.count("/v1/patterns") == 1 and job.paths.count("/v1/parcels") == WORKERS - 1
        assert await job.verdict(window_id) == "4 of 30"

    with_job(tmp_path, script)


def test_a_pattern_that_cannot_be_a_parcel_travels_whole(tmp_path: Path) -> None:
    async def script(job: Job) -> None:
        window_id = await job.open(100)
        odd = msgspec.structs.replace(pattern(0, window_id), host_facts={"cpu_count": float("nan")}, duration_s=-1.0)
        assert await job.links[0].deliver(encode_record(odd)) == "refused"  # the collector refuses it, in its own words
        assert job.paths[-1] == "/v1/patterns"

    with_job(tmp_path, script)


async def _ask(job: Job, request: PartsRequest) -> httpx.Response:
    assert job.links[0]._client is not None
    return await job.links[0]._client.post("/v1/parts", content=msgspec.msgpack.encode(request))


def test_another_part_than_the_one_that_was_asked_for_is_refused(tmp_path: Path) -> None:
    async def script(job: Job) -> None:
        reply = msgspec.msgpack.decode((await _ask(job, PartsRequest(ids=part_id(b"good")))).content, type=PartsReply)
        assert reply.wanted == (0,)
        answer = await _ask(job, PartsRequest(texts=pack_parts([b"wrong"])))
        assert answer.status_code == 400 and "nobody asked for" in answer.json()["error"]
        assert job.collector._book.lacks(reply.book, reply.numbers)

    with_job(tmp_path, script)


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        (bytes(MAX_PARTS_BYTES + 1), 413, "more than"),
        (b"\xc1", 400, "no PartsRequest"),
        (msgspec.msgpack.encode(PartsRequest(ids=b"short")), 400, "no ids"),
        (msgspec.msgpack.encode(PartsRequest(texts=b"no zlib")), 400, "header"),
        (msgspec.msgpack.encode(PartsRequest(texts=pack_parts([bytes(MOST_PART_BYTES + 1)]))), 400, "at most"),
    ],
)
def test_what_makes_no_sense_is_refused_with_one_error(tmp_path: Path, body: bytes, code: int, said: str) -> None:
    async def script(job: Job) -> None:
        assert job.links[0]._client is not None
        answer = await job.links[0]._client.post("/v1/parts", content=body, headers={"x-odd": "1"})
        assert answer.status_code == code and said in answer.json()["error"]

    with_job(tmp_path, script)


def test_a_parcel_that_makes_no_sense_is_refused_and_one_of_another_book_is_not_taken(tmp_path: Path) -> None:
    async def script(job: Job) -> None:
        client, parcel = job.links[0]._client, to_parcel(pattern(0))
        assert client is not None
        await job.links[0]._numbering.numbers(parcel.parts)
        book, count = job.links[0]._numbering.book, len(parcel.parts)
        numbers = pack_numbers(range(count))
        sent = NumberedPattern(book=book, parts=count, numbers=numbers, own=parcel.own)
        for change, code in (
            ({}, 200), ({"own": b"?"}, 400), ({"parts": count + 1}, 400), ({"numbers": b"?"}, 400), ({"book": 5}, 200),
            ({"numbers": pack_numbers([10**9] * count)}, 200), ({"numbers": pack_numbers([-1] * count)}, 200),
        ):  # fmt: skip
            body = msgspec.msgpack.encode(msgspec.structs.replace(sent, **change))
            answer = await client.post("/v1/parcels", content=body)
            assert answer.status_code == code
            if code == 200:
                assert msgspec.msgpack.decode(answer.content, type=PatternReply).unknown is bool(change)

    with_job(tmp_path, script)


def test_a_pattern_waits_for_a_part_that_another_agent_was_asked_for(tmp_path: Path) -> None:
    async def script(job: Job) -> None:
        window_id = await job.open(100)
        sent = pattern(1, window_id)
        parcel = to_parcel(sent)
        ids = b"".join(map(part_id, parcel.parts))
        await _ask(job, PartsRequest(ids=ids))  # and that agent takes its time
        delivering = asyncio.create_task(job.links[1].deliver(encode_record(sent)))
        await asyncio.sleep(0.2)
        assert not delivering.done() and not job.texts
        await _ask(job, PartsRequest(texts=pack_parts(parcel.parts)))
        assert await delivering == "taken" and len(job.texts) == len(parcel.parts)

    with_job(tmp_path, script)


def test_another_agent_is_asked_if_the_first_one_does_not_answer() -> None:
    book, ids = Book(), part_id(b"a") + part_id(b"b")
    assert book.look_up(0.0, ids) == ([0, 1], [0, 1])
    book.enter([b"b"])
    assert book.look_up(0.1, ids) == ([0, 1], []) and book.lacks(book.number, [0, 1])
    assert book.parts(book.number, [0, 1]) is None
    assert book.look_up(0.1 + ANSWER_S, ids) == ([0, 1], [0])
    book.enter([b"a", b"b"])
    assert book.parts(book.number, [1, 0]) == (b"b", b"a")


def test_a_full_book_is_followed_by_an_empty_one() -> None:
    book = Book(most_parts=3, most_bytes=10)
    book.look_up(0.0, part_id(b"a") + part_id(b"b"))
    old = book.number
    book.look_up(0.0, part_id(b"a") + part_id(b"c"))
    assert book.number == old
    book.look_up(0.0, part_id(b"a") + part_id(b"d"))
    assert book.number != old and book.parts(old, [0]) is None
    newer = book.number
    book.look_up(0.0, part_id(bytes(11)))
    book.enter([bytes(11)])
    assert book.number != newer
    with pytest.raises(InputError, match="no ids"):
        book.look_up(0.0, bytes(16 * 4))
