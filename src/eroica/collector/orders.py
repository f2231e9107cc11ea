"""Orders as they are given: written down, handed to a command on its standard input, or sent to an address.

    <run>/orders.jsonl    a line for each order, and a line for what became of it

The address is a secret, as that of the webhook. Nothing here waits for the receiver: a command has `act_command_s`.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import os
import shlex
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import httpx
import msgspec

from eroica.collector.steering import Steering
from eroica.collector.webhook import usable_address
from eroica.model.order import Order
from eroica.model.verdict import Verdict
from eroica.settings import Settings

log = logging.getLogger("eroica.collector")
ORDERS_FILE = "orders.jsonl"
_TRIES, _PAUSE_S, _TRY_S = 4, 1.0, 5.0
#: How often it is asked whether an order that is held back is due.
_HELD_S = 0.5


class Orders:
    """Gives the orders of one job.

    Args:
        job: Its name.
        run: The run directory.
        settings: `on_verdict`, `on_verdict_url`, `act_from` and what belongs to them.
        note: Where to say what people should know.
        clock: Seconds, monotonic.
        standing: Windows whose verdict on a standstill still holds.
        lapsed: Those whose verdict on a standstill holds no longer: nothing is ordered, or sent again, for them.
    """

    def __init__(
        self,
        job: str,
        run: Path,
        settings: Settings,
        note: Callable[[str], object],
        clock: Callable[[], float],
        standing: Callable[[], Collection[int]] = frozenset,
        lapsed: Callable[[], Collection[int]] = frozenset,
    ) -> None:
        self._steering = Steering(job, settings)
        self._path = run / ORDERS_FILE
        self._settings = settings
        self._url = usable_address(settings.on_verdict_url)
        self._note = note
        self._clock = clock
        self._standing = standing
        self._lapsed = lapsed
        self._holding: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        if settings.on_verdict_url and not self._url:
            note("on_verdict_url is no http or https address; nobody is given orders there")
        if (settings.on_verdict or self._url) and settings.act_from <= 0:
            note("orders are off: --act-from says from which confidence on they are given, as in --act-from 0.95")

    def resume(self) -> None:
        """Go on where a collector before this one ended."""
        orders = []
        with contextlib.suppress(OSError):
            for line in self._path.read_bytes().splitlines():
                with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError):
                    orders.append(msgspec.json.decode(line, type=Order))
        self._steering.resume(self._clock(), orders, datetime.datetime.now(datetime.timezone.utc))

    def judged(self, window_id: int, verdict: Verdict) -> None:
        """A verdict stands (window 0: that of the whole job). Never waits."""
        if window_id in self._lapsed():  # the job went on, or was started again, while it was made
            return
        self._follow(self._steering.judged(self._clock(), window_id, verdict, self._standing()))
        if self._steering.holds and (self._holding is None or self._holding.done()):
            self._holding = asyncio.get_running_loop().create_task(self._hold())

    async def _hold(self) -> None:
        """Give what is held back once the pause is over, if the job still stands."""
        while self._steering.holds:
            await asyncio.sleep(_HELD_S)
            self._follow(self._steering.tick(self._clock(), self._standing()))

    def _follow(self, order: Order | str | None) -> None:
        if isinstance(order, str):
            self._note(order)
        elif order is not None:
            self._write(msgspec.to_builtins(order))
            self._note(f"order {order.order}: {order.action} {', '.join(order.hosts)} (window {order.window})")
            task = asyncio.get_running_loop().create_task(self._give(order))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self, patience_s: float) -> None:
        """Let receivers have their orders, for so long at most; what is held back is not given any more."""
        if self._holding is not None:
            self._holding.cancel()
            await asyncio.gather(self._holding, return_exceptions=True)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience_s)

    async def _give(self, order: Order) -> None:
        body = msgspec.json.encode(order)
        if self._settings.on_verdict:
            self._outcome(order, "command", await self._run(body))
        if self._url:
            self._outcome(order, "url", await self._send(body, order))

    def _outcome(self, order: Order, receiver: str, outcome: str) -> None:
        self._write({"order": order.order, "receiver": receiver, "outcome": outcome})
        if not outcome.startswith("taken"):
            self._note(f"order {order.order} was not taken by the {receiver}: {outcome}")

    async def _run(self, body: bytes) -> str:
        """Hand it to the command: no shell, its words as they are."""
        try:
            process = await asyncio.create_subprocess_exec(
                *shlex.split(self._settings.on_verdict),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                env={name: value for name, value in os.environ.items() if not name.startswith("EROICA_")},
            )
        except (OSError, ValueError, IndexError) as error:
            return f"it cannot be started ({error})"
        try:
            await asyncio.wait_for(process.communicate(body + b"\n"), self._settings.act_command_s)
        except (TimeoutError, asyncio.TimeoutError):
            process.kill()
            await process.wait()
            return f"it took longer than {self._settings.act_command_s:g} s and was ended (act_command_s)"
        return "taken" if process.returncode == 0 else f"it ended with status {process.returncode}"

    async def _send(self, body: bytes, order: Order) -> str:
        problem = ""
        async with httpx.AsyncClient(timeout=_TRY_S, follow_redirects=False, trust_env=False) as client:
            for attempt in range(_TRIES):
                await asyncio.sleep(_PAUSE_S * 2 ** (attempt - 1) if attempt else 0.0)
                if order.window in self._lapsed():
                    return "; ".join(filter(None, (problem, "the job goes on, or was started again, meanwhile")))
                try:
                    answer = await client.post(self._url, content=body, headers={"Content-Type": "application/json"})
                    if answer.is_success:
                        return "taken"
                    problem = f"it answers {answer.status_code}"
                    if answer.status_code < 500:
                        break
                except httpx.HTTPError as error:  # its text may hold the address
                    problem = f"no answer ({type(error).__name__})"
        return problem

    def _write(self, line: dict[str, Any]) -> None:
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(handle, "ab") as file:
                file.write(msgspec.json.encode(line) + b"\n")
        except OSError as error:
            self._note(f"an order could not be written down: {error.strerror}")
            log.error("an order could not be written down: %s", error.strerror)
