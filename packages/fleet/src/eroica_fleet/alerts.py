"""What somebody should hear of: alerts, raised once, told once, cleared when they no longer hold; and metrics.

An alert is a row before anybody is told, so that a service that is killed tells it when it is back; a message that was
under way then may come twice, never not at all.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import httpx
import msgspec
import sqlalchemy as sa
from eroica import __version__
from eroica.model.shares import percent
from eroica.model.words import clean
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest
from starlette.responses import Response

from eroica_fleet.asking import Ask
from eroica_fleet.database import alerts, projects, runs, writing
from eroica_fleet.findings import WITHIN_S
from eroica_fleet.insights import Insights
from eroica_fleet.queries import LOST_S

log = logging.getLogger("eroica_fleet")

#: One message may take so long, and all of one project's in a round, seconds.
_TRY_S, _ROUND_S = 10.0, 20.0
#: Locks of the database, one each for each project.
_SETTLING, _TELLING = 0x45524F4A, 0x45524F54
_MOST = 20
#: A job that is slower than before is worth a message from here on.
_SLOWER = 0.05
#: A function is, in so many jobs and more, and such a share of all.
_JOBS, _SHARE_OF_JOBS = 3, 0.02


class Wanted(NamedTuple):
    """Something that holds now.

    Attributes:
        key: The same as long as it is the same thing.
    """

    key: str
    kind: str
    text: str


def wanted(insights: Insights) -> list[Wanted]:
    """What is worth an alert."""
    found = [
        Wanted(
            f"host {fact.host} {fact.repaired_at or 0:.0f}",
            "host",
            f"Host {fact.host} was named by {fact.named} of {fact.runs} runs, in {fact.jobs} jobs, for "
            f"{', '.join(fact.causes)}; by chance {fact.expected:.1f} would."
            + (" It was repaired before, and is named again." if fact.again else ""),
        )
        for fact in insights.hosts
        if fact.suspicious
    ]
    found += [
        Wanted(
            f"trend {fact.cause} {fact.began_at:.0f}",
            "trend",
            f"{fact.cause} began in {fact.jobs} of {fact.running} running jobs within "
            f"{max(fact.until_at - fact.began_at, 60) / 60:.0f} min ({fact.function}).",
        )
        for fact in insights.trends
    ]
    found += [
        Wanted(
            f"function {fact.function} {fact.cause}",
            "function",
            f"{fact.function} ({fact.cause}) is slow in {fact.jobs} of {fact.of_jobs} jobs and costs about "
            f"{percent(fact.gain)} of an iteration.",
        )
        for fact in insights.functions
        if fact.jobs >= max(_JOBS, _SHARE_OF_JOBS * fact.of_jobs)
    ]
    found += [
        Wanted(f"slower {fact.run}", "slower", fact.summary) for fact in insights.slower if fact.change >= _SLOWER
    ]
    return found


def settle(engine: sa.Engine, project_id: int, insights: Insights, now: float | None = None) -> int:
    """Raise what is new and clear what no longer holds; how many were raised.

    Several services may do so, each with insights of another moment: what was raised or cleared after them stands.
    """
    now = time.time() if now is None else now
    with writing(engine).begin() as connection:
        if engine.dialect.name == "postgresql":  # one service at a time
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_SETTLING, project_id)))
        columns = (alerts.c.id, alerts.c.key, alerts.c.raised_at, alerts.c.cleared_at)
        later = sa.or_(alerts.c.cleared_at.is_(None), alerts.c.cleared_at > insights.at)
        rows = connection.execute(sa.select(*columns).where(alerts.c.project_id == project_id, later)).all()
        known = {row.key for row in rows}
        holds = _under_known_keys({one.key[:400]: one for one in wanted(insights)}, known)
        gone = [
            row.id for row in rows if row.key not in holds and row.cleared_at is None and row.raised_at < insights.at
        ]
        if gone:
            connection.execute(sa.update(alerts).where(alerts.c.id.in_(gone)).values(cleared_at=now))
        new = [one for key, one in holds.items() if key not in known]
        for one in new:
            row = {"key": one.key[:400], "kind": one.kind, "text": clean(one.text, 600), "raised_at": now}
            connection.execute(sa.insert(alerts).values(project_id=project_id, **row))
    return len(new)


def _under_known_keys(holds: dict[str, Wanted], known: Collection[str]) -> dict[str, Wanted]:
    """The same under keys that are known already: a late report moves the begin of a moment by less than one.

    The nearest are the same one; two moments never are.
    """
    moved = [
        (abs(began - before), old, new)
        for new, (head, began) in _moments(holds)
        for old, (of_old, before) in _moments(known)
        if head == of_old and abs(began - before) <= WITHIN_S and new not in known and old not in holds
    ]
    holds = dict(holds)
    for _, old, new in sorted(moved):
        if new in holds and old not in holds:
            holds[old] = holds.pop(new)
    return holds


def _moments(keys: Iterable[str]) -> list[tuple[str, tuple[str, float]]]:
    """Keys of moments, each with its cause and begin."""
    split = [(key, key.rpartition(" ")) for key in keys if key.startswith("trend ")]
    return [(key, (head, float(began))) for key, (head, _, began) in split]


def tell(engine: sa.Engine, project_id: int) -> int:
    """Send what nobody was told of to the project's webhook; how many were sent.

    The address is a secret: it is in no log and in no error.
    """
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":  # one service at a time; the others leave it to that one
            is_ours = sa.select(sa.func.pg_try_advisory_xact_lock(_TELLING, project_id))
            if not connection.execute(is_ours).scalar_one():
                return 0
        return _tell(engine, connection, project_id)


def _tell(engine: sa.Engine, connection: sa.Connection, project_id: int) -> int:
    project = connection.execute(sa.select(projects).where(projects.c.id == project_id)).first()
    if project is None or not project.webhook_url:
        return 0
    question = sa.select(alerts).where(
        alerts.c.project_id == project_id, alerts.c.sent_at.is_(None), alerts.c.cleared_at.is_(None)
    )
    waiting = connection.execute(question.order_by(alerts.c.id).limit(_MOST)).all()
    sent = 0
    until = time.monotonic() + _ROUND_S
    for row in waiting:
        if time.monotonic() > until or not _post(project.webhook_url, row):
            break
        with writing(engine).begin() as writer:
            writer.execute(sa.update(alerts).where(alerts.c.id == row.id).values(sent_at=time.time()))
        sent += 1
    return sent


def _post(url: str, row: Any) -> bool:
    body = {"text": f"Eroica's fleet: {row.text}", "kind": row.kind, "raised_at": row.raised_at}
    headers = {"User-Agent": f"eroica/{__version__}", "Content-Type": "application/json"}
    try:
        status = asyncio.run(asyncio.wait_for(_status(url, msgspec.json.encode(body), headers), _TRY_S))
    except (httpx.HTTPError, httpx.InvalidURL, asyncio.TimeoutError, ValueError) as error:
        log.warning("a webhook could not be told: %s", type(error).__name__)
        return False
    is_told = 200 <= status < 300
    if not is_told:
        log.warning("a webhook answers %d", status)
    return is_told


async def _status(url: str, body: bytes, headers: dict[str, str]) -> int:
    """The status is enough: what follows may drip for ever, and so may the headers, but for the caller's deadline."""
    async with (
        httpx.AsyncClient(timeout=_TRY_S) as client,
        client.stream("POST", url, content=body, headers=headers) as answer,
    ):
        return answer.status_code


