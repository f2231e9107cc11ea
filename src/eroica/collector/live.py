"""The live page, its events, and the JSON interface to open a window: routes of the collector for people's browsers.

`access` says who may see them. Readers are sent the state of the job as server-sent events. While nobody reads, nothing
is computed. While somebody does, one task looks at the job a few times a second and encodes what has changed, once for
all readers (`Telling`); each reader is one loop that sends what it has not seen yet. Whoever has seen everything up to
version 41 gets each topic that has changed since, once, as it is now. So a slow reader costs no memory and never sees a
backlog, and one that comes back later is told only what it missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from eroica.collector.access import Visitors, body_of, with_headers
from eroica.collector.child_processes import page_of
from eroica.collector.intake import clean_request
from eroica.errors import InputError
from eroica.model.words import clean, sentence
from eroica.views.live_page import ASSETS, REPORT_POLICY, asset, draw_page, job_now, verdict_now, window_now, worker_now
from eroica.wire.address import endpoint_of, is_loopback, page_link, read_address
from eroica.wire.codec import decode_json
from eroica.wire.messages import ProfileRequest, WindowLine
from eroica.wire.places import belongs_to_us, host_name, read_private

_MOST_SEEN, _MOST_SHOWN = 500, 20
_MOST_BYTES = 8_000_000
if TYPE_CHECKING:
    from eroica.collector.service import Collector

log = logging.getLogger("eroica.collector")
STUCK_S = 30.0
"""A reader that takes nothing for so long is hung up on, s."""
BEAT_S = 5.0
"""Something is sent at least so often, so that a page knows that it is not cut off, s."""
LOOK_S = 0.25
"""Pause between two looks at the job while somebody reads, s."""
MOST_CORE = 0.1
"""Looking may take this share of one core: a very large job is looked at more seldom."""
MOST_WINDOWS = 100
_SIBLINGS_S = 5.0


class _Word(msgspec.Struct, frozen=True):
    """Fields that are read of a verdict."""

    verdict: str
    summary: str


class Sibling(msgspec.Struct, frozen=True, kw_only=True):
    """Another job.

    Attributes:
        name: Of its run directory.
        running: Its collector lives on this host.
        verdict: Its final word, "" before there is one.
        summary: The sentence to it.
        changed: When its directory was last written to, seconds since 1970.
    """

    name: str
    running: bool = False
    verdict: str = ""
    summary: str = ""
    changed: float = 0.0


def siblings(run: Path) -> tuple[Sibling, ...]:
    """Run directories beside `run`, the latest first, with the verdicts that can be read."""
    near: list[Path] = []
    with contextlib.suppress(OSError), os.scandir(run.parent) as entries:
        near = [Path(entry.path) for entry, _ in zip(entries, range(_MOST_SEEN), strict=False) if entry.is_dir()]
    found = [_seen(path) for path in near if path != run and path.name.isprintable() and belongs_to_us(path)]
    latest = sorted(filter(None, found), key=lambda one: (one.running, one.changed), reverse=True)[:_MOST_SHOWN]
    return tuple(one if one.running else _judged(run.parent / one.name, one) for one in latest)


def sibling_link(run: Path, name: str) -> str | None:
    """The page of the job beside `run`; None if it has none that could be opened here."""
    path = run.parent / name
    return None if Path(name).name != name or path == run or not belongs_to_us(path) else _link(path)


def _link(path: Path) -> str | None:
    address = read_address(path)
    if address is None or not is_loopback(endpoint_of(address.url).host):
        return None
    lives = address.host in ("", host_name(os.environ)) and Path(f"/proc/{address.pid}").exists()
    return page_link(address) if lives else None


def _seen(path: Path) -> Sibling | None:
    """A run directory without its verdict; None if it is none. Only that of the latest ones is worth reading."""
    for name in ("status.json", "verdict.json"):
        with contextlib.suppress(OSError, InputError):
            changed = (path / name).lstat().st_mtime
            return Sibling(name=path.name, running=_link(path) is not None, changed=changed)
    return None


def _judged(path: Path, sibling: Sibling) -> Sibling:
    """Add its final verdict to a job, if there is one that can be read."""
    with contextlib.suppress(OSError, InputError):
        word = decode_json(read_private(path / "verdict.json", _MOST_BYTES), _Word)
        return msgspec.structs.replace(sibling, verdict=clean(word.verdict, 20), summary=sentence(word.summary))
    return sibling


class Position(NamedTuple):
    """Versions up to which a reader has seen everything.

    Attributes:
        version: Of the feed.
        pace: Of the iteration times (`eroica.collector.pace`).
    """

    version: int = 0
    pace: int = 0


def frame(event: str, data: bytes) -> bytes:
    """One server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (event.encode(), data)


