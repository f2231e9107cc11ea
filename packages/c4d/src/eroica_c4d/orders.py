"""Orders: which verdicts become one, and how it is given to a command on its standard input, or sent to an address.

    <run>/orders.jsonl    a line for each order, and a line for what became of it

Off unless `EROICA_ACT_FROM` says from which confidence on. Never on an undetermined verdict, on one that names nobody
or everybody, or on the job's final one; one order for one fault; `act_pause_s` between two, `act_most` in a job. An
order for a standstill that comes inside the pause is held. It is given after the pause if the job has stood still
since, and if no later verdict on the same standstill names somebody else, or nobody.

The address is a secret, as that of the webhook. Nothing here waits for the receiver: a command has a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import os
import shlex
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import httpx
import msgspec
from eroica.collector.webhook import TRY_S, try_to_send, usable_address
from eroica.model.verdict import Finding, Verdict

from eroica_c4d.options import Options
from eroica_c4d.records import Action, Communication, Order

_WAYS = ("connection", "sending", "receiving")
log = logging.getLogger("eroica.collector")
ORDERS_FILE = "orders.jsonl"
#: Pauses between two tries, seconds.
_PAUSES_S = (1.0, 2.0, 4.0)
#: A command that takes longer over an order is ended, seconds.
_COMMAND_S = 60.0


class Steering:
    """Decides for one job: a state machine without I/O.

    Args:
        job: Its name.
        options: `act_from`, `act_pause_s`, `act_most`.
    """

    def __init__(self, job: str, options: Options) -> None:
        self._job = job
        self._options = options
        self._given: list[Order] = []
        self._held: tuple[int, Verdict] | None = None
        self._last_at = float("-inf")
        self._count = 0

    def resume(self, now: float, orders: list[Order], wall: datetime.datetime) -> None:
        """A collector before this one has given these: neither repeated, nor followed sooner than by its own.

        Args:
            now: Seconds, on the clock of `judged`.
            orders: In the order in which they were given.
            wall: The time of day at `now`, with its zone.
        """
        self._count = max((order.order for order in orders), default=0)
        self._given = list(orders)
        if orders:
            self._last_at = now  # one that does not say when may have been given just now
            with contextlib.suppress(ValueError, TypeError):
                age = wall - datetime.datetime.fromisoformat(orders[-1].at)
                self._last_at = now - max(0.0, age.total_seconds())

    def judged(
        self, now: float, window_id: int, verdict: Verdict, standing: Collection[int] | None = None
    ) -> Order | str | None:
        """A verdict stands.

        Args:
            now: Seconds.
            window_id: Its window.
            verdict: What it says.
            standing: Windows whose verdict on a standstill still holds; None: this one's does if it is "blocked".

        Returns:
            The order to give; why it is held back, where it is sure enough, or why the one that was held is not given
            any more; None where there is nothing to say.
        """
        stands = verdict.verdict == "blocked" if standing is None else window_id in standing
        dropped = self._reconsider(window_id, verdict) if stands else None
        finding = self._sure(window_id, verdict)
        if finding is None:
            return dropped
        order = self._order(window_id, verdict, finding)
        if any(_covers(other, order) for other in self._given):
            return dropped
        if self._count >= self._options.act_most:
            return f"no order for window {window_id}: {self._count} have been given, the most of one job (act_most)"
        if now - self._last_at < self._options.act_pause_s:
            why = f"no order for window {window_id}: the last one is {now - self._last_at:.0f} s old (act_pause_s)"
            if not (order.restart and stands):
                return why
            self._held = window_id, verdict
            return f"{why}; it is given after that if the job still stands"
        self._given.append(order)
        self._count, self._last_at = order.order, now
        return order

    def _reconsider(self, window_id: int, verdict: Verdict) -> str | None:
        """Forget what is held if a later verdict on the standstill does not bear it out; say so."""
        if self._held is None or _agree(verdict, self._held[1]):
            return None
        (held_id, _), self._held = self._held, None
        return f"no order for window {held_id}, which was held back: window {window_id} does not bear it out"

    @property
    def holds(self) -> bool:
        """An order waits for the end of the pause."""
        return self._held is not None

    def tick(self, now: float, standing: Collection[int]) -> Order | str | None:
        """Time passed.

        Args:
            now: Seconds, on the clock of `judged`.
            standing: Windows whose verdict on a standstill still holds; what was held for another one is forgotten.

        Returns:
            As `judged`, of the order that is held, once the pause is over.
        """
        if self._held is not None and self._held[0] not in standing:
            self._held = None
        if self._held is None or now - self._last_at < self._options.act_pause_s:
            return None
        (window_id, verdict), self._held = self._held, None
        return self.judged(now, window_id, verdict)

    def _order(self, window_id: int, verdict: Verdict, finding: Finding) -> Order:
        """Word the next order."""
        return Order(
            job=self._job,
            order=self._count + 1,
            action=_action(verdict, finding),
            workers=finding.workers,
            hosts=finding.hosts,
            restart=verdict.verdict == "blocked",
            confidence=finding.confidence,
            cause=finding.cause,
            found_by=verdict.found_by,
            window=window_id,
            summary=verdict.summary,
            at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds"),
        )

    def _sure(self, window_id: int, verdict: Verdict) -> Finding | None:
        finding = verdict.cause
        if self._options.act_from <= 0 or not window_id or verdict.verdict not in ("slow", "blocked"):
            return None
        if finding is None or finding.scope != "some" or finding.confidence < self._options.act_from:
            return None
        return finding if finding.workers or finding.hosts else None


def _covers(given: Order, order: Order) -> bool:
    """Return whether an order adds nothing to one before: workers or hosts in common, and no more is asked for."""
    is_same = not (set(given.workers).isdisjoint(order.workers) and set(given.hosts).isdisjoint(order.hosts))
    isolates = given.action != "avoid-path" or order.action == "avoid-path"
    return is_same and isolates and given.restart >= order.restart


def _agree(later: Verdict, earlier: Verdict) -> bool:
    """Return whether a later verdict on a standstill names somebody whom the earlier one names; surely or not."""
    one, other = later.cause, earlier.cause
    if later.verdict != "blocked" or one is None or other is None or one.scope != "some":
        return False
    if one.workers and other.workers:
        return not set(one.workers).isdisjoint(other.workers)
    return not set(one.hosts).isdisjoint(other.hosts)


def _action(verdict: Verdict, finding: Finding) -> Action:
    told = verdict.communication and msgspec.convert(verdict.communication, Communication)
    places = (told.place, *told.further) if told else ()
    kind = next((place.kind for place in places if place.hosts == finding.hosts), "")
    if kind in _WAYS or (finding.cause == "slow-link" and len(finding.hosts) > 1):
        return "avoid-path"  # nobody at its ends is to blame
    return "isolate-worker" if finding.workers else "isolate-host"


class Orders:
    """Gives the orders of one job.

    Args:
        job: Its name.
        run: The run directory.
        options: To whom, and when.
        note: Where to say what people should know.
        standing: Windows whose verdict on a standstill still holds.
        lapsed: Those whose verdict on a standstill holds no longer: nothing is ordered, or sent again, for them.
    """

    def __init__(
        self,
        job: str,
        run: Path,
        options: Options,
        note: Callable[[str], object],
        standing: Callable[[], Collection[int]] = frozenset,
        lapsed: Callable[[], Collection[int]] = frozenset,
    ) -> None:
        self._steering = Steering(job, options)
        self._path = run / ORDERS_FILE
        self._options = options
        self._url = usable_address(options.on_verdict_url)
        self._note = note
        self._standing = standing
        self._lapsed = lapsed
        self._tasks: set[asyncio.Task[None]] = set()
        if options.on_verdict_url and not self._url:
            note("EROICA_ON_VERDICT_URL is no http or https address; nobody is given orders there")
        if (options.on_verdict or self._url) and options.act_from <= 0:
            note("orders are off: EROICA_ACT_FROM says from which confidence on they are given, as 0.95")

    def resume(self) -> None:
        """Go on where a collector before this one ended."""
        orders = []
        with contextlib.suppress(OSError):
            for line in self._path.read_bytes().splitlines():
                with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError):
                    orders.append(msgspec.json.decode(line, type=Order))
        self._steering.resume(time.monotonic(), orders, datetime.datetime.now(datetime.timezone.utc))

    def judged(self, window_id: int, verdict: Verdict) -> None:
        """A verdict stands (window 0: that of the whole job). Never waits."""
        if window_id in self._lapsed():  # the job went on, or was started again, while it was made
            return
        self._follow(self._steering.judged(time.monotonic(), window_id, verdict, self._standing()))

    def tick(self) -> None:
        """Give what is held back once the pause is over, if the job still stands."""
        self._follow(self._steering.tick(time.monotonic(), self._standing()))

    def reported(self, host: str, record: bytes) -> None:
        """Agents tell nothing."""

    def metrics(self) -> tuple[()]:
        """There are none."""
        return ()

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
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience_s)

    async def _give(self, order: Order) -> None:
        body = msgspec.json.encode(order)
        if self._options.on_verdict:
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
                *shlex.split(self._options.on_verdict),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                env={name: value for name, value in os.environ.items() if not name.startswith("EROICA_")},
            )
        except (OSError, ValueError, IndexError) as error:
            return f"it cannot be started ({error})"
        try:
            await asyncio.wait_for(process.communicate(body + b"\n"), _COMMAND_S)
        except (TimeoutError, asyncio.TimeoutError):
            process.kill()
            await process.wait()
            return f"it took longer than {_COMMAND_S:g} s and was ended"
        return "taken" if process.returncode == 0 else f"it ended with status {process.returncode}"

    async def _send(self, body: bytes, order: Order) -> str:
        problem = ""
        async with httpx.AsyncClient(timeout=TRY_S, follow_redirects=False, trust_env=False) as client:
            for pause_s in (*_PAUSES_S, None):
                if order.window in self._lapsed():
                    return "; ".join(filter(None, (problem, "the job goes on, or was started again, meanwhile")))
                problem, wanted_s = await try_to_send(client, self._url, body)
                if not problem or pause_s is None or wanted_s is None:
                    break
                await asyncio.sleep(pause_s)
        return problem or "taken"

    def _write(self, line: dict[str, Any]) -> None:
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(handle, "ab") as file:
                file.write(msgspec.json.encode(line) + b"\n")
        except OSError as error:
            self._note(f"an order could not be written down: {error.strerror}")
            log.error("an order could not be written down: %s", error.strerror)
