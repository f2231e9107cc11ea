"""The live page's routes: who is let in, what they are told, and that nobody can hold the collector up."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import pytest

from eroica.archive.forget import PAGE_FILE
from eroica.archive.store import Store
from eroica.collector import child_processes, live
from eroica.collector.child_processes import Pages, page_of
from eroica.collector.listening_sockets import Doors
from eroica.collector.live import sibling_link, siblings
from eroica.collector.service import Collector
from eroica.model.verdict import Verdict
from eroica.settings import Settings
from eroica.wire.address import Address, announce, page_link, read_address
from eroica.wire.messages import CollectorReply
from support.agents import Agents
from support.verdicts import plain

TOKEN = "t" * 20


class Job:
    """A collector with its sockets open, and the agents that report to it."""

    def __init__(self, run: Path, collector: Collector, url: str, client: httpx.AsyncClient) -> None:
        self.run, self.collector, self.url, self.client = run, collector, url, client
        self.agents = Agents(2, 2)
        self.left: list[asyncio.StreamWriter] = []

    async def report(self, seconds: float = 0.5) -> None:
        self.agents.advance(seconds)
        for host in range(self.agents.hosts):
            answer = await self.client.post(
                "/v1/report", content=self.agents.encoded(host), headers={"Authorization": f"Bearer {TOKEN}"}
            )
            assert answer.status_code == 200

    async def come_in(self) -> httpx.Response:
        return await self.client.get(f"/?token={TOKEN}")


def judge(job: str, order: object, settings: Settings) -> Verdict:
    return plain("healthy", "All is well.", job=job)


def with_job(tmp_path: Path, work: Callable[[Job], Awaitable[None]], **changed: Any) -> None:
    async def together() -> None:
        run = tmp_path / "run"
        run.mkdir(exist_ok=True)
        collector = Collector("j", Store(run), Settings(baseline_window=False, **changed), TOKEN, judge)
        doors = Doors(collector, "a")
        await doors.open()
        address = read_address(run, "a")
        assert address is not None
        async with httpx.AsyncClient(base_url=address.url, trust_env=False) as client:
            job = Job(run, collector, address.url, client)
            try:
                await work(job)
            finally:
                await asyncio.wait_for(doors.close(), 10)
                for writer in job.left:
                    writer.close()

    asyncio.run(together())


@contextlib.asynccontextmanager
async def following(client: httpx.AsyncClient, **headers: str) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """Events as they come, from who has the token or a cookie."""
    async with client.stream("GET", "/v1/events", headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        yield _events(answer.aiter_lines())


async def _events(lines: AsyncIterator[str]) -> AsyncIterator[dict[str, Any]]:
    event: dict[str, Any] = {}
    async for line in lines:
        name, _, value = line.partition(": ")
        if name == "data":
            event["data"] = json.loads(value)
        elif name:
            event[name] = value
        else:
            yield event
            event = {}


async def until(events: AsyncIterator[dict[str, Any]], *names: str) -> dict[str, Any]:
    """The next event of such a name."""
    while True:
        event = await asyncio.wait_for(anext(events), 10)
        if event["event"] in names:
            return event


# ---------------------------------------------------------------------- who is let in


def test_the_link_becomes_a_cookie_that_is_not_the_token(tmp_path: Path) -> None:
    async def work(job: Job) -> None:
        answer = await job.come_in()
        assert answer.status_code == 303 and answer.headers["location"] == "/"
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower() and TOKEN not in cookie
        page = await job.client.get("/")
        assert page.status_code == 200 and "<h1" in page.text
        assert page.headers["content-security-policy"].startswith("default-src 'none'")
        assert page.headers["cache-control"] == "no-store" and page.headers["referrer-policy"] == "no-referrer"
        assert page.headers["x-content-type-options"] == "nosniff"

    with_job(tmp_path, work)


def test_the_printed_link_opens_the_page_and_nothing_that_agents_may_do(tmp_path: Path) -> None:
    async def work(job: Job) -> None:
        address = read_address(job.run, "a")
        assert address is not None
        link = page_link(address)
        assert TOKEN not in link and address.page and address.page in link
        stranger = {"Authorization": f"Bearer {address.page}"}
        assert (await job.client.get("/v1/status", headers=stranger)).status_code == 401
        assert (await job.client.get(link)).status_code == 303 and (await job.client.get("/")).status_code == 200
        assert (await job.client.get("/v1/windows")).status_code == 200
        for method, path in (("POST", "report"), ("POST", "finish"), ("GET", "status"), ("POST", "open")):
            asked = await job.client.request(method, f"/v1/{path}", headers={"Origin": job.url})
            assert asked.status_code == 401
        assert not job.collector.windows.ended
        unknown = page_link(msgspec.structs.replace(address, page=""))  # of a host that only knows the token
        assert (await job.client.get(unknown)).status_code == 303

    with_job(tmp_path, work)


def test_cookies_of_other_programs_on_this_host_do_not_lock_anybody_out(tmp_path: Path) -> None:
    """Browsers send the cookies of all ports; `{` and `"` in one of them ends a strict parser."""

    async def work(job: Job) -> None:
        await job.come_in()
        ours = "; ".join(f"{name}={value}" for name, value in job.client.cookies.items())
        job.client.cookies.clear()
        for cookie in (
            f'other={{"a": [1, 2]}}; {ours}',
            f'x="; {ours}; y',
            f"{ours}; \N{LATIN SMALL LETTER E WITH ACUTE}=1",
        ):
            answer = await job.client.get("/", headers={"Cookie": cookie.encode("latin-1")})
            assert answer.status_code == 200, cookie
        for cookie in ("", ours[:-1], ours.replace("=", "", 1), 'x="' + "\\" * 12_000):
            assert (await job.client.get("/", headers={"Cookie": cookie})).status_code == 401, cookie

    with_job(tmp_path, work)


@pytest.mark.parametrize("path", ["/", "/?token=wrong", "/?token=", "/live/main.js", "/report", "/live/../v1/status"])
def test_without_the_token_a_plain_page_says_where_the_link_stands(tmp_path: Path, path: str) -> None:
    async def work(job: Job) -> None:
        answer = await job.client.get(path)
        assert answer.status_code == 401
        assert "eroica live" in answer.text or "collector.json" in answer.text
        assert "j" not in answer.headers.get("set-cookie", "")

    with_job(tmp_path, work)


@pytest.mark.parametrize("path", ["/v1/events", "/v1/windows", "/v1/windows/1/report", "/v1/workers/0", "/v1/jobs/x"])
def test_without_the_token_programs_get_an_error_they_can_read(tmp_path: Path, path: str) -> None:
    async def work(job: Job) -> None:
        for headers in ({}, {"Cookie": f"{job.collector.live.visitors.cookie}={TOKEN}"}, {"Cookie": "=;;\x7f"}):
            answer = await job.client.get(path, headers=headers)
            assert answer.status_code == 401 and answer.json()["error"]

    with_job(tmp_path, work)


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("evil.example", 421),
        ("evil.example:{port}", 421),
        ("127.0.0.1.evil.example", 421),
        ("127.0.0.1@evil.example", 421),
        ("", 421),
        ("[", 421),
        ("proxy.example", 303),
        ("localhost:9000", 303),
        ("[::1]:{port}", 303),
    ],
)
def test_only_our_own_names_are_answered(tmp_path: Path, host: str, code: int) -> None:
    """A page of another site that points its name at us (DNS rebinding) gets nothing, not even with the token."""

    async def work(job: Job) -> None:
        name = host.format(port=job.client.base_url.port)
        answer = await job.client.get(f"/?token={TOKEN}", headers={"Host": name})
        assert answer.status_code == code

    with_job(tmp_path, work, page_hosts="other, Proxy.example")


def test_a_window_opens_only_from_our_own_page_or_with_the_token(tmp_path: Path) -> None:
    async def work(job: Job) -> None:
        await job.report()
        await job.come_in()

        async def ask(body: str = "{}", **headers: str) -> httpx.Response:
            given = {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
            return await job.client.post("/v1/window", content=body, headers=given)

        assert (await ask()).status_code == 403  # no origin
        assert (await ask(origin="http://127.0.0.1:1")).status_code == 403  # another port of this host
        assert (await ask(origin="null")).status_code == 403  # a sandboxed report
        assert (await ask(origin=job.url, sec_fetch_site="cross-site")).status_code == 403
        assert (await ask(origin=job.url, content_type="text/plain")).status_code == 415  # a form
        assert (await ask(origin=job.url, body="x")).status_code == 400
        assert (await ask(origin=job.url, body='{"seconds": 1e9}')).status_code == 400
        assert (await ask(origin=job.url, body=" " * 5000)).status_code == 400
        assert job.collector.windows.window is None
        opened = await ask(origin=job.url, body='{"iterations": 5, "reason": "why \\u001b[2J"}')
        assert opened.status_code == 200 and opened.json()["window_id"] == 1
        await job.report()
        window = job.collector.windows.window
        assert window is not None and "\x1b" not in window.reason
        again = await ask(authorization=f"Bearer {TOKEN}")
        assert again.status_code == 409 and "window 1" in again.json()["refused"]

    with_job(tmp_path, work)


# ---------------------------------------------------------------------- what they are told


def test_events_tell_everything_once_then_what_changes(tmp_path: Path) -> None:
    async def work(job: Job) -> None:
        await job.report()
        await job.come_in()
        async with following(job.client) as events:
            assert (await until(events, "hello"))["data"]["resumed"] is False
            assert (await until(events, "status"))["data"]["workers"] == 4
            roster = (await until(events, "roster"))["data"]
            assert roster["hosts"] == ["node000", "node001"] and roster["rank"] == [0, 1, 2, 3]
            assert (await until(events, "workers"))["data"]["letters"] == "tttt"
            await job.report(2.0)
            moved = await until(events, "status")
            assert moved["data"]["iteration"] == job.agents.iteration
            await asyncio.sleep(1.1)
            await job.report(2.0)
            pace = await until(events, "pace")
            assert pace["data"]["news"]["job"] == "j"
            assert len(pace["data"]["news"]["mean_ms"]) == 1

    with_job(tmp_path, work)


def test_who_comes_back_is_told_what_was_missed_and_nothing_else(tmp_path: Path) -> None:
    async def work(job: Job) -> None:
        await job.report()
        await job.come_in()
        async with following(job.client) as events:
            while "id" not in (last := await anext(events)):  # at the end of what is told at once
                pass
        job.collector.windows.ledger.note("something new")
        async with following(job.client, **{"Last-Event-ID": last["id"]}) as events:
            assert (await until(events, "hello"))["data"]["resumed"] is True
            first = await until(events, "status", "roster", "workers", "notes", "pace")
            assert first["event"] == "notes" and first["data"] == ["something new"]
        for stranger in ("x.1.1", f"{last['id'].split('.')[0]}.999999.0", "..", "a" * 5000):
            async with following(job.client, **{"Last-Event-ID": stranger}) as events:
                assert (await until(events, "hello"))["data"]["resumed"] is False
                assert (await anext(events))["event"] == "status"

    with_job(tmp_path, work)


def test_a_window_and_its_verdict_come_and_the_stream_says_goodbye(tmp_path: Path) -> None:
    async def work(job: Job) -> None:
        await job.report()
        await job.come_in()
        async with following(job.client) as events:
            await until(events, "notes")
            await job.client.post("/v1/window", json={}, headers={"Origin": job.url})
            for _ in range(3):
                await job.report()
                job.agents.obey(CollectorReply(order=job.collector.windows.capturing.order))
            (job.run / "windows" / "1").mkdir(parents=True, exist_ok=True)
            (job.run / "windows" / "1" / "index.html").write_text("<p>drawn</p>")
            for rank in range(4):
                job.collector.windows.take_pattern(job.agents.pattern(rank))
                job.collector._start(job.collector.windows.tick(1e9))
            verdict = (await until(events, "verdict"))["data"]
            assert verdict["summary"] == "All is well." and verdict["report"] == "/v1/windows/1/report"
            job.collector.live.telling.close()
            assert (await until(events, "bye"))["data"]["run"] == str(job.run)
        report = await job.client.get("/v1/windows/1/report")
        assert report.text == "<p>drawn</p>" and "sandbox" in report.headers["content-security-policy"]
        assert (await job.client.get("/v1/windows/2/report")).status_code == 404
        assert (await job.client.get("/v1/windows")).json()[0]["verdict"] == "healthy"
        assert (await job.client.get("/v1/windows/1/verdict")).json()["summary"] == "All is well."
        assert (await job.client.get("/v1/workers/3")).json()[0]["status"]["worker"]["host"] == "node001"

    with_job(tmp_path, work)


def test_a_report_that_is_a_link_or_elsewhere_is_not_served(tmp_path: Path) -> None:
    async def work(job: Job) -> None:
        await job.come_in()
        (tmp_path / "secret").write_text("secret")
        (job.run / "windows" / "1").mkdir(parents=True)
        (job.run / "windows" / "1" / "index.html").symlink_to(tmp_path / "secret")
        for path in (
            "/v1/windows/1/report",
            "/v1/windows/..%2f..%2fsecret/report",
            "/live/..%2fpage.py",
            "/live/page.py",
        ):
            answer = await job.client.get(path)
            assert answer.status_code in (401, 404) and "secret" not in answer.text

    with_job(tmp_path, work)


# ---------------------------------------------------------------------- nobody holds it up


def test_readers_are_counted_and_leave_room_when_they_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_READERS", 1)

    async def work(job: Job) -> None:
        await job.come_in()
        async with following(job.client) as events:
            await until(events, "hello")
            answer = await job.client.get("/v1/events")
            assert answer.status_code == 503 and "close one" in answer.json()["error"]
        for _ in range(100):
            async with job.client.stream("GET", "/v1/events") as again:
                if again.status_code == 200:
                    return
            await asyncio.sleep(0.05)
        raise AssertionError("the place was never free again")

    with_job(tmp_path, work)


def test_who_stops_reading_is_hung_up_on_and_never_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "STUCK_S", 0.5)
    monkeypatch.setattr(live, "LOOK_S", 0.01)

    async def work(job: Job) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", job.client.base_url.port, limit=1024)
        head = f"GET /v1/events HTTP/1.1\r\nHost: c\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        writer.write(head.encode())
        await reader.readline()
        for number in range(3000):  # each of the notes is long, all of them are told again and again
            job.collector.windows.ledger.notes[:] = [f"{number} {'x' * 400}"] * 200
            await asyncio.sleep(0.005)
            if not job.collector.live.telling.readers:
                break
        await job.report()
        assert not job.collector.live.telling.readers, "it is still there"
        writer.close()

    with_job(tmp_path, work)


# ---------------------------------------------------------------------- the feed, siblings, restarts


def test_jobs_beside_this_one_are_shown_with_their_word(tmp_path: Path) -> None:
    mine, done, odd = (tmp_path / name for name in ("mine", "done", "<img src=x>"))
    for path in (mine, done, odd):
        path.mkdir(mode=0o700)
    Store(done).save_final(judge("d", None, Settings()))
    (odd / "verdict.json").write_text("{")
    (tmp_path / "link").symlink_to(done)
    for name in (b"no \xff text", b"two\nlines"):
        path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
        path.mkdir(mode=0o700)
        Store(path).save_final(judge("d", None, Settings()))
    found = {each.name: (each.verdict, each.running) for each in siblings(mine)}
    assert found == {"done": ("healthy", False), "<img src=x>": ("", False)}
    assert sibling_link(mine, "done") is None and sibling_link(mine, "../mine") is None


def test_a_job_beside_this_one_that_runs_has_a_link_only_where_its_collector_lives(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    for path in (mine, other):
        path.mkdir(mode=0o700)
    (other / "status.json").write_text("{}")
    address = Address(url="http://127.0.0.1:5", token=TOKEN, pid=os.getpid(), host=socket.gethostname())
    announce(other, address, socket.gethostname())
    assert sibling_link(mine, "other") == page_link(address)
    assert siblings(mine)[0].running
    announce(other, msgspec.structs.replace(address, pid=2**22 + 1), socket.gethostname())
    assert sibling_link(mine, "other") is None and not siblings(mine)[0].running


# ---------------------------------------------------------------------- pages of verdicts


VERDICT = plain("healthy", "Healthy: nothing ever looked wrong.", job="job")


async def drawn(pages, *windows):
    for window_id in windows:
        pages.judged(window_id, VERDICT)
    await pages.close(30)


def test_the_final_page_stands_in_the_run_directory(tmp_path):
    Store(tmp_path).save_final(VERDICT)
    (tmp_path / "log").mkdir()
    notes = []
    asyncio.run(drawn(Pages(tmp_path, notes.append), 0))
    assert notes == []
    assert b"Nothing ever looked wrong." in page_of(tmp_path).read_bytes()
    assert page_of(tmp_path).stat().st_mode & 0o077 == 0


def test_what_cannot_be_drawn_is_a_note_and_nothing_else(tmp_path):
    (tmp_path / "log").mkdir()
    notes = []
    asyncio.run(drawn(Pages(tmp_path, notes.append), 7))
    assert notes == ["the page of window 7 was not drawn; see log/pages.log"]
    assert not list(tmp_path.rglob(PAGE_FILE))


def test_however_many_pages_wait_the_final_one_comes_first(tmp_path, monkeypatch):
    asked = []

    async def draw(self, window_id):
        asked.append(window_id)

    monkeypatch.setattr(Pages, "_draw", draw)
    asyncio.run(drawn(Pages(tmp_path, lambda note: None), *range(1, 151), 0))
    assert asked[0] == 0 and 0 < len(asked) < 150


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the drawing goes on, which `subprocess` finds odd
def test_closing_does_not_wait_for_a_drawing_that_hangs(tmp_path, monkeypatch):
    """Whatever the drawing does, the collector ends; the drawing ends by itself."""
    monkeypatch.setattr(
        child_processes, "isolated", lambda *_, **__: [sys.executable, "-c", "import time; time.sleep(600)"]
    )
    here = psutil.Process()
    before = {child.pid for child in here.children()}

    async def close_soon():
        pages = Pages(tmp_path, lambda note: None)
        pages.judged(0, VERDICT)
        await asyncio.sleep(0.1)
        await pages.close(0.1)

    asyncio.run(close_soon())
    gc.collect()
    (drawing,) = [child for child in here.children() if child.pid not in before]
    assert drawing.status() != psutil.STATUS_ZOMBIE  # it is still at it
    drawing.kill()
    drawing.wait()
