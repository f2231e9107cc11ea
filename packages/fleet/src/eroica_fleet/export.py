"""The documented tables as Parquet files, for DuckDB, pandas and whoever else reads columns."""

from __future__ import annotations

import io
import time

import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa
from eroica.errors import InputError
from starlette.responses import Response

from eroica_fleet.asking import Ask, Missing
from eroica_fleet.patterns import PatternStore
from eroica_fleet.queries import run_row
from eroica_fleet.tables import culprits, findings, pattern_files, run_hosts, runs, verdicts

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
