"""Send the live page's readers the state of the job, as server-sent events.

While nobody reads, nothing is computed. While somebody does, one task looks at the job a few times a second and encodes
what has changed, once for all readers (`feed`); each reader is one loop that sends what it has not seen yet.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from eroica.collector.live.feed import Feed, Position, frame
from eroica.collector.live.siblings import siblings
from eroica.collector.pace import PaceUpdate
from eroica.model.communication import DelayMatrix
from eroica.model.verdict import Verdict
from eroica.settings import Settings
from eroica.views.live_page import job_now, verdict_now, window_now
from eroica.wire.messages import JobStatus, ProfileAnswer, ProfileRequest, WindowLine

log = logging.getLogger("eroica.collector")

STUCK_S = 30.0
"""A reader that takes nothing for so long is hung up on, s."""
BEAT_S = 5.0
"""Something is sent at least so often, so that a page knows that it is not cut off, s."""
LOOK_S = 0.25
"""Pause between two looks at the job while somebody reads, s."""
MOST_CORE = 0.1
"""Looking may take this share of one core: a very large job is looked at more seldom."""
WAYS_S = 1.0
"""Pause between two matrices of delays, s."""
MOST_WINDOWS = 100
_SIBLINGS_S = 5.0


@dataclass(frozen=True)
class Shown:
    """State of a job for its page; the functions return it as it is now."""

    job: str
    run: Path
    settings: Settings
    status: Callable[[], JobStatus]
    verdicts: Callable[[], Mapping[int, Verdict]]
    final: Callable[[], Verdict | None]
    pace: Callable[[int], PaceUpdate]
    heard: Callable[[str], bool]
    ask: Callable[[ProfileRequest], ProfileAnswer]
    ways: Callable[[], DelayMatrix | None] = lambda: None


def report_path(run: Path, window_id: int) -> Path:
    """Path of the report of a window once it is drawn."""
    return run / "windows" / str(window_id) / "index.html"


class Telling:
    """Readers of one collector's page, and the task that tells them of changes.

    Args:
        shown: The job.

    Attributes:
        readers: How many there are.
    """

    def __init__(self, shown: Shown) -> None:
        self.readers = 0
        self._shown = shown
        self._feed = Feed(secrets.token_hex(4))
        self._pace: dict[int, tuple[int, bytes]] = {}
        self._reports: set[int] = set()
        self._news = asyncio.Event()
        self._closed = False
        self._ways_at = float("-inf")
        self._looking: asyncio.Task[None] | None = None

    @property
    def version(self) -> int:
        """Version of the feed: the number of changes while a reader looked."""
        return self._feed.version

    def close(self) -> None:
        """Tell the readers how it ended, and let them go."""
        if self.readers:
            self.look()
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
        self.wake()

    async def follow(self, last_id: str = "") -> AsyncGenerator[bytes, None]:
        """Events after one of this id, else all there are, until the collector ends or the reader goes."""
        self.readers += 1
        position = self._feed.position(last_id)
        try:
            self._start_looking()
            hello = {"epoch": self._feed.epoch, "resumed": position is not None, "now": time.time()}
            yield frame("hello", msgspec.json.encode(hello))
            at, news = position or Position(), self._news
            while True:
                new, events = self._since(at)
                if events:
                    yield events
                elif not self._closed:
                    beat = await self._wait(news)
                    if beat:
                        yield frame("beat", msgspec.json.encode({"now": time.time()}))
                if self._closed and not events:
                    yield frame("bye", msgspec.json.encode({"run": str(self._shown.run)}))
                    return
                at, news = new, self._news
        finally:
            self.readers -= 1

    async def _wait(self, news: asyncio.Event) -> bool:
        """Wait until there is news, or return True when it is time for a sign of life."""
        try:
            await asyncio.wait_for(news.wait(), BEAT_S)
        except asyncio.TimeoutError:  # not the same as TimeoutError before Python 3.11
            return True
        return False

    def _since(self, at: Position) -> tuple[Position, bytes]:
        pace, stretches = self._pace_since(at.pace)
        new = Position(self._feed.version, pace)
        events = [*self._feed.since(at.version), *([stretches] if stretches else [])]
        if events:
            events[-1] = self._feed.identify(new) + events[-1]
        return new, b"".join(events)

    def _pace_since(self, version: int) -> tuple[int, bytes]:
        """Iteration times since then, encoded once for all readers who are equally far."""
        now = self._shown.pace(version) if version not in self._pace else None
        if now is not None:
            news = frame("pace", msgspec.json.encode(now)) if now.version != version else b""
            self._pace[version] = now.version, news
        return self._pace[version]

    def _start_looking(self) -> None:
        self.look()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._keep_looking())

    async def _keep_looking(self) -> None:
        beside = 0.0
        while self.readers and not self._closed:
            if time.monotonic() - beside >= _SIBLINGS_S:
                others = await asyncio.to_thread(siblings, self._shown.run)
                self._feed.put("jobs", "jobs", msgspec.json.encode(others))
                beside = time.monotonic()
            began = time.thread_time()
            self.look()
            self.wake()
            await asyncio.sleep(max(LOOK_S, (time.thread_time() - began) / MOST_CORE))

    def wake(self) -> None:
        """Readers send what is new."""
        self._news.set()
        self._news = asyncio.Event()

    def look(self) -> None:
        """Put into the feed what has changed."""
        self._pace.clear()
        status, verdicts, final = self._shown.status(), self._shown.verdicts(), self._shown.final()
        put, encode = self._feed.put, msgspec.json.encode
        for name, event in job_now(status, self._shown.heard).items():
            put(name, name, encode(event))
        if time.monotonic() - self._ways_at >= WAYS_S and (ways := self._shown.ways()) is not None:
            self._ways_at = time.monotonic()
            put("ways", "ways", encode(ways))
        put("notes", "notes", encode(status.notes))
        for line in status.windows[-MOST_WINDOWS:]:
            report = self.report_of(line)
            put(f"window {line.window_id}", "window", encode(window_now(line, report)))
            verdict = verdicts.get(line.window_id)
            if verdict is not None:
                put(f"verdict {line.window_id}", "verdict", encode(verdict_now(line.window_id, verdict, report)))
        self._feed.keep("window ", MOST_WINDOWS)
        self._feed.keep("verdict ", MOST_WINDOWS)
        if final is not None:
            report = "/report" if (self._shown.run / "index.html").is_file() else ""
            put("final", "final", encode(verdict_now(0, final, report)))

    def report_of(self, line: WindowLine) -> str:
        """Path of a window's report; "" before there is one."""
        if line.window_id not in self._reports:
            if not line.verdict or not report_path(self._shown.run, line.window_id).is_file():
                return ""
            self._reports.add(line.window_id)
        return f"/v1/windows/{line.window_id}/report"


class Stream(StreamingResponse):
    """Server-sent events to one reader; a stuck reader is hung up on."""

    def __init__(
        self, events: AsyncGenerator[bytes, None], hang_up: Callable[[], None] | None, ended: Callable[[], None]
    ) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._ended = ended
        self._events = events
        self._hang_up = hang_up

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()

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
