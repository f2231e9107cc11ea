"""What the service answers: runs, their course and windows as JSON, and the documented tables as Parquet files."""

from __future__ import annotations

import io
import json
import time
import zlib
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa
from eroica.errors import InputError
from eroica.fleet.records import Points
from eroica.model.history import IterationHistory
from eroica.model.verdict import Verdict
from starlette.responses import Response

from eroica_fleet.asking import Ask, Missing
from eroica_fleet.database import (
    alerts,
    culprits,
    findings,
    pattern_files,
    run_hosts,
    runs,
    standstills,
    times,
    verdicts,
)
from eroica_fleet.pieces import PatternStore

#: A run that was not heard of for so long, and has not said that it is over, is lost.
LOST_S = 180.0
_MOST = 500
_STATES = ("running", "lost", "over", "slow", "blocked", "healthy", "undetermined")


class RunLine(msgspec.Struct, frozen=True, kw_only=True):
    """A run in one line of a list.

    Attributes:
        state: "running", "lost" (not heard of, and not over) or "over".
        spark: Its last mean iteration times, milliseconds.
        verdict: Of its newest window, or the final one; "" without any.
    """

    id: int
    job: str
    commit: str
    began_at: float
    heard_at: float
    state: str
    phase: str
    iteration: int
    mean_ms: float | None
    best_ms: float | None
    workers: int
    hosts: int
    spark: list[float]
    verdict: str
    cause: str
    summary: str
    judged_at: float | None
    changed: int


