"""Processes beside the collector that can neither delay nor break it: one draws pages, one reports to a fleet."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from eroica.archive.forget import PAGE_FILE
from eroica.model.verdict import Verdict
from eroica.start import isolated
from eroica.wire.places import Places

log = logging.getLogger("eroica.collector")

_POLL_S = 0.05
#: Added to the collector's own niceness.
_DRAWING, _REPORTING = 10, 14
#: More pages than that do not wait; the job's final one comes first.
_MOST_WAITING = 100
#: Drawing one page is given up after so long, seconds.
_PAGE_S = 60.0
_LOOK_S = 1.0
#: A reporter that ended is started again after so long, seconds.
_AGAIN_S = 30.0


def _start(niceness: int, module: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a module of ours in a session of its own, without input.

    Raises:
        OSError: It cannot be started.
    """
    orders = isolated(module, *arguments, niceness=niceness)
    return subprocess.Popen(orders, stdin=subprocess.DEVNULL, start_new_session=True)


def page_of(run: Path, window_id: int = 0) -> Path:
    """Path of the page of a window, or with 0 of the final verdict."""
    return (run / "windows" / str(window_id) if window_id else run) / PAGE_FILE


class Pages:
    """Draws a page of each verdict into the run directory, one after the other.

    Args:
        run: The run directory.
        note: Told what went wrong, in words.
    """

    def __init__(self, run: Path, note: Callable[[str], object]) -> None:
        self._run = run
        self._note = note
        self._waiting: list[int] = []
        self._work: asyncio.Task[None] | None = None

    def judged(self, window_id: int, _verdict: Verdict) -> None:
        """A verdict stands and is saved: its page is due."""
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
            await asyncio.gather(self._work, return_exceptions=True)

    async def _draw_all(self) -> None:
        while self._waiting:
            await self._draw(self._waiting.pop(0))

    async def _draw(self, window_id: int) -> None:
        file = page_of(self._run, window_id)
        try:
            drawing = _start(_DRAWING, "eroica.views.page", str(self._run), str(window_id), str(file), str(_PAGE_S))
        except OSError as error:
            self._note(f"no page could be drawn: {error}")
            return
        until = time.monotonic() + _PAGE_S + 1.0
        while drawing.poll() is None:
            if time.monotonic() >= until:  # it should have ended itself by then
                drawing.kill()
            await asyncio.sleep(_POLL_S)
        if drawing.returncode:
            of = f"window {window_id}" if window_id else "the job"
            self._note(f"the page of {of} was not drawn; see log/pages.log")


class Reporting:
    """Keeps the process alive that reports the job to a fleet's service.

    Args:
        where: The job's places.
        note: Told what people should know.
        ours: Whether the job's verdict is made here: until a host of several knows that, nothing is reported.
    """

    def __init__(self, where: Places, note: Callable[[str], object], ours: Callable[[], bool]) -> None:
        self._where = where
        self._note = note
        self._ours = ours
        self._process: subprocess.Popen[bytes] | None = None
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    async def close(self, patience_s: float) -> None:
        """Give the last verdict so long to be handed over; the reporter goes on by itself where that is not enough."""
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)
        self._start_if_ended()
        end = time.monotonic() + patience_s
        while self._runs() and time.monotonic() < end:
            await asyncio.sleep(_POLL_S)

    async def _keep(self) -> None:
        while not self._ours():
            await asyncio.sleep(_LOOK_S)
        while True:
            self._start_if_ended()
            await asyncio.sleep(_AGAIN_S)

    def _start_if_ended(self) -> None:
        if self._runs():
            return
        where = self._where
        try:
            self._process = _start(
                _REPORTING, "eroica.fleet.reporting", str(where.run), where.job, where.host, str(os.getpid())
            )
        except OSError as error:
            self._note(f"nothing is reported to the fleet: {error}")

    def _runs(self) -> bool:
        if self._process is None or self._process.poll() is None:
            return self._process is not None
        if self._process.returncode:
            log.warning("the reporter to the fleet ended with status %d; see log/fleet.log", self._process.returncode)
        self._process = None
        return False
