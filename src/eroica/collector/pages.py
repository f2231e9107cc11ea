"""A page of each verdict in the run directory, drawn by a process that can neither delay nor break the collector."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from eroica.archive.store import PAGE_FILE
from eroica.model.verdict import Verdict
from eroica.settings import Settings
from eroica.start import isolated
from eroica.wire.places import Places

log = logging.getLogger("eroica.collector")

_NO_INPUT = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
_POLL_S = 0.1
#: Of the reporter, added to the collector's own.
_NICENESS = 14
_LOOK_S = 1.0
#: A reporter that ended is started again after so long, seconds.
_AGAIN_S = 30.0


class Reporting:
    """Keeps the reporter of one job alive.

    Args:
        where: The job's places.
        settings: Says where reports go.
        note: Told what people should know.
        ours: Whether the job's verdict is made here: until a host of several knows that, nothing is reported.
    """

    def __init__(
        self, where: Places, settings: Settings, note: Callable[[str], object], ours: Callable[[], bool]
    ) -> None:
        self._where = where
        self._note = note
        self._ours = ours
        self._process = 0
        self._keeping: asyncio.Task[None] | None = None
        if settings.fleet:
            self._keeping = asyncio.get_running_loop().create_task(self._keep())

    async def close(self, patience_s: float) -> None:
        """Give the last verdict so long to be handed over; the reporter goes on by itself where that is not enough."""
        if self._keeping is None:
            return
        self._keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._keeping
        if not self._process or not self._runs():
            self._start()
        end = asyncio.get_running_loop().time() + patience_s
        while self._process and self._runs() and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(_POLL_S)

    async def _keep(self) -> None:
        while not self._ours():
            await asyncio.sleep(_LOOK_S)
        while True:
            if not self._process or not self._runs():
                self._start()
            await asyncio.sleep(_AGAIN_S)

    def _start(self) -> None:
        where = self._where
        orders = isolated(
            "eroica.fleet.reporting", str(where.run), where.job, where.host, str(os.getpid()), niceness=_NICENESS
        )
        try:
            self._process = os.posix_spawn(sys.executable, orders, os.environ, file_actions=_NO_INPUT, setsid=True)
        except (OSError, NotImplementedError) as error:
            self._process = 0
            self._note(f"nothing is reported to the fleet: {error}")

    def _runs(self) -> bool:
        """Return whether the reporter still runs; collect its end otherwise."""
        try:
            ended, status = os.waitpid(self._process, os.WNOHANG)
        except ChildProcessError:
            ended, status = self._process, 0
        if ended and status:
            log.warning("the reporter to the fleet ended with status %d; see log/fleet.log", status)
        if ended:
            self._process = 0
        return not ended


#: More pages than that do not wait; the job's final one comes first.
_MOST_WAITING = 100
_POLL_S = 0.05
#: Of pages, added to the collector's own: whatever else wants the core gets it.
_NICENESS = 10
_NO_INPUT = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]


def page_of(run: Path, window_id: int = 0) -> Path:
    """Path of the page of a window, or with 0 of the final verdict."""
    return (run / "windows" / str(window_id) if window_id else run) / PAGE_FILE


class Pages:
    """Draws one page after the other.

    Args:
        run: The run directory.
        settings: `pages` turns it off, `page_limit_s` bounds each drawing.
        note: Told what went wrong, in words.
    """

    def __init__(self, run: Path, settings: Settings, note: Callable[[str], object]) -> None:
        self._run = run
        self._settings = settings
        self._note = note
        self._waiting: list[int] = []
        self._work: asyncio.Task[None] | None = None

    def judged(self, window_id: int, verdict: Verdict) -> None:
        """A verdict stands and is saved: its page is due."""
        del verdict  # the page is drawn from what is saved
        if window_id in self._waiting or (window_id and len(self._waiting) >= _MOST_WAITING):
            return
        self._waiting.insert(len(self._waiting) if window_id else 0, window_id)
        if self._work is None or self._work.done():
            self._work = asyncio.get_running_loop().create_task(self._draw_all())

    async def close(self, patience_s: float) -> None:
        """Wait so long for pages under way; what is drawn then is finished without us, or ends by itself."""
        if self._work is not None:
            await asyncio.wait({self._work}, timeout=patience_s)
            self._work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._work

    async def _draw_all(self) -> None:
        while self._waiting:
            await self._draw(self._waiting.pop(0))

    async def _draw(self, window_id: int) -> None:
        file = page_of(self._run, window_id)
        limit_s = self._settings.page_limit_s
        orders = isolated("eroica.views", str(self._run), str(window_id), str(file), str(limit_s), niceness=_NICENESS)
        try:
            drawing = os.posix_spawn(sys.executable, orders, os.environ, file_actions=_NO_INPUT, setsid=True)
        except (OSError, NotImplementedError) as error:
            self._note(f"no page could be drawn: {error}")
            return
        if not await _ended_well(drawing, time.monotonic() + limit_s + 1.0):
            of = f"window {window_id}" if window_id else "the job"
            self._note(f"the page of {of} was not drawn; see log/pages.log")


async def _ended_well(process: int, until: float) -> bool:
    """Wait for its end; one that should have ended itself by then is killed."""
    while os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() >= until:
            os.kill(process, signal.SIGKILL)
        await asyncio.sleep(_POLL_S)
    return os.waitpid(process, 0)[1] == 0
