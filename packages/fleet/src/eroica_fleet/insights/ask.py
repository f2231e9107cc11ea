"""Insights behind doors: worked out beside the answers, at most every half minute, however many ask."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from starlette.responses import Response

from eroica_fleet.asking import Ask, Door, answer
from eroica_fleet.insights.earlier import EarlierFact, compared, earlier_facts
from eroica_fleet.insights.evidence import hosts_of, lives, namings, onsets
from eroica_fleet.insights.functions import FunctionFact, function_facts
from eroica_fleet.insights.hosts import HostFact, host_facts
from eroica_fleet.insights.trends import TrendFact, trend_facts
from eroica_fleet.queries import run_row
from eroica_fleet.tables import repairs
from eroica_fleet.tenants import Caller

log = logging.getLogger("eroica_fleet")

#: Older insights are worked out anew, those of a large fleet less often: this share of a core at most.
FRESH_S, _MOST_CORE = 30.0, 0.02
#: Nobody is told anything older, seconds.
_OLDEST_S = 900.0
_DAY_S = 86_400.0
DAYS = 30.0
#: Insights are worked out over one of these many days: each is kept by itself, and costs its share of a core.
_SPANS = (1 / 24, 1.0, 7.0, DAYS, 90.0, 365.0, 3650.0)
_MOST_KEPT = 200


class Insights(msgspec.Struct, frozen=True, kw_only=True):
    """All insights of a project over a time.

    Attributes:
        at: When they were read from the database, seconds since 1970.
    """

    at: float
    hosts: list[HostFact]
    functions: list[FunctionFact]
    trends: list[TrendFact]
    slower: list[EarlierFact]


def work_out(engine: sa.Engine, caller: Caller, since: float) -> Insights:
    """All insights from what was reported since then."""
    at = time.time()
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
        at=at,
        hosts=host_facts(named, hosts, living, last_repair),
        functions=function_facts([onset for onset in seen if onset.last >= since], living),
        trends=trend_facts(seen, living, since),
        slower=slower,
    )


_Key = tuple["int | None", float]


class _Kept(NamedTuple):
    """Insights, when they were worked out, and until when that is not done again."""

    at: float
    fresh_until: float
    insights: Insights


class Asked:
    """Remembers insights for a moment.

    Args:
        engine: The database.
        fresh_s: Insights that are younger are not worked out anew, seconds.
        clock: Seconds, monotonic.
    """

    def __init__(
        self, engine: sa.Engine, fresh_s: float = FRESH_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._fresh_s = fresh_s
        self._engine = engine
        self._clock = clock
        self._kept: dict[_Key, _Kept] = {}
        self._locks: dict[_Key, threading.Lock] = {}
        self._under_way: set[_Key] = set()

    def doors(self) -> Sequence[Door]:
        """All there are."""
        return (
            Door("/v1/hosts", "GET", "read", lambda ask: self._listed(ask, "hosts")),
            Door("/v1/functions", "GET", "read", lambda ask: self._listed(ask, "functions")),
            Door("/v1/trends", "GET", "read", self._trends),
            Door("/v1/runs/{run_id:int}/earlier", "GET", "read", _earlier),
        )

    def insights(self, caller: Caller, days: float = DAYS) -> Insights:
        """Insights of the last days. Who asks first waits for them; from then on they are renewed beside."""
        key = (caller.project_id, days)
        kept = self._kept.get(key)
        now = self._clock()
        if kept is None or now - kept.at > _OLDEST_S:
            with self._locks.setdefault(key, threading.Lock()):  # many who ask at once wait for one answer
                kept = self._kept.get(key)
                if kept is None or now - kept.at > _OLDEST_S:
                    kept = self._renew(caller, days)
        elif now >= kept.fresh_until and key not in self._under_way:
            self._under_way.add(key)
            threading.Thread(target=self._renew_beside, args=(caller, days), daemon=True).start()
        return kept.insights

    def forget(self) -> None:
        """Work everything out anew."""
        self._kept.clear()

    def _renew(self, caller: Caller, days: float) -> _Kept:
        began, cpu = self._clock(), time.thread_time()
        found = work_out(self._engine, caller, time.time() - days * _DAY_S)
        pause_s = max(self._fresh_s, (time.thread_time() - cpu) / _MOST_CORE)
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
            self._locks.clear()
        kept = self._kept[caller.project_id, days] = _Kept(began, began + min(pause_s, _OLDEST_S), found)
        return kept

    def _renew_beside(self, caller: Caller, days: float) -> None:
        try:
            self._renew(caller, days)
        except Exception:  # the older ones stand; the next who asks tries again
            log.exception("insights could not be worked out")
        finally:
            self._under_way.discard((caller.project_id, days))

    def _listed(self, ask: Ask, name: str) -> Response:
        days = _days(ask)
        found: list[Any] = getattr(self.insights(ask.caller, days), name)
        search = ask.text("q").lower()
        if search:
            found = [one for one in found if search in msgspec.json.encode(one).decode().lower()]
        limit = int(ask.number("limit", 100, 1, 1000))
        return answer({name: found[:limit], "all": len(found), "days": days})

    def _trends(self, ask: Ask) -> Response:
        days = _days(ask)
        found = self.insights(ask.caller, days)
        return answer({"trends": found.trends[:1000], "slower": found.slower[:1000], "days": days})


def _days(ask: Ask) -> float:
    """The shortest of a few spans that holds the days that are asked for."""
    days = ask.number("days", DAYS, _SPANS[0], _SPANS[-1])
    return next(span for span in _SPANS if span >= days)


def _earlier(ask: Ask) -> Response:
    with ask.engine.connect() as connection:
        run_row(ask, connection, ask.path["run_id"])
        return answer({"earlier": compared(connection, ask.caller, ask.path["run_id"])})
