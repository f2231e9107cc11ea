"""The documented tables as Parquet files, for DuckDB, pandas and whoever else reads columns."""

from __future__ import annotations

import io
import time

import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa
from starlette.responses import Response

from eroica.errors import InputError
from eroica.fleet.asking import Ask, Missing
from eroica.fleet.tables import culprits, findings, run_hosts, runs, verdicts

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
    out = io.BytesIO()
    pq.write_table(pa.table(columns, schema=schema), out, compression="zstd")
    return Response(out.getvalue(), media_type="application/vnd.apache.parquet")
