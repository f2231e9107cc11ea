"""Insights behind doors, worked out at most every half minute; and a run beside earlier runs of the same job."""

from __future__ import annotations

import json
import logging
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from eroica.model.shares import percent
from starlette.responses import Response

from eroica_fleet.asking import Ask, Door, answer
from eroica_fleet.database import pattern_files, repairs, runs
from eroica_fleet.evidence import hosts_of, lives, namings, onsets
from eroica_fleet.findings import FunctionFact, HostFact, TrendFact, function_facts, host_facts, trend_facts
from eroica_fleet.queries import run_row
from eroica_fleet.tenants import Caller

#: Earlier runs that a run is compared with, and the fewest that say anything of how much they vary.
_EARLIER, _FEWEST = 5, 1
#: A run is slower from this share on, and from so many median deviations of the earlier runs.
_SLOWER, _DEVIATIONS = 0.03, 4.5
#: A function is named if it took up at least this share of what the run got slower.
_PART = 0.25


class EarlierFact(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is slower than earlier ones of its job, with as many workers.

    Attributes:
        change: How much longer its iterations are, as a share of the earlier ones'.
        before_ms: Median over the earlier runs of their best mean iteration.
        earlier: How many earlier runs there are.
        function: Whose critical time grew most, "" where no patterns tell.
        function_ms: Its critical milliseconds an iteration now, on average over workers...
        function_before_ms: ...and before.
        summary: The same as a sentence.
    """

    run: int
    job: str
    commit: str
    earlier_commit: str
    change: float
    before_ms: float
    now_ms: float
    earlier: int
    function: str
    function_ms: float
    function_before_ms: float
    heard_at: float
    summary: str


class _Past(NamedTuple):
    run: Any
    before: Sequence[Any]
    before_ms: float
    change: float


def earlier_facts(connection: sa.Connection, caller: Caller, since: float) -> list[EarlierFact]:
    """The newest run of each job, where it is slower than the job's earlier runs; the most slowed first."""
    names = ("id", "project_id", "job", "commit_id", "began_at", "heard_at", "best_ms", "workers")
    rows = connection.execute(
        sa.select(*(runs.c[name] for name in names))
        .where(caller.sees(runs), runs.c.heard_at >= since, runs.c.best_ms.is_not(None))
        .order_by(runs.c.began_at)
    ).all()
    of_job: dict[tuple[int, str], list[Any]] = defaultdict(list)
    for row in rows:
        of_job[row.project_id, row.job].append(row)
    facts = [
        _fact(connection, past)
        for found in of_job.values()
        if (past := _past(found[-1], found[:-1])) is not None and _is_slower(past)
    ]
    return sorted(facts, key=lambda fact: -fact.change)


def compared(connection: sa.Connection, caller: Caller, run_id: int) -> EarlierFact | None:
    """One run beside the earlier ones of its job, slower or not; None where there is nothing to compare with."""
    run = connection.execute(sa.select(runs).where(caller.sees(runs), runs.c.id == run_id)).first()
    if run is None or run.best_ms is None:
        return None
    before = connection.execute(
        sa.select(runs)
        .where(
            runs.c.project_id == run.project_id,
            runs.c.job == run.job,
            runs.c.began_at < run.began_at,
            runs.c.best_ms.is_not(None),
            runs.c.workers == run.workers,
        )
        .order_by(runs.c.began_at.desc())
        .limit(_EARLIER)
    ).all()
    past = _past(run, before[::-1])
    return None if past is None else _fact(connection, past)


def _past(run: Any, before: Sequence[Any]) -> _Past | None:
    same = [row for row in before if row.workers == run.workers][-_EARLIER:]
    if len(same) < _FEWEST:
        return None
    before_ms = median(row.best_ms for row in same)
    return _Past(run, same, before_ms, run.best_ms / before_ms - 1) if before_ms > 0 else None


def _is_slower(past: _Past) -> bool:
    deviation: float = median(abs(row.best_ms - past.before_ms) for row in past.before) / past.before_ms
    return bool(past.change > max(_SLOWER, _DEVIATIONS * deviation))


def _fact(connection: sa.Connection, past: _Past) -> EarlierFact:
    run = past.run
    now = _profile(connection, [run.id])
    before = _profile(connection, [row.id for row in past.before])
    function, was, is_now = _grown(before, now, past)
    slower = f"{percent(abs(past.change))} {'slower' if past.change >= 0 else 'faster'}"
    commit = f"commit {run.commit_id}" if run.commit_id else "this run"
    where = f", in {function}: {is_now:.1f} ms an iteration, {was:.1f} before" if function else ""
    return EarlierFact(
        run=run.id,
        job=run.job,
        commit=run.commit_id,
        earlier_commit=past.before[-1].commit_id,
        change=round(past.change, 4),
        before_ms=past.before_ms,
        now_ms=run.best_ms,
        earlier=len(past.before),
        function=function,
        function_ms=is_now,
        function_before_ms=was,
        heard_at=run.heard_at,
        summary=f"{run.job}: {commit} is {slower} than {_runs_before(len(past.before))}{where}.",
    )


def _runs_before(number: int) -> str:
    return "the run before" if number == 1 else f"the {number} runs before"


def _profile(connection: sa.Connection, run_ids: Sequence[int]) -> dict[str, float]:
    """Function -> critical milliseconds an iteration and worker, median over the runs that have patterns.

    Baseline windows are preferred: the others were opened because something was wrong.
    """
    columns = (pattern_files.c.run_id, pattern_files.c.purpose, pattern_files.c.workers, pattern_files.c.iterations)
    rows = connection.execute(
        sa.select(*columns, pattern_files.c.profile).where(pattern_files.c.run_id.in_(run_ids))
    ).all()
    of_run: dict[int, list[Any]] = defaultdict(list)
    for row in rows:
        of_run[row.run_id].append(row)
    found: dict[str, list[float]] = defaultdict(list)
    for mine in of_run.values():
        healthy = [row for row in mine if row.purpose == "baseline"] or mine
        shares = sum(row.workers * row.iterations for row in healthy)
        total: dict[str, float] = defaultdict(float)
        for row in healthy:
            for name, seconds in json.loads(zlib.decompress(row.profile)).items():
                total[name] += seconds
        for name, seconds in total.items():
            found[name].append(1e3 * seconds / shares)
    return {name: round(median(values + [0.0] * (len(of_run) - len(values))), 3) for name, values in found.items()}


def _grown(before: Mapping[str, float], now: Mapping[str, float], past: _Past) -> tuple[str, float, float]:
    """The function that grew most, where it grew by a good part of the slowdown."""
    if not before or not now:
        return "", 0.0, 0.0
    growth = {name: now.get(name, 0.0) - before.get(name, 0.0) for name in {*before, *now}}
    name = max(growth, key=lambda each: growth[each])
    if growth[name] <= 0 or growth[name] < _PART * past.change * past.before_ms:
        return "", 0.0, 0.0
    return name, before.get(name, 0.0), now.get(name, 0.0)


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