class Telling:
    """Readers of one collector's page, and the task that tells them of changes.

    Args:
        collector: The job's.

    Attributes:
        readers: How many there are.
    """

    def __init__(self, collector: Collector) -> None:
        self.readers = 0
        self._collector = collector
        self._epoch = secrets.token_hex(4)  # names this collector's life; positions of another one mean nothing here
        self._version = 0
        self._topics: dict[str, tuple[int, bytes]] = {}
        self._pace: dict[int, tuple[int, bytes]] = {}
        self._reports: set[int] = set()
        self._news = asyncio.Event()
        self._closed = False
        self._looking: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Tell the readers how it ended, and let them go."""
        self._closed = True
        if self.readers:
            self.look()
        if self._looking is not None:
            self._looking.cancel()

    async def follow(self, last_id: str = "") -> AsyncGenerator[bytes, None]:
        """Events after one of this id, else all there are, until the collector ends or the reader goes."""
        position = self._position(last_id)
        self.look()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._keep_looking())
        hello = {"epoch": self._epoch, "resumed": position is not None, "now": time.time()}
        yield frame("hello", msgspec.json.encode(hello))
        at, news = position or Position(), self._news
        while True:
            new, events = self._since(at)
            if events:
                yield events
            elif not self._closed:
                try:
                    await asyncio.wait_for(news.wait(), BEAT_S)
                except asyncio.TimeoutError:  # not the same as TimeoutError before Python 3.11
                    yield frame("beat", msgspec.json.encode({"now": time.time()}))
            if self._closed and not events:
                yield frame("bye", msgspec.json.encode({"run": str(self._collector.run_directory)}))
                return
            at, news = new, self._news

    def _position(self, event_id: str) -> Position | None:
        """Return the position of a reader that gives this id; None if that is none of ours."""
        found = re.fullmatch(r"([0-9a-f]+)\.([0-9]{1,15})\.([0-9]{1,15})", event_id)
        if found is None or found[1] != self._epoch or int(found[2]) > self._version:
            return None
        return Position(int(found[2]), int(found[3]))

    def _since(self, at: Position) -> tuple[Position, bytes]:
        pace, stretches = self._pace_since(at.pace)
        new = Position(self._version, pace)
        events = [framed for version, framed in sorted(self._topics.values()) if version > at.version]
        events += [stretches] if stretches else []
        if events:  # the line in front of an event: `Last-Event-ID` after it
            events[-1] = f"id: {self._epoch}.{new.version}.{new.pace}\n".encode() + events[-1]
        return new, b"".join(events)

    def _pace_since(self, version: int) -> tuple[int, bytes]:
        """Iteration times since then, encoded once for all readers who are equally far."""
        if version not in self._pace:
            now = self._collector.pace.since(version)
            news = frame("pace", msgspec.json.encode(now)) if now.version != version else b""
            self._pace[version] = now.version, news
        return self._pace[version]

    async def _keep_looking(self) -> None:
        beside = 0.0
        while self.readers and not self._closed:
            if time.monotonic() - beside >= _SIBLINGS_S:
                others = await asyncio.to_thread(siblings, self._collector.run_directory)
                self._put("jobs", "jobs", others)
                beside = time.monotonic()
            began = time.thread_time()
            self.look()
            await asyncio.sleep(max(LOOK_S, (time.thread_time() - began) / MOST_CORE))

    def look(self) -> None:
        """Work out what has changed, and wake the readers."""
        self._pace.clear()
        collector = self._collector
        status, verdicts, final = collector.status(), collector.windows.ledger.verdicts, collector.final
        heard = job_now(status, lambda host: collector.windows.roll.hears(host, collector.clock()))
        for name, event in heard.items():
            self._put(name, name, event)
        self._put("notes", "notes", status.notes)
        for line in status.windows[-MOST_WINDOWS:]:
            report = self.report_of(line)
            self._put(f"window {line.window_id}", "window", window_now(line, report))
            verdict = verdicts.get(line.window_id)
            if verdict is not None:
                self._put(f"verdict {line.window_id}", "verdict", verdict_now(line.window_id, verdict, report))
        for kind in ("window ", "verdict "):
            names = [name for name in self._topics if name.startswith(kind)]
            for name in names[: max(len(names) - MOST_WINDOWS, 0)]:  # the oldest
                del self._topics[name]
        if final is not None:
            report = "/report" if (self._collector.run_directory / "index.html").is_file() else ""
            self._put("final", "final", verdict_now(0, final, report))
        self._news.set()
        self._news = asyncio.Event()

    def _put(self, topic: str, event: str, record: object) -> None:
        """Say what a topic is now; several topics may share an event. Nothing happens if it was told before."""
        framed = frame(event, msgspec.json.encode(record))
        _, known = self._topics.get(topic, (0, b""))
        if known != framed:
            self._version += 1
            self._topics[topic] = self._version, framed

    def report_of(self, line: WindowLine) -> str:
        """Path of a window's report; "" before there is one."""
        if line.window_id not in self._reports:
            if not line.verdict or not page_of(self._collector.run_directory, line.window_id).is_file():
                return ""
            self._reports.add(line.window_id)
        return f"/v1/windows/{line.window_id}/report"


