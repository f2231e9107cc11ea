"""Insights behind doors: worked out for a project at most every half minute, however many ask."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from starlette.responses import Response

from eroica.fleet.asking import Ask, Door, answer
from eroica.fleet.insights.earlier import EarlierFact, compared, earlier_facts
from eroica.fleet.insights.evidence import hosts_of, lives, namings, onsets
from eroica.fleet.insights.functions import FunctionFact, function_facts
from eroica.fleet.insights.hosts import HostFact, host_facts
from eroica.fleet.insights.trends import TrendFact, trend_facts
from eroica.fleet.queries import run_row
from eroica.fleet.tables import repairs
from eroica.fleet.tenants import Caller

_FRESH_S = 30.0
_DAY_S = 86_400.0
DAYS = 30.0
_MOST_KEPT = 200


class Insights(msgspec.Struct, frozen=True, kw_only=True):
    """All insights of a project over a time."""

    hosts: list[HostFact]
    functions: list[FunctionFact]
    trends: list[TrendFact]
    slower: list[EarlierFact]


def work_out(engine: sa.Engine, caller: Caller, since: float) -> Insights:
    """All insights from what was reported since then."""
    with engine.connect() as connection:
        living = lives(connection, caller, since)
        named = namings(connection, caller, since)
        seen = onsets(connection, caller, since)
        hosts = hosts_of(connection, caller, {naming.run for naming in named})
        mended = (
            sa.select(repairs.c.host, sa.func.max(repairs.c.at)).where(caller.sees(repairs)).group_by(repairs.c.host)
        )
        last_repair = {row[0]: row[1] for row in connection.execute(mended)}
        slower = earlier_facts(connection, caller, since)
    return Insights(
        hosts=host_facts(named, hosts, living, last_repair),
        functions=function_facts(seen, living),
        trends=trend_facts(seen, living),
        slower=slower,
    )


class Asked:
    """Remembers insights for a moment.

    Args:
        engine: The database.
        clock: Seconds, monotonic.
    """

    def __init__(self, engine: sa.Engine, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._kept: dict[tuple[int | None, float], tuple[float, Insights]] = {}
        self._lock = threading.Lock()

    def doors(self) -> Sequence[Door]:
        """All there are."""
        return (
            Door("/v1/hosts", "GET", "read", lambda ask: self._listed(ask, "hosts")),
            Door("/v1/functions", "GET", "read", lambda ask: self._listed(ask, "functions")),
            Door("/v1/trends", "GET", "read", self._trends),
            Door("/v1/runs/{run_id:int}/earlier", "GET", "read", _earlier),
        )

    def insights(self, caller: Caller, days: float = DAYS) -> Insights:
        """Insights of the last days, as they were half a minute ago at the oldest."""
        key = (caller.project_id, days)
        with self._lock:  # many who ask at once wait for one answer
            kept = self._kept.get(key)
            if kept is None or self._clock() - kept[0] > _FRESH_S:
                if len(self._kept) >= _MOST_KEPT:
                    self._kept.clear()
                found = work_out(self._engine, caller, time.time() - days * _DAY_S)
                kept = self._kept[key] = (self._clock(), found)
            return kept[1]

    def forget(self) -> None:
        """Work everything out anew."""
        with self._lock:
            self._kept.clear()

    def _listed(self, ask: Ask, name: str) -> Response:
        found: list[Any] = getattr(self.insights(ask.caller, _days(ask)), name)
        search = ask.text("q").lower()
        if search:
            found = [one for one in found if search in msgspec.json.encode(one).decode().lower()]
        limit = int(ask.number("limit", 100, 1, 1000))
        return answer({name: found[:limit], "all": len(found)})

    def _trends(self, ask: Ask) -> Response:
        found = self.insights(ask.caller, _days(ask))
        return answer({"trends": found.trends[:1000], "slower": found.slower[:1000]})


def _days(ask: Ask) -> float:
    return ask.number("days", DAYS, 1 / 24, 3650)


def _earlier(ask: Ask) -> Response:
    with ask.engine.connect() as connection:
        run_row(ask, connection, ask.path["run_id"])
        return answer({"earlier": compared(connection, ask.caller, ask.path["run_id"])})
