"""The process that reports this job to a fleet's service; the collector only sees to it that there is one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable

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
