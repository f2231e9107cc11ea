"""The service without its socket: doors, and who answers behind each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import msgspec
import sqlalchemy as sa
from eroica.fleet.records import Receipt
from starlette.applications import Starlette
from starlette.responses import Response

from eroica_fleet import queries
from eroica_fleet.administration import Administration
from eroica_fleet.asking import REPORT_BYTES, Ask, Door, Forbidden, Gate, answer, problem
from eroica_fleet.events import Events
from eroica_fleet.export import patterns_file, table_file
from eroica_fleet.insights.ask import FRESH_S, Asked
from eroica_fleet.intake import Ready, WrongVersion, decode_batch, prepare
from eroica_fleet.metrics import metrics
from eroica_fleet.pages import Pages
from eroica_fleet.patterns import PatternStore
from eroica_fleet.retention import sweep, vacuum
from eroica_fleet.tenants import Callers, note
from eroica_fleet.writer import Busy, Writer

log = logging.getLogger("eroica_fleet")

#: Batches that are unpacked and checked at the same time.
_PREPARED_AT_ONCE = 4
_UPGRADE = 426


class Service:
    """What jobs report to and people look at.

    Args:
        engine: The database, up to date.
        store: Where patterns lie.
        fresh_s: Insights that are younger are not worked out anew, seconds.
    """

    def __init__(self, engine: sa.Engine, store: PatternStore, fresh_s: float = FRESH_S) -> None:
        self.engine = engine
        self.store = store
        self.callers = Callers(engine)
        self.asked = Asked(engine, fresh_s)
        self.events = Events()
        self._administration = Administration(self.callers)
        self._pages = Pages(self.callers)
        self._writer = Writer(engine)
        self._preparing = asyncio.Semaphore(_PREPARED_AT_ONCE)

    def application(self) -> Starlette:
        """The ASGI application."""
        gate = Gate(self.engine, self.callers)
        return Starlette(routes=[gate.route(door) for door in self.doors()])

    def close(self) -> None:
        """Enter what waits, and let go of the database."""
        self._writer.close()
        self.engine.dispose()

    def doors(self) -> Sequence[Door]:
        """All there are."""
        return (
            Door("/v1/reports", "POST", "report", self._report, REPORT_BYTES, at_once=True),
            Door("/v1/runs", "GET", "read", _told(queries.list_runs)),
            Door("/v1/runs/{run_id:int}", "GET", "read", _told(queries.course)),
            Door("/v1/runs/{run_id:int}/windows/{window_id:int}", "GET", "read", _told(queries.one_verdict)),
            Door("/v1/runs/{run_id:int}/windows/{window_id:int}/standstill", "GET", "read", _standstill),
            Door("/v1/alerts", "GET", "read", _told(queries.alert_lines)),
            Door("/v1/tables/{name}", "GET", "read", table_file),
            Door("/v1/events", "GET", "read", self.events.follow, at_once=True),
            Door("/metrics", "GET", "read", lambda ask: metrics(ask, self.asked.insights(ask.caller))),
            *self.asked.doors(),
            Door("/v1/runs/{run_id:int}/windows/{window_id:int}/patterns", "GET", "read", self._patterns),
            Door("/v1/sweep", "POST", "operate", self._sweep),
            *self._administration.doors(),
            *self._pages.doors(),
            Door("/healthz", "GET", None, self._health),
        )

    async def _report(self, ask: Ask) -> Response:
        """Take a batch; answered when it is on disk."""
        if ask.caller.project_id is None:
            raise Forbidden("the operator's token reports nothing; use one of a project")
        async with self._preparing:
            try:
                ready = await asyncio.to_thread(self._prepared, ask.body, ask.caller.project_id)
            except WrongVersion as error:
                return problem(_UPGRADE, str(error))
        try:
            entered = await asyncio.wrap_future(self._writer.submit(ready))
        except Busy:
            return problem(503, "too many reports wait to be stored", {"retry-after": "2"})
        for path in entered.obsolete:
            await asyncio.to_thread(self._remove, path)
        return _packed(entered.receipt)

    def _prepared(self, body: bytes, project_id: int) -> Ready:
        return prepare(decode_batch(body), project_id, self.store)

    def _remove(self, path: str) -> None:
        try:
            self.store.remove(path)
        except OSError as error:
            log.warning("a file of patterns stays behind: %s", error)

    def _patterns(self, ask: Ask) -> Response:
        return patterns_file(ask, self.store)

    def _sweep(self, ask: Ask) -> Response:
        """Remove what is due, and give its room back to the disk."""
        swept = sweep(ask.engine, self.store)
        vacuum(ask.engine)
        note(ask.engine, ask.caller, "swept", str(swept), ask.address)
        return answer(swept)

    def _health(self, ask: Ask) -> Response:
        """Whether the database answers."""
        with ask.engine.connect() as connection:
            connection.execute(sa.select(sa.literal(1)))
        return answer({"ok": True})


def _told(question: Callable[[Ask], object]) -> Callable[[Ask], Response]:
    """A question as a handler that answers in JSON."""
    return lambda ask: answer(question(ask))


def _standstill(ask: Ask) -> Response:
    return Response(queries.one_standstill(ask), media_type="application/json")


def _packed(receipt: Receipt) -> Response:
    return Response(msgspec.msgpack.encode(receipt), media_type="application/msgpack")