class RunList(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a list of runs, the last heard of first.

    Attributes:
        after: Hand it over to get what follows; "" at the end.
        all: How many there are, up to 100,000.
    """

    runs: list[RunLine]
    after: str
    all: int


class VerdictLine(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict in one line."""

    run_id: int
    window_id: int
    judged_at: float
    purpose: str
    verdict: str
    summary: str
    cause: str
    function: str
    gain: float | None
    confidence: float
    baseline_ms: float | None
    current_ms: float | None


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run: its line, iteration times and verdicts."""

    run: RunLine
    message: str
    host: str
    eroica_version: str
    names: list[str]
    times: Points
    verdicts: list[VerdictLine]
    pattern_workers: dict[int, int]
    standstills: list[int]


def line_of(row: Any, now: float) -> RunLine:
    """A row of `runs` as a line."""
    state = "over" if row.phase == "over" else "lost" if now - row.heard_at > LOST_S else "running"
    return RunLine(
        id=row.id,
        job=row.job,
        commit=row.commit_id,
        state=state,
        spark=json.loads(row.spark),
        **{name: getattr(row, name) for name in _SAME},
    )


_SAME = (
    *("began_at", "heard_at", "phase", "iteration", "mean_ms", "best_ms", "workers", "hosts"),
    *("verdict", "cause", "summary", "judged_at", "changed"),
)


def list_runs(ask: Ask) -> RunList:
    """Runs that a search finds: `q` in job, commit, cause or host; `state`; `job`; `host`; `after`; `limit`.

    Raises:
        InputError: A parameter is none.
    """
    now, where = time.time(), [ask.caller.sees(runs)]
    limit = int(ask.number("limit", 100, 1, _MOST))
    where += _found(ask, now)
    with ask.engine.connect() as connection:
        counted = sa.select(runs.c.id).where(*where).limit(100_000).subquery()
        total = connection.execute(sa.select(sa.func.count()).select_from(counted)).scalar_one()
        after = ask.text("after")
        if after:
            heard, _, run_id = after.partition("-")
            try:
                last = float(heard), int(run_id)
            except ValueError:
                raise InputError("after is what an earlier answer said") from None
            where.append(sa.tuple_(runs.c.heard_at, runs.c.id) < sa.tuple_(sa.literal(last[0]), sa.literal(last[1])))
        order = (runs.c.heard_at.desc(), runs.c.id.desc())
        rows = connection.execute(sa.select(runs).where(*where).order_by(*order).limit(limit)).all()
    following = f"{rows[-1].heard_at!r}-{rows[-1].id}" if len(rows) == limit else ""
    return RunList(runs=[line_of(row, now) for row in rows], after=following, all=total)


def _found(ask: Ask, now: float) -> list[sa.ColumnElement[bool]]:
    where: list[sa.ColumnElement[bool]] = []
    search, state = ask.text("q").strip(), ask.text("state")
    if search:
        word = search.lower()
        begins = sa.or_(*(run_hosts.c.host.startswith(each, autoescape=True) for each in {search, word}))
        hosts = sa.select(run_hosts.c.run_id).where(begins, ask.caller.sees(run_hosts))
        texts = (runs.c.search.contains(word, autoescape=True), runs.c.cause.startswith(word, autoescape=True))
        where.append(sa.or_(*texts, runs.c.id.in_(hosts)))
    if ask.text("job"):
        where.append(runs.c.job == ask.text("job"))
    if ask.text("host"):
        named = sa.select(run_hosts.c.run_id).where(run_hosts.c.host == ask.text("host"), ask.caller.sees(run_hosts))
        where.append(runs.c.id.in_(named))
    if state:
        where.append(_in_state(state, now))
    return where


def _in_state(state: str, now: float) -> sa.ColumnElement[bool]:
    if state not in _STATES:
        raise InputError(f"state is one of {', '.join(_STATES)}")
    if state == "over":
        return runs.c.phase == "over"
    if state == "running":
        return sa.and_(runs.c.phase != "over", runs.c.heard_at >= now - LOST_S)
    if state == "lost":
        return sa.and_(runs.c.phase != "over", runs.c.heard_at < now - LOST_S)
    return runs.c.verdict == state


def run_row(ask: Ask, connection: sa.Connection, run_id: int) -> Any:
    """The row of a run that the caller sees.

    Raises:
        Missing: There is none.
    """
    row = None
    if run_id < 2**62:
        row = connection.execute(sa.select(runs).where(runs.c.id == run_id, ask.caller.sees(runs))).first()
    if row is None:
        raise Missing("there is no such run")
    return row


def course(ask: Ask) -> Course:
    """A run with all that is known of it.

    Raises:
        Missing: The caller sees none of this number.
    """
    run_id = ask.path["run_id"]
    with ask.engine.connect() as connection:
        row = run_row(ask, connection, run_id)
        hosts = sa.select(run_hosts.c.host).where(run_hosts.c.run_id == run_id).order_by(run_hosts.c.host).limit(_MOST)
        stood = sa.select(standstills.c.window_id).where(standstills.c.run_id == run_id).limit(_MOST)
        kept = (
            sa.select(pattern_files.c.window_id, sa.func.sum(pattern_files.c.workers))
            .where(pattern_files.c.run_id == run_id)
            .group_by(pattern_files.c.window_id)
        )
        return Course(
            run=line_of(row, time.time()),
            message=row.message,
            host=row.host,
            eroica_version=row.eroica_version,
            names=list(connection.execute(hosts).scalars()),
            times=points_of(connection, run_id),
            verdicts=verdict_lines(connection, verdicts.c.run_id == run_id),
            pattern_workers={window: int(workers) for window, workers in connection.execute(kept)},
            standstills=list(connection.execute(stood).scalars()),
        )


def verdict_lines(connection: sa.Connection, *where: sa.ColumnElement[bool]) -> list[VerdictLine]:
    """Verdicts, the newest first."""
    columns = [verdicts.c[name] for name in VerdictLine.__struct_fields__]
    rows = connection.execute(sa.select(*columns).where(*where).order_by(verdicts.c.judged_at.desc()).limit(_MOST))
    return [VerdictLine(**row._mapping) for row in rows]


def points_of(connection: sa.Connection, run_id: int, most: int = 2000) -> Points:
    """Iteration times of a run, thinned to `most` points by leaving out all but every n-th."""
    parts = [
        msgspec.msgpack.decode(zlib.decompress(columns), type=Points)
        for columns in connection.execute(
            sa.select(times.c.columns).where(times.c.run_id == run_id).order_by(times.c.until_s)
        ).scalars()
    ]
    joined = join_points(parts)
    step = -(-len(joined.at_s) // most) if joined.at_s else 1
    return Points(**{name: getattr(joined, name)[::step] for name in Points.__struct_fields__})


def join_points(parts: Sequence[Points]) -> Points:
    """One after another."""
    return Points(
        **{name: tuple(value for part in parts for value in getattr(part, name)) for name in Points.__struct_fields__}
    )


def one_verdict(ask: Ask) -> Verdict:
    """The whole verdict of a window; window 0 is the run's final one.

    Raises:
        Missing: The caller sees none.
    """
    return Verdict.from_json(_record_of(ask, verdicts, "there is no verdict of this window"))


def one_standstill(ask: Ask) -> bytes:
    """What was seen of a job that stood still in this look: `blockage.json` as the collector wrote it.

    Raises:
        Missing: The caller sees none.
    """
    return _record_of(ask, standstills, "there is no record of a standstill in this window")


def _record_of(ask: Ask, table: sa.Table, missing: str) -> bytes:
    with ask.engine.connect() as connection:
        run_row(ask, connection, ask.path["run_id"])
        record = connection.execute(
            sa.select(table.c.record).where(
                table.c.run_id == ask.path["run_id"],
                table.c.window_id == min(ask.path["window_id"], 2**31 - 1),
                ask.caller.sees(table),
            )
        ).scalar()
    if record is None:
        raise Missing(missing)
    return zlib.decompress(record)


def history_of(ask: Ask) -> IterationHistory:
    """Iteration times of a run as reports draw them.

    Raises:
        Missing: The caller sees no such run.
    """
    with ask.engine.connect() as connection:
        row = run_row(ask, connection, ask.path["run_id"])
        points = points_of(connection, row.id)
    return IterationHistory(job=row.job, began=row.began_at, **msgspec.structs.asdict(points))


def changed_since(ask: Ask, since: int, most: int = 200) -> list[RunLine]:
    """Runs of which something is new, the oldest news first."""
    question = sa.select(runs).where(ask.caller.sees(runs), runs.c.changed > since).order_by(runs.c.changed)
    now = time.time()
    with ask.engine.connect() as connection:
        return [line_of(row, now) for row in connection.execute(question.limit(most))]


def alert_lines(ask: Ask) -> dict[str, list[dict[str, Any]]]:
    """Alerts that stand, and the last that no longer do."""
    names = ("kind", "text", "raised_at", "cleared_at", "sent_at")
    question = sa.select(*(alerts.c[name] for name in names)).where(ask.caller.sees(alerts))
    order = (alerts.c.cleared_at.is_not(None), alerts.c.id.desc())
    with ask.engine.connect() as connection:
        rows = connection.execute(question.order_by(*order).limit(_MOST)).all()
    return {"alerts": [dict(row._mapping) for row in rows]}


#: Table -> its columns, and when its rows are of; see docs/fleet.md.
_RUN = (
    "id",
    "job",
    "commit_id",
    "host",
    "began_at",
    "heard_at",
    "phase",
    "workers",
    "hosts",
    "best_ms",
    "verdict",
    "cause",
)
_VERDICT = (
    *("run_id", "window_id", "judged_at", "purpose", "verdict", "summary", "cause", "function", "gain", "confidence"),
    *("baseline_ms", "current_ms"),
)
_FINDING = (
    "id",
    "run_id",
    "window_id",
    "judged_at",
    "cause",
    "function",
    "kind",
    "scope",
    "workers",
    "gain",
    "confidence",
)
_CULPRIT = ("run_id", "finding_id", "judged_at", "host", "device", "global_rank")
EXPORTED = {
    "runs": (runs, _RUN, "heard_at"),
    "verdicts": (verdicts, _VERDICT, "judged_at"),
    "findings": (findings, _FINDING, "judged_at"),
    "culprits": (culprits, _CULPRIT, "judged_at"),
    "run_hosts": (run_hosts, ("run_id", "host"), None),
}
_DAY_S = 86_400.0
_MOST_ROWS = 2_000_000
_TYPES = {sa.Float: pa.float64(), sa.Integer: pa.int64(), sa.BigInteger: pa.int64()}


def table_file(ask: Ask) -> Response:
    """A table of the last days (`days`, 31 by default) as a Parquet file; times are seconds since 1970.

    Raises:
        Missing: There is no such table.
        InputError: It has more rows than one file is made of.
    """
    if ask.path["name"] not in EXPORTED:
        raise Missing(f"there is no such table; there are {', '.join(EXPORTED)}")
    table, names, timed = EXPORTED[ask.path["name"]]
    question = sa.select(*(table.c[name] for name in names)).where(ask.caller.sees(table))
    if timed is not None:
        question = question.where(table.c[timed] >= time.time() - ask.number("days", 31, 1 / 24, 3650) * _DAY_S)
    with ask.engine.connect() as connection:
        rows = connection.execute(question.limit(_MOST_ROWS + 1)).all()
    if len(rows) > _MOST_ROWS:
        raise InputError(f"more than {_MOST_ROWS} rows; ask for fewer days")
    schema = pa.schema([(name, _TYPES.get(type(table.c[name].type), pa.string())) for name in names])
    columns = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(schema)]
    return _file(pa.table(columns, schema=schema))


def patterns_file(ask: Ask, store: PatternStore) -> Response:
    """The patterns of a window as one Parquet file, a row for each function on each worker.

    Raises:
        Missing: The caller sees no such run, or it kept no patterns of this window.
        InputError: There are more than one file is made of.
    """
    window_id = min(ask.path["window_id"], 2**31 - 1)
    with ask.engine.connect() as connection:
        run = run_row(ask, connection, ask.path["run_id"])
        mine = (pattern_files.c.run_id == run.id, pattern_files.c.window_id == window_id)
        rows = connection.execute(sa.select(pattern_files).where(*mine).order_by(pattern_files.c.block)).all()
    if not rows:
        raise Missing("no patterns of this window are kept")
    if sum(row.rows for row in rows) > _MOST_ROWS:
        raise InputError(f"more than {_MOST_ROWS} rows; read the files where patterns are kept")
    return _file(pa.concat_tables([store.read(row.path) for row in rows]))


def _file(table: pa.Table) -> Response:
    out = io.BytesIO()
    pq.write_table(table, out, compression="zstd")
    return Response(out.getvalue(), media_type="application/vnd.apache.parquet")