class Stream(StreamingResponse):
    """Server-sent events to one reader; a stuck reader is hung up on."""

    def __init__(self, telling: Telling, last_id: str, hang_up: Callable[[], None] | None) -> None:
        self._events = telling.follow(last_id)
        super().__init__(self._events, media_type="text/event-stream")
        self._telling = telling
        self._hang_up = hang_up
        telling.readers += 1  # now: before the first event is asked for, others may come

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._telling.readers -= 1

    async def stream_response(self, send: Send) -> None:
        """Send until the reader goes, or takes nothing for long."""

        async def patiently(message: Message) -> None:
            await asyncio.wait_for(send(message), STUCK_S)

        try:
            await super().stream_response(patiently)
        except asyncio.TimeoutError:
            log.info("a page took nothing for %.0f s; hung up", STUCK_S)
            if self._hang_up is not None:
                self._hang_up()
        finally:
            await self._events.aclose()


MAX_READERS = 32
"""Pages and programs that follow the events at the same time."""
_MOST_REPORT_BYTES = 64_000_000
Handler = Callable[[Request], Awaitable[Response]]


class Live:
    """The pages of one collector.

    Args:
        collector: The job's.
        page: What the link carries; default: made from the token.

    Attributes:
        visitors: Who may see the pages.
        telling: Who follows them.
    """

    def __init__(self, collector: Collector, page: str) -> None:
        names = (name.strip() for name in collector.settings.page_hosts.split(","))
        self.visitors = Visitors(collector.token, frozenset(name for name in names if name), page)
        self._collector = collector
        self.telling = Telling(collector)

    def routes(self) -> list[Route]:
        """List the routes for `Collector.application`."""
        return [
            Route("/", _page(self._whole), methods=["GET"]),
            Route("/live/{name}", _page(self._asset), methods=["GET"]),
            Route("/report", _page(self._report), methods=["GET"]),
            Route("/v1/events", _page(self._events), methods=["GET"]),
            Route("/v1/window", _page(self._open_window), methods=["POST"]),
            Route("/v1/windows", _page(self._windows), methods=["GET"]),
            Route("/v1/windows/{window_id:int}/report", _page(self._report), methods=["GET"]),
            Route("/v1/windows/{window_id:int}/verdict", _page(self._verdict), methods=["GET"]),
            Route("/v1/workers/{rank:int}", _page(self._worker), methods=["GET"]),
            Route("/v1/jobs/{name}", _page(self._sibling), methods=["GET"]),
        ]

    # ------------------------------------------------------------------ pages

    async def _whole(self, request: Request) -> Response:
        one = self._collector
        page = draw_page(one.status(), one.final, one.run_directory, one.settings.window_s)
        return Response(page, media_type="text/html; charset=utf-8")

    async def _asset(self, request: Request) -> Response:
        kind = ASSETS.get(request.path_params["name"])
        if kind is None:
            return _missing("there is no such file")
        return Response(asset(request.path_params["name"]), media_type=kind)

    async def _report(self, request: Request) -> Response:
        path = page_of(self._collector.run_directory, request.path_params.get("window_id", 0))
        try:
            page = await asyncio.to_thread(read_private, path, _MOST_REPORT_BYTES)
        except OSError:
            return _missing("there is no report yet; it is drawn when the verdict stands")
        headers = {"content-security-policy": REPORT_POLICY}
        return Response(page, media_type="text/html; charset=utf-8", headers=headers)

    async def _sibling(self, request: Request) -> Response:
        """Redirect to another job's page; its token is only for readers on this host."""
        link, name = None, request.path_params["name"]
        if request.client is not None and is_loopback(request.client.host):
            link = await asyncio.to_thread(sibling_link, self._collector.run_directory, name)
        return RedirectResponse(link, status_code=303) if link else _missing("that job has no page here")

    # ------------------------------------------------------------------ JSON

    async def _open_window(self, request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return JSONResponse({"error": "the body must be application/json, as in {}"}, status_code=415)
        try:
            asked = clean_request(msgspec.json.decode(await body_of(request) or b"{}", type=ProfileRequest))
        except (InputError, ValueError, RecursionError) as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        answer = self._collector.windows.asked(self._collector.clock(), asked)
        self.telling.look()
        return _json(answer, 409 if answer.refused else 200)

    async def _windows(self, request: Request) -> Response:
        lines = self._collector.status().windows
        return _json([window_now(line, self.telling.report_of(line)) for line in lines])

    async def _verdict(self, request: Request) -> Response:
        verdict = self._collector.windows.ledger.verdicts.get(request.path_params["window_id"])
        return _missing("there is no verdict of this window") if verdict is None else _json(verdict)

    async def _worker(self, request: Request) -> Response:
        rank, roll, now = request.path_params["rank"], self._collector.windows.roll, self._collector.clock()
        found = [each for each in self._collector.status().workers if each.worker.global_rank == rank]
        records = [worker_now(each, roll.hears(each.worker.host, now)) for each in found]
        return _json(records) if records else _missing(f"there is no worker {rank}")

    async def _events(self, request: Request) -> Response:
        if self.telling.readers >= MAX_READERS:
            error = f"{MAX_READERS} pages follow this job already; close one"
            return JSONResponse({"error": error}, status_code=503, headers={"retry-after": "10"})
        last = request.headers.get("last-event-id") or request.query_params.get("after", "")
        return Stream(self.telling, last, request.scope.get("eroica.hang_up"))


def _page(handler: Handler) -> Handler:
    """A route of pages for browsers."""

    async def answered(request: Request) -> Response:
        return with_headers(await handler(request))

    return answered


def _json(record: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(record), status_code=status, media_type="application/json")


def _missing(why: str) -> Response:
    return JSONResponse({"error": why}, status_code=404)
