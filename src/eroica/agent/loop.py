"""The agent's life: look for workers, read beats, report, pass orders on, end with the job."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from itertools import chain, repeat

import msgspec

from eroica.agent.home import CollectorLink, HomeFinder
from eroica.agent.roster import LocalWorker, Roster
from eroica.agent.scratch import Scratch
from eroica.agent.stacks import available
from eroica.agent.window import HostWindow
from eroica.agent.witnesses import Subject, take_looks
from eroica.hardware.cpu import is_alive
from eroica.model.look import HostLooks
from eroica.parts import MOST_BYTES, Parts
from eroica.settings import Settings
from eroica.wire import beat
from eroica.wire.codec import plain
from eroica.wire.messages import PROTOCOL, AgentReport, CollectorReply, OrderMessage
from eroica.wire.patience import AGENT_SILENCE_S, REPORT_S
from eroica.wire.places import CLOSING_FILE, Places

log = logging.getLogger("eroica.agent")
_SCAN_S = 0.5
#: Pause between two looks at the beats.
_POLL_S = 0.05
#: Pause between the two looks at a silent job.
SECOND_LOOK_S = 2.0
_MAX_NOTES = 50
_MOST_ABSOLVED = 1000
_RETRY_S = (0.2, 0.5, 1.0, 2.0)
#: A collector that is started again is there within this time.
_ALONE_S = 15.0


class Agent:
    """One host's agent.

    Args:
        where: The job's directories on this host.
        settings: Tunables.
        child_of_run: `eroica run` started this agent and ends it; else it ends by itself when its workers are gone.
        ends_job: Nobody but the agent notices that the job is over, so it tells the collector.

    Attributes:
        roster: This host's workers.
        scratch: The job's raw traces on this host.
    """

    def __init__(
        self,
        where: Places,
        settings: Settings,
        child_of_run: bool,
        ends_job: bool,
    ) -> None:
        self.roster = Roster(where.runtime, settings, time.monotonic, self._watch)
        self.scratch = Scratch(where.scratch, settings)
        self._where = where
        self._settings = settings
        self._child_of_run = child_of_run
        self._ends_job = ends_job
        self._link = CollectorLink(where.run, where.host)
        self._home = HomeFinder(where, self._link.close)
        self._serial = 0
        self._absolved = 0
        self._look = 0
        self._look_tasks: set[asyncio.Task[None]] = set()
        self._window_tasks: set[asyncio.Task[None]] = set()
        self._followed: set[int] = set()
        self._windows: list[HostWindow] = []
        self._notes: list[str] = []
        self._parts = Parts("eroica.agent", self, self._notes.append)
        self._outside: tuple[bool, str] | None = None
        self._parent = os.getppid()
        launcher = os.environ.get("EROICA_LAUNCHED", "").partition("@")[0]  # it may have died before we looked
        self._launcher = int(launcher) if launcher.isdecimal() else self._parent
        self._alone_since: float | None = None
        self._stop = False
        self._interrupted = False

    def stop(self) -> None:
        """End as soon as the summaries under way are uploaded: somebody asked for it, though perhaps not the job."""
        self._stop = self._interrupted = True

    @property
    def leaves_workers(self) -> bool:
        """True if the agent was told to end while workers train; the next agent will need their files."""
        return self._interrupted and bool(self.roster.living)

    async def run(self) -> None:
        """Serve the host until the job is over."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.stop)
        polling = asyncio.create_task(self._poll())
        finding = asyncio.create_task(self._home.run())
        watching = asyncio.create_task(self._parts.call_async("run"))
        try:
            while not (self._stop and not self._window_tasks):
                if polling.done():
                    polling.result()  # it only ends by failing
                reply = await self._link.report(self._report())
                self._home.see([worker.reader.identity for worker in self.roster.living], reply is not None)
                if reply is not None:
                    self._obey(reply)
                if await self._job_is_over(reply is not None):
                    break
                await asyncio.sleep(max(REPORT_S, reply.pause_s if reply is not None else 0.0))
        finally:
            polling.cancel()
            finding.cancel()
            watching.cancel()
            for task in (*self._window_tasks, *self._look_tasks):
                task.cancel()
            await self._link.close()
            self._home.close()

    # ------------------------------------------------------------------ beats

    async def _poll(self) -> None:
        next_scan = 0.0
        while True:
            if time.monotonic() >= next_scan:
                self.roster.scan()
                if self._outside is None and self.roster.living:  # once, before any order
                    self._outside = await asyncio.to_thread(available, self.roster.living[0].worker.pid)
                next_scan = time.monotonic() + _SCAN_S
            asked = sum(worker.triggers for worker in self.roster.living)
            self.roster.poll(judge=not self._window_tasks)
            if sum(worker.triggers for worker in self.roster.living) > asked:
                for window in self._windows:  # what was captured before the job got slow is the baseline
                    if window.order.purpose == "baseline":
                        window.close_early(beat.RISEN)
            self._close_windows()
            await asyncio.sleep(_POLL_S)

    def _close_windows(self) -> None:
        """Close the open windows if `eroica run` is to pass on the job's end, and say when they are saved."""
        asked = self._where.runtime / CLOSING_FILE
        if not asked.exists():
            return
        followed = [window for window in self._windows if window.order.window_id in self._followed]
        for window in followed:
            window.close_early()
        if all(window.is_saved for window in followed):
            asked.unlink(missing_ok=True)

    def _watch(self, worker: LocalWorker) -> None:
        """Hear of the end of a worker's process at once, where the kernel can tell; else the next scan finds it."""
        if worker.process.handle < 0:
            return
        handle = os.dup(worker.process.handle)  # ours until the process ends, whatever becomes of the other one
        loop = asyncio.get_running_loop()

        def ended() -> None:
            loop.remove_reader(handle)
            os.close(handle)
            worker.look_alive(time.monotonic())

        loop.add_reader(handle, ended)

    def _report(self) -> AgentReport:
        notes = [
            *self.roster.notes,
            *self._home.notes,
            *self._notes,
            *(note for window in self._windows for note in window.notes),
        ]
        return AgentReport(
            protocol=PROTOCOL,
            host=self._where.host,
            pid=os.getpid(),
            event_budget=self.scratch.event_budget(len(self.roster.living)),
            workers=tuple(worker.report() for worker in self.roster.workers.values()),
            summarizing=len(self._window_tasks),
            notes=tuple(dict.fromkeys(notes))[:_MAX_NOTES],
            waiting=self._home.waiting,
            parts={name: told for name, told in self._parts.call("take").items() if told and len(told) <= MOST_BYTES},
        )

    # ------------------------------------------------------------------ orders

    def _obey(self, reply: CollectorReply) -> None:
        self._stop = self._stop or reply.stop
        while self._absolved < min(reply.absolved, _MOST_ABSOLVED):
            self._absolved += 1
            self.roster.absolve()
        if reply.count_by and reply.order is None and not self._window_tasks:
            self.roster.count_by(reply.count_by)
        order = reply.order
        if order is not None and order.serial != self._serial:
            self._serial = order.serial
            self._pass_on(order)

        if reply.look and reply.look != self._look:
            self._look = reply.look
            task = asyncio.create_task(self._look_twice(reply.look))
            self._look_tasks.add(task)
            task.add_done_callback(self._look_tasks.discard)

    async def _look_twice(self, look_id: int) -> None:
        """Look at all living workers, twice, and hand in what was seen."""
        log.info("look %d at %d workers", look_id, len(self.roster.living))
        host = self._where.host

        def subjects() -> list[Subject]:
            return [worker.subject() for worker in list(self.roster.workers.values()) if not worker.ended]

        try:
            looks = await asyncio.to_thread(take_looks, look_id, host, subjects, SECOND_LOOK_S)
        except Exception as error:  # one look lost must not cost the agent
            log.exception("look %d failed", look_id)
            looks = HostLooks(look_id=look_id, host=host, notes=(plain(f"{host} could not look: {error}"),))
        data = msgspec.msgpack.encode(looks)
        for pause_s in _RETRY_S:
            if await self._link.hand_in(data):
                return
            await asyncio.sleep(pause_s)
        log.warning("look %d could not be handed in", look_id)

    def _pass_on(self, order: OrderMessage) -> None:
        log.info("order %d: %s", order.serial, order)
        self.scratch.sweep({*self._followed, order.window_id})
        window = HostWindow(
            order,
            self.roster.living,
            self.scratch,
            self._settings,
            self._outside or (True, ""),
            lambda rank, pattern: self._deliver(order.window_id, rank, pattern),
            self._link.regret,
        )
        try:
            window.start()
        except (OSError, ValueError) as error:
            self._notes.append(f"window {order.window_id} could not be prepared: {error}")
            log.exception("order %d failed", order.serial)
            return
        if order.kind == "window":
            self._windows = [*self._windows[-3:], window]
            self._followed.add(order.window_id)
            task = asyncio.create_task(self._follow(window))
            self._window_tasks.add(task)
            task.add_done_callback(self._window_tasks.discard)

    async def _follow(self, window: HostWindow) -> None:
        try:
            await window.follow()
        except Exception as error:  # one window lost must not cost the agent
            log.exception("window %d failed", window.order.window_id)
            self._notes.append(f"window {window.order.window_id} was lost on {self._where.host}: {error}")
            await window.give_up(f"its host lost the window: {error}")
        finally:
            self._followed.discard(window.order.window_id)

    async def _deliver(self, window_id: int, global_rank: int, pattern: bytes) -> None:
        """Hand over a pattern; while nobody answers, for as long as a collector that was started again waits for it.

        None comes any more once the job is over; where this host's workers have ended, it may be.
        """
        began, vain = time.monotonic(), 0
        for pause_s in chain(_RETRY_S, repeat(_RETRY_S[-1])):
            delivery = await self._link.deliver(pattern)
            if delivery == "taken":
                return
            vain += delivery == "refused" or self._stop
            patience_s = self._settings.window_deadline_s if self.roster.living else _ALONE_S
            if vain == len(_RETRY_S) or time.monotonic() - began > patience_s:
                break
            await asyncio.sleep(pause_s)
        log.warning("the pattern of worker %d could not be delivered", global_rank)
        await self._link.regret(window_id, global_rank, "its pattern could not be delivered")

    # ------------------------------------------------------------------ the end

    async def _job_is_over(self, heard: bool) -> bool:
        """Alone for long: an agent of `eroica run` ends only if that has died, any other by itself."""
        if self.roster.living or self._window_tasks:
            self._alone_since = None
            return False
        now = time.monotonic()
        self._alone_since = self._alone_since or now
        if self._child_of_run:
            return os.getppid() != self._parent or not is_alive(self._launcher)
        patience_s = self._settings.job_end_grace_s if self.roster.workers else AGENT_SILENCE_S
        if now - self._alone_since <= patience_s:
            return False
        if not self._ends_job or self._home.away:
            return True
        await self._link.finish()
        return not heard
