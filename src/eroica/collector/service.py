"""The collector's shell: HTTP in, `Windows` and `Blockages` in the middle, analysis in a thread, files out."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from eroica.archive.forget import UNDERWAY_FILE
from eroica.archive.store import Store, write_json
from eroica.collector.access import Refused, TokenGate, body_of
from eroica.collector.arrivals import Arrivals, head_in
from eroica.collector.blockage import Blockages, Examine
from eroica.collector.history import Hints, final_verdict, stamped
from eroica.collector.intake import clean_looks, clean_report, clean_request, clean_text
from eroica.collector.ledger import History
from eroica.collector.live import Live
from eroica.collector.lives import failures_in
from eroica.collector.opening import report_pause_s
from eroica.collector.pace import Pace
from eroica.collector.participants import SameIterations
from eroica.collector.recurrence import with_recurrence
from eroica.collector.windows import Analyze, Windows
from eroica.errors import EroicaError, InputError
from eroica.model.look import Blockage, HostLooks
from eroica.model.verdict import Verdict
from eroica.model.window import Window
from eroica.parts import Parts
from eroica.settings import Settings
from eroica.wire.address import read_shared
from eroica.wire.codec import UNDECODABLE, decode_message
from eroica.wire.messages import (
    PROTOCOL,
    AgentReport,
    CollectorReply,
    FinishRequest,
    JobStatus,
    ProfileRequest,
    SummaryFailure,
    refusal,
    spoken_in,
)
from eroica.wire.patience import AGENT_SILENCE_S, FAREWELL_S

log = logging.getLogger("eroica.collector")

MAX_REPORT_BYTES = 2_000_000
MAX_PATTERN_BYTES = 256_000
MAX_LOOKS_BYTES = 8_000_000
MAX_ALL_LOOKS_BYTES = 256_000_000
#: The job's iteration times are written no more often than this.
HISTORY_S = 5.0
#: A tick looks at all workers. In a large job not every report or pattern brings one: ticks stay a small share of time.
TICK_PAUSE_S, SMALL_JOB = 4e-5, 64
#: `status.json` names all workers. In a large job it is not written twice a second.
STATUS_PAUSE_S = 1e-4
Handler = Callable[[Request], Awaitable[Response]]
Analysis = Callable[[str, Analyze, Settings], Verdict]
Diagnosis = Callable[[Blockage, str, Settings], "Verdict | None"]


def diagnose(blockage: Blockage, job: str, settings: Settings) -> Verdict | None:
    """The real diagnosis, imported when it is needed first."""
    from eroica.diagnosis.blocked import diagnose_blockage

    return diagnose_blockage(blockage, job, settings)


class Collector:
    """One job's collector, without its socket.

    Args:
        job: Name of the job.
        store: Its run directory.
        settings: Tunables.
        token: What every request must carry.
        analysis: Turns a window's patterns into a verdict; runs in a thread.
        clock: Seconds, monotonic.
        diagnosis: The same for the looks at a job that stands still; None if somebody moved.
        page: What opens the live page; default: made from the token.

    Attributes:
        messages: How often the webhook was told what; see `eroica.collector.webhook`.
        listeners: Called with each verdict that stands and its window; 0 for the job's final one.
    """

    def __init__(
        self,
        job: str,
        store: Store,
        settings: Settings,
        token: str,
        analysis: Analysis,
        clock: Callable[[], float] = time.monotonic,
        diagnosis: Diagnosis = diagnose,
        page: str = "",
    ) -> None:
        self.windows = Windows(job, settings)
        self.blockages = Blockages(self.windows, settings)
        self._same_iterations = SameIterations()
        self._former: Verdict | None = None
        self._over_at: float | None = None
        self.pace = Pace(job, time.time(), clock())
        self.messages: Counter[str] = Counter()
        self.listeners: list[Callable[[int, Verdict], None]] = []
        self.finished = asyncio.Event()
        self.final: Verdict | None = None
        self.interrupted = False
        self.run_directory = store.run
        self.settings = settings
        self.clock = clock
        self._job = job
        self._store = store
        self.token = token
        self._analysis = analysis
        self._diagnosis = diagnosis
        self._kept: Window | None = None
        self._kept_pace: tuple[int, float] = (0, -HISTORY_S)
        self._looks_bytes: tuple[int, int] = (0, 0)
        self._analyses: set[asyncio.Task[None]] = set()
        self._dismissed: set[str] = set()
        self._arrivals = Arrivals(store)
        self._next_tick = 0.0
        self._next_status = 0.0
        self._note = self.windows.ledger.note
        self.windows.ledger.listen = lambda news: self.pace.shown(self.clock(), news)
        self.live = Live(self, page)
        self.parts = Parts("eroica.collector", self, self._note)

    def application(self, more: Sequence[Route] = ()) -> TokenGate:
        """The ASGI application; `more` are routes of whoever listens for us (`eroica.collector.listening_sockets`)."""
        pages = self.live.routes()
        answers = {
            "/v1/report": self._report,
            "/v1/patterns": self._pattern,
            "/v1/windows/{window_id:int}/failures": self._failure,
            "/v1/looks": self._looks,
            "/v1/profile": self._profile,
            "/v1/finish": self._finish,
        }
        routes = [
            *(Route(path, _refusing(answer), methods=["POST"]) for path, answer in answers.items()),
            Route("/v1/status", self._status, methods=["GET"]),
            *pages,
            *more,
        ]
        return TokenGate(Starlette(routes=routes), self.token, self.live.visitors, pages)

    def resume(self, history: History) -> None:
        """Go on where a collector of the same job ended."""
        if history.pace is not None:
            self.pace.resume(history.pace)
        self.windows.resume(self.clock(), time.time(), history)
        self.blockages.resume(history)
        self._former = history.final

    @property
    def standing(self) -> frozenset[int]:
        """Windows whose verdict on a standstill still holds; none once the job is over."""
        return frozenset() if self.windows.ended else self.blockages.standing

    @property
    def lapsed(self) -> frozenset[int]:
        """Windows whose verdict on a standstill holds no longer: the job went on, or was started again."""
        return self.windows.ledger.judged("passed", "restarted")

    async def run(self, period_s: float = 0.5) -> None:
        """Tick, rewrite status.json, end when the job is over or every agent has long been silent."""
        began = self.clock()
        while not self.finished.is_set():
            self._tick_if_due()
            if time.monotonic() >= self._next_status:
                self.save_status()
                self._next_status = time.monotonic() + STATUS_PAUSE_S * max(len(self.windows.roll) - SMALL_JOB, 0)
            self._save_history(HISTORY_S)
            heard = max(began, self.windows.roll.last_heard)
            if self.windows.ended and not self._busy:
                self._conclude()
            elif self.clock() - heard > AGENT_SILENCE_S:
                log.warning("no agent for %.0f s; the job is taken for ended", self.clock() - heard)
                self.end_job()
            await asyncio.sleep(period_s)

    def end_job(self, how: FinishRequest = FinishRequest()) -> None:  # noqa: B008 (frozen)
        """The job is over, or we are asked to end."""
        now = self.clock()
        self._over_at = now if self._over_at is None else self._over_at
        self._start(self.blockages.finished(now, how.exit_status, how.asked_to_end))
        self._start(self.windows.job_ended(now, how.patience_s))

    def interrupt(self) -> None:
        """Somebody ends us, though perhaps not the job."""
        self.interrupted = not self.windows.ended
        self.end_job()

    async def bid_farewell(self) -> None:
        """Answer until every agent has heard that the job is over, at most `FAREWELL_S`."""
        end = self.clock() + FAREWELL_S
        while not self.windows.roll.hosts <= self._dismissed and self.clock() < end:
            await asyncio.sleep(0.05)

    # ------------------------------------------------------------------ requests

    async def _report(self, request: Request) -> Response:
        data = await body_of(request, MAX_REPORT_BYTES)
        if why := refusal(spoken_in(data), "an agent", "the job's collector"):
            self._note(why)
            raise Refused(426, why)
        report = clean_report(decode_message(data, AgentReport))
        now = self.clock()
        self.windows.take(now, report)
        if self._former is not None and self.windows.roll:  # the collector before this one was told to end too early
            self._former = None
            self._keep(self._store.remove_final)
        self.pace.reported(now, report.host, self.windows.roll.workers_of(report.host))
        for name, record in report.parts.items():
            self.parts.call("reported", report.host, record, name=name)
        self._start(self.blockages.reported(now, report))
        self._tick_if_due()
        reply = CollectorReply(
            order=self.windows.capturing.order,
            absolved=self.windows.opening.absolved,
            stop=self.finished.is_set(),
            look=self.blockages.look,
            count_by=self._same_iterations.count_by,
            pause_s=report_pause_s(self.windows.roll.host_count, self._busy),
            protocol=PROTOCOL,
        )
        if reply.stop and self.windows.roll.knows(report.host):
            self._dismissed.add(report.host)
        return _packed(reply)

    async def _looks(self, request: Request) -> Response:
        """Take a host's looks at its silent workers; late and foreign ones are dropped before they cost anything."""
        data = await body_of(request, MAX_LOOKS_BYTES)
        look_id, size = self._looks_bytes
        size = len(data) + (size if look_id == self.blockages.look else 0)
        if size > MAX_ALL_LOOKS_BYTES:
            self._note(f"the looks of all hosts hold more than {MAX_ALL_LOOKS_BYTES} bytes; the rest is left out")
            raise Refused(413, "there is no room for more looks")
        looks = clean_looks(decode_message(data, HostLooks))
        if self.blockages.expects(looks):
            self._looks_bytes = (self.blockages.look, size)
            self._start(self.blockages.looked(self.clock(), looks))
        return Response(status_code=204)

    async def _pattern(self, request: Request) -> Response:
        """Take in what came of a worker."""
        data = await body_of(request, MAX_PATTERN_BYTES)
        try:
            head = head_in(data)
        except UNDECODABLE as error:
            raise Refused(400, str(error)) from error
        if self.windows.take_pattern(head):
            self._keep(self._arrivals.take, head, data)
        self._tick_if_due()
        return Response(status_code=204)

    async def _failure(self, request: Request) -> Response:
        failure = decode_message(await body_of(request, MAX_REPORT_BYTES), SummaryFailure)
        window_id = int(request.path_params["window_id"])
        self.windows.summary_failed(window_id, failure.global_rank, clean_text(failure.note))
        self._tick_if_due()
        return Response(status_code=204)

    async def _profile(self, request: Request) -> Response:
        asked = clean_request(decode_message(await body_of(request, MAX_REPORT_BYTES), ProfileRequest))
        return _packed(self.windows.asked(self.clock(), asked))

    async def _status(self, request: Request) -> Response:
        return Response(msgspec.json.encode(self.status()), media_type="application/json")

    async def _finish(self, request: Request) -> Response:
        data = await body_of(request, MAX_REPORT_BYTES)
        self.end_job(decode_message(data, FinishRequest) if data else FinishRequest())
        if not self._busy and not self.finished.is_set():
            self._conclude()
        return Response(status_code=204)

    # ------------------------------------------------------------------ work

    @property
    def _busy(self) -> bool:
        return self.windows.busy or self.blockages.busy

    def _tick_if_due(self) -> None:
        if time.monotonic() >= self._next_tick:
            self._tick()
            self._next_tick = time.monotonic() + TICK_PAUSE_S * max(len(self.windows.roll) - SMALL_JOB, 0)

    def _tick(self) -> None:
        now = self.clock()
        self.parts.call("tick")
        self._start(self.blockages.tick(now))
        self.windows.hold = self.blockages.on
        if note := self._same_iterations.tick(now, self.windows.roll.living):
            self._note(note)
        self._start(self.windows.tick(now))
        self.pace.tick(now)
        self._keep_window()

    def _start(self, work: Sequence[Analyze | Examine]) -> None:
        for order in work:
            job = self._analyze(order) if isinstance(order, Analyze) else self._examine(order)
            task = asyncio.get_running_loop().create_task(job)
            self._analyses.add(task)
            task.add_done_callback(self._analyses.discard)

    def found(self, window: Window, verdict: Verdict, since: float) -> None:
        """Keep and tell what a part found without a window, and open one that sees more.

        Args:
            window: A number of the ledger, and why; it captured nothing.
            verdict: What was found.
            since: When it began, on our clock.
        """
        now = self.clock()
        verdict = with_recurrence(window.window_id, stamped(verdict, now - since), self.windows.ledger.verdicts)
        self.windows.ledger.show(window, "done", verdict)
        self._keep(self._store.save_window, window)
        self._keep(self._store.save_verdict, window.window_id, verdict)
        self._tell(window.window_id, verdict)
        if self.windows.window is None:
            self.windows.asked(now, ProfileRequest(reason=window.reason))
        self.save_status()

    async def _examine(self, order: Examine) -> None:
        window = order.window
        self._keep(self._store.save_window, window)
        verdict, failed = None, False
        try:
            verdict = await asyncio.to_thread(self._diagnosis, order.blockage, self._job, self.settings)
        except Exception:  # as below
            log.exception("the diagnosis of blockage %d failed", window.window_id)
            self._note(f"the diagnosis of blockage {window.window_id} failed; see log/collector.log")
            failed = True
        now = self.clock()
        if verdict is not None or failed:  # looks that found nothing are kept nowhere: there may be many
            self._keep(self._store.save_blockage, order.blockage)
        if verdict is not None:
            verdict = stamped(verdict, now - order.asked_at)
            self._keep(self._store.save_verdict, window.window_id, verdict)
        self._start(self.blockages.examined(now, window.window_id, verdict, failed))
        if verdict is not None and window.window_id not in self.windows.ledger.judged("passed"):
            self._tell(window.window_id, verdict)
        self.save_status()

    async def _analyze(self, order: Analyze) -> None:
        window = order.window
        verdict, settled = None, 0
        try:
            verdict = await asyncio.to_thread(self._judge, order)
        except Exception:  # the collector outlives any analysis; the job's other windows matter too
            log.exception("the analysis of window %d failed", window.window_id)
            self._note(f"the analysis of window {window.window_id} failed; see log/collector.log")
        try:
            settled = await asyncio.to_thread(self._arrivals.settle, window.window_id)
        except (OSError, EroicaError) as error:
            self._note(f"could not write into {self._store.run}: {error}")
        self._arrivals.close(window.window_id, settled)
        now = self.clock()
        if verdict is not None and order.counts:
            captured_s = max((pattern.duration_s for pattern in order.patterns), default=0.0)
            verdict = stamped(verdict, now - order.asked_at - captured_s)
            verdict = with_recurrence(window.window_id, verdict, self.windows.ledger.verdicts)
            self._keep(self._store.save_verdict, window.window_id, verdict)
        if order.counts:
            self._arrivals.forget(window.window_id)
        self.windows.analyzed(now, window.window_id, verdict)
        if verdict is not None and order.counts:
            self._tell(window.window_id, verdict)
        self.save_status()

    def _judge(self, order: Analyze) -> Verdict:
        """Decode what is compared, and compare it."""
        patterns, left_out = self._arrivals.whole(order.patterns)
        baseline, lost = self._arrivals.whole(order.baseline)
        whole = replace(
            order,
            patterns=patterns,
            baseline=baseline,
            doubted=self._arrivals.whole(order.doubted)[0],
            notes=(*order.notes, *left_out, *(f"in the baseline window: {note}" for note in lost)),
        )
        return self._analysis(self._job, whole, self.settings)

    @property
    def _is_beside(self) -> bool:
        """No worker has ever reported here, and another collector speaks in the shared run directory, or has spoken."""
        if self.windows.roll.ever or self._former is not None:
            return False
        if self.interrupted and (self._store.run / "verdict.json").exists():
            return True
        shared = read_shared(self._store.run)
        return shared is not None and shared.pid not in (0, os.getpid())

    def _conclude(self) -> None:
        if self._is_beside:
            self.finished.set()
            return
        roll, over_at = self.windows.roll, self._over_at if self._over_at is not None else self.clock()
        attendance = self.blockages.lives.attendance(over_at, failures_in(self._store.run / "log"))
        self.final = final_verdict(
            self._job,
            self.windows.ledger.verdicts,
            attendance.expected,
            attendance.watched,
            standing=self.blockages.standing,
            passed=self.windows.ledger.judged("passed"),
            hints=Hints(
                roll.slowed,
                self.blockages.loss,
                self.windows.ledger.missed,
                self.blockages.failure,
                attendance.gaps,
                self.pace.loss(is_traced=any(one.has_accelerator for one in self.windows.baseline.patterns)),
                self.windows.ledger.unseen,
                self.windows.look,
            ),
            former=self._former,
        )
        self._keep(self._store.save_final, self.final)
        self._tell(0, self.final)
        self.save_status()
        self._save_history()
        self.finished.set()

    def _save_history(self, after_s: float = 0.0) -> None:
        """Keep the job's iteration times, if there is something new and the last time was long ago."""
        (version, saved_at), now = self._kept_pace, self.clock()
        if self.pace.version != version and now - saved_at >= after_s:
            self._kept_pace = self.pace.version, now
            self._keep(self._store.save_history, self.pace.history())

    def _tell(self, window_id: int, verdict: Verdict) -> None:
        for listener in self.listeners:
            try:
                listener(window_id, verdict)
            except Exception as error:  # noqa: BLE001 - who is told must not cost the verdict; it may hold a secret
                log.error("somebody could not be told of a verdict: %s", type(error).__name__)

    def status(self) -> JobStatus:
        """Content of `status.json`."""
        return self.blockages.shown_in(self.windows.status())

    def save_status(self) -> None:
        """Write `status.json`, unless another collector of the directory does."""
        if not (self._is_beside or (self.finished.is_set() and self.final is None)):
            self._keep(write_json, self._store.run / "status.json", self.status())

    def _keep_window(self) -> None:
        """Save the window's request at once, for a collector that may come after this one."""
        current = self.windows.capturing.current
        if current is not None and current.window != self._kept:
            self._kept = current.window
            self._keep(self._store.save_window, current.window)
            if current.serial:
                path = self._store.window_directory(current.window.window_id) / UNDERWAY_FILE
                self._keep(write_json, path, current.record(self.clock(), time.time()))

    def _keep(self, write: Callable[..., None], *what: Any) -> None:
        """A full disk costs the files, not the job's diagnosis."""
        try:
            write(*what)
        except (OSError, EroicaError) as error:
            self._note(f"could not write into {self._store.run}: {error}")


def _refusing(handler: Handler) -> Handler:
    """Turn refusals into answers."""

    async def answered(request: Request) -> Response:
        try:
            return await handler(request)
        except (Refused, InputError) as error:
            return JSONResponse({"error": str(error)}, status_code=getattr(error, "status", 400))

    return answered


def _packed(reply: msgspec.Struct) -> Response:
    return Response(msgspec.msgpack.encode(reply), media_type="application/msgpack")
