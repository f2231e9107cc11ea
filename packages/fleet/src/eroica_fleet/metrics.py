"""A project's fleet in Prometheus's format."""

from __future__ import annotations

import time

import sqlalchemy as sa
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest
from starlette.responses import Response

from eroica_fleet.asking import Ask
from eroica_fleet.insights.ask import Insights
from eroica_fleet.queries import LOST_S
from eroica_fleet.tables import alerts, runs

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