#: Hosts with a series of their own: those that chance does not account for.
_MOST_HOSTS = 100


def metrics(ask: Ask, insights: Insights) -> Response:
    """Runs by state and verdict, suspicious hosts, alerts that stand."""
    registry = CollectorRegistry()
    by_state = Gauge("eroica_fleet_runs", "Runs by state and last verdict.", ["state", "verdict"], registry=registry)
    now = time.time()
    state = sa.case((runs.c.phase == "over", "over"), (runs.c.heard_at < now - LOST_S, "lost"), else_="running").label(
        "state"
    )
    counted = (
        sa.select(state, runs.c.verdict, sa.func.count()).where(ask.caller.sees(runs)).group_by(state, runs.c.verdict)
    )
    open_ones = sa.select(alerts.c.kind, sa.func.count()).where(ask.caller.sees(alerts), alerts.c.cleared_at.is_(None))
    standing = Gauge("eroica_fleet_alerts", "Alerts that stand, by kind.", ["kind"], registry=registry)
    with ask.engine.connect() as connection:
        for word, verdict, count in connection.execute(counted):
            by_state.labels(word, verdict or "none").set(count)
        for kind in ("host", "trend", "function", "slower"):
            standing.labels(kind).set(0)
        for kind, count in connection.execute(open_ones.group_by(alerts.c.kind)):
            standing.labels(kind).set(count)
    named = Gauge("eroica_fleet_host_named_runs", "Runs that named a suspicious host.", ["host"], registry=registry)
    for fact in [one for one in insights.hosts if one.suspicious][:_MOST_HOSTS]:
        named.labels(fact.host).set(fact.named)
    slower = Gauge("eroica_fleet_slower_jobs", "Jobs slower than their own earlier runs.", registry=registry)
    slower.set(len(insights.slower))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
