"""The collector's shell: HTTP in, `Windows` in the middle, analysis in a thread, files out."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from eroica.collector.history import final_verdict, stamped
from eroica.collector.store import Store, write_json
from eroica.collector.windows import Analyze, Windows
from eroica.errors import EroicaError, InputError
from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import Verdict
from eroica.settings import Settings
from eroica.wire.codec import decode_record
from eroica.wire.messages import AgentReport, CollectorReply, ProfileRequest, SummaryFailure

log = logging.getLogger("eroica.collector")

MAX_REPORT_BYTES = 2_000_000
MAX_PATTERN_BYTES = 256_000
MessagePack = "application/msgpack"
Message = TypeVar("Message", bound=msgspec.Struct)
Analysis = Callable[[str, Analyze, Settings], Verdict]


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Collector:
    """One job's collector, without its socket.

    Args:
        job: Name of the job.
        store: Its run directory.
        settings: Tunables.
        token: What every request must carry.
        analysis: Turns a window's patterns into a verdict; runs in a thread.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        job: str,
        store: Store,
        settings: Settings,
        token: str,
        analysis: Analysis,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.windows = Windows(job, settings)
        self.finished = asyncio.Event()
        self.final: Verdict | None = None
        self._job = job
        self._store = store
        self._settings = settings
        self._token = token.encode()
        self._analysis = analysis
        self._clock = clock
        self._seen: dict[tuple[str, int], int] = {}
        self._analyses: set[asyncio.Task[None]] = set()
        self._dismissed: set[str] = set()

    def application(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            routes=[
                Route("/v1/report", self._guarded(self._report), methods=["POST"]),
                Route("/v1/patterns", self._guarded(self._pattern), methods=["POST"]),
                Route("/v1/windows/{window_id:int}/failures", self._guarded(self._failure), methods=["POST"]),
                Route("/v1/profile", self._guarded(self._profile), methods=["POST"]),
                Route("/v1/status", self._guarded(self._status), methods=["GET"]),
                Route("/v1/finish", self._guarded(self._finish), methods=["POST"]),
            ]
        )

    async def run(self, period_s: float = 0.5) -> None:
        """Tick, rewrite status.json, end when the job is over or every agent has long been silent."""
        began = self._clock()
        while not self.finished.is_set():
            self._start(self.windows.tick(self._clock()))
            self._save_status()
            heard = max(began, self.windows.last_heard)
            if self.windows.ended and not self.windows.busy:
                self._conclude()
            elif self._clock() - heard > self._settings.agent_silence_s:
                log.warning("no agent for %.0f s; the job is taken for ended", self._clock() - heard)
                self.end_job()
            await asyncio.sleep(period_s)

    def end_job(self) -> None:
        """The job is over, or we are asked to end."""
        self._start(self.windows.job_ended(self._clock()))

    async def bid_farewell(self) -> None:
        """Answer until every agent has heard that the job is over, at most `farewell_s`."""
        end = self._clock() + self._settings.farewell_s
        while not self.windows.hosts <= self._dismissed and self._clock() < end:
            await asyncio.sleep(0.05)

    # ------------------------------------------------------------------ requests

    def _guarded(self, handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """Check the token, turn refusals into answers."""

        async def guarded(request: Request) -> Response:
            given = request.headers.get("authorization", "").encode()
            if not hmac.compare_digest(given, b"Bearer " + self._token):
                return JSONResponse({"error": "a token is needed; it stands in collector.json"}, status_code=401)
            try:
                return await handler(request)
            except Refused as refusal:
                return JSONResponse({"error": str(refusal)}, status_code=refusal.status)

        return guarded

    async def _report(self, request: Request) -> Response:
        report = _decode(await _body(request, MAX_REPORT_BYTES), AgentReport)
        for status in report.workers:
            self._seen[(report.host, status.worker.pid)] = status.worker.world_size
        self._start(self.windows.reported(self._clock(), report))
        reply = CollectorReply(
            order=self.windows.order,
            absolved=self.windows.absolved,
            stop=self.finished.is_set(),
        )
        if reply.stop:
            self._dismissed.add(report.host)
        return Response(msgspec.msgpack.encode(reply), media_type=MessagePack)

    async def _pattern(self, request: Request) -> Response:
        data = await _body(request, MAX_PATTERN_BYTES)
        try:
            pattern = decode_record(data, WorkerPattern)
        except InputError as error:
            raise Refused(400, str(error)) from error
        if pattern.window_id in self.windows.known_windows:
            self._keep(lambda: self._store.save_pattern(pattern, data))
        self._start(self.windows.pattern_arrived(self._clock(), pattern))
        return Response(status_code=204)

    async def _failure(self, request: Request) -> Response:
        failure = _decode(await _body(request, MAX_REPORT_BYTES), SummaryFailure)
        window_id = int(request.path_params["window_id"])
        self._start(self.windows.summary_failed(self._clock(), window_id, failure.global_rank, failure.note[:500]))
        return Response(status_code=204)

    async def _profile(self, request: Request) -> Response:
        asked = _decode(await _body(request, MAX_REPORT_BYTES), ProfileRequest)
        answer = self.windows.asked(self._clock(), asked)
        return Response(msgspec.msgpack.encode(answer), media_type=MessagePack)

    async def _status(self, request: Request) -> Response:
        return Response(msgspec.json.encode(self.windows.status()), media_type="application/json")

    async def _finish(self, request: Request) -> Response:
        self.end_job()
        if not self.windows.busy and not self.finished.is_set():
            self._conclude()
        return Response(status_code=204)

    # ------------------------------------------------------------------ work

    def _start(self, analyses: list[Analyze]) -> None:
        for order in analyses:
            task = asyncio.get_running_loop().create_task(self._analyze(order))
            self._analyses.add(task)
            task.add_done_callback(self._analyses.discard)

    async def _analyze(self, order: Analyze) -> None:
        window = order.window
        self._keep(lambda: self._store.save_window(window))
        verdict = None
        try:
            verdict = await asyncio.to_thread(self._analysis, self._job, order, self._settings)
        except Exception:  # the collector outlives any analysis; the job's other windows matter too
            log.exception("the analysis of window %d failed", window.window_id)
            self.windows.note(f"the analysis of window {window.window_id} failed; see log/collector.log")
        now = self._clock()
        if verdict is not None:
            captured_s = max((pattern.duration_s for pattern in order.patterns), default=0.0)
            verdict = stamped(verdict, now - order.asked_at - captured_s)
            done = verdict
            self._keep(lambda: self._store.save_verdict(window.window_id, done))
        self.windows.analyzed(now, window.window_id, verdict)
        self._save_status()

    def _conclude(self) -> None:
        expected = max(self._seen.values(), default=0)
        self.final = final_verdict(self._job, self.windows.verdicts, expected, len(self._seen))
        final = self.final
        self._keep(lambda: self._store.save_final(final))
        self._save_status()
        self.finished.set()

    def _save_status(self) -> None:
        self._keep(lambda: write_json(self._store.run / "status.json", self.windows.status()))

    def _keep(self, write: Callable[[], None]) -> None:
        """A full disk costs the files, not the job's diagnosis."""
        try:
            write()
        except (OSError, EroicaError) as error:
            self.windows.note(f"could not write into {self._store.run}: {error}")


async def _body(request: Request, limit: int) -> bytes:
    """The request's body, refused as soon as it is longer than `limit` bytes."""
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise Refused(413, f"more than {limit} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def _decode(data: bytes, kind: type[Message]) -> Message:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise Refused(400, f"no {kind.__name__}: {error}") from error
