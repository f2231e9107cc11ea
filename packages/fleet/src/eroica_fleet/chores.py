"""What the service does unasked: alerts every minute; every hour what is past its days, or over a quota."""

from __future__ import annotations

import logging
import re
import sqlite3
import threading
import time
import zlib
from collections.abc import Iterable
from typing import Any

import msgspec
import sqlalchemy as sa
from eroica.fleet.records import Points

from eroica_fleet.alerts import settle, tell
from eroica_fleet.database import alerts, audit, pattern_files, pieces, projects, runs, sessions, times, writing
from eroica_fleet.insights import Asked
from eroica_fleet.pieces import PatternStore
from eroica_fleet.queries import join_points
from eroica_fleet.tenants import Caller

log = logging.getLogger("eroica_fleet")

_DAY_S = 86_400.0
#: Names of pieces are remembered so long: a job that comes back later sends what is replaced by itself.
_PIECES_S = 60 * _DAY_S
#: The operator's own lines of the audit log.
_AUDIT_S = 400 * _DAY_S
#: A file that no row names may be of a batch that is being entered; after so long it is of none.
_ORPHAN_S = 6 * 3600.0
#: Rows of iteration times of one run above which they are joined, and points that are then kept of it.
_ROWS, _POINTS = 64, 4000
_AT_ONCE = 500


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """What one sweep removed."""

    runs: int = 0
    files: int = 0
    orphans: int = 0
    joined: int = 0


def sweep(engine: sa.Engine, store: PatternStore, now: float | None = None) -> Swept:
    """Remove what is due. Rows go before their files, so that no row names a file that is gone.

    Args:
        engine: The database.
        store: Where patterns lie.
        now: Seconds since 1970, default now.
    """
    now = time.time() if now is None else now
    with engine.connect() as connection:
        granted = connection.execute(sa.select(projects)).all()
    removed_runs = removed_files = 0
    for project in granted:
        old = (runs.c.project_id == project.id, runs.c.heard_at < now - project.retention_days * _DAY_S)
        removed_runs += _forget_runs(engine, store, old)
        old = (
            pattern_files.c.project_id == project.id,
            pattern_files.c.piece_at < now - project.pattern_days * _DAY_S,
        )
        removed_files += _forget_files(engine, store, sa.select(pattern_files).where(*old))
        removed_files += _keep_within(engine, store, project.id, project.quota_bytes)
        _forget_rows(engine, project.id, now - project.retention_days * _DAY_S)
    with writing(engine).begin() as connection:
        connection.execute(sa.delete(pieces).where(pieces.c.received_at < now - _PIECES_S))
        connection.execute(sa.delete(sessions).where(sessions.c.expires_at < now))
        nobodys = (audit.c.project_id.is_(None), audit.c.at < now - _AUDIT_S)
        connection.execute(sa.delete(audit).where(*nobodys))
    return Swept(
        runs=removed_runs, files=removed_files, orphans=_sweep_orphans(engine, store, now), joined=join_times(engine)
    )


def _forget_runs(engine: sa.Engine, store: PatternStore, old: Iterable[sa.ColumnElement[bool]]) -> int:
    with engine.connect() as connection:
        ids = list(connection.execute(sa.select(runs.c.id).where(*old)).scalars())
    for at in range(0, len(ids), _AT_ONCE):
        some = ids[at : at + _AT_ONCE]
        _forget_files(engine, store, sa.select(pattern_files).where(pattern_files.c.run_id.in_(some)))
        with writing(engine).begin() as connection:  # all else of a run goes with it
            connection.execute(sa.delete(runs).where(runs.c.id.in_(some)))
    return len(ids)


def _keep_within(engine: sa.Engine, store: PatternStore, project_id: int, quota_bytes: int) -> int:
    """The oldest patterns of a project go until the rest fits its quota; verdicts stay."""
    mine = pattern_files.c.project_id == project_id
    later = sa.func.sum(pattern_files.c.bytes).over(
        order_by=(pattern_files.c.piece_at.desc(), pattern_files.c.id.desc())
    )
    counted = sa.select(pattern_files.c.id, later.label("so_far")).where(mine).subquery()
    too_much = sa.select(counted.c.id).where(counted.c.so_far > quota_bytes)
    return _forget_files(engine, store, sa.select(pattern_files).where(pattern_files.c.id.in_(too_much)))


def _forget_files(engine: sa.Engine, store: PatternStore, which: sa.Select[Any]) -> int:
    with engine.connect() as connection:
        rows = connection.execute(which.with_only_columns(pattern_files.c.id, pattern_files.c.path)).all()
    for at in range(0, len(rows), _AT_ONCE):
        some = rows[at : at + _AT_ONCE]
        with writing(engine).begin() as connection:
            connection.execute(sa.delete(pattern_files).where(pattern_files.c.id.in_([row.id for row in some])))
        for row in some:
            store.remove(row.path)
    return len(rows)


def _forget_rows(engine: sa.Engine, project_id: int, before: float) -> None:
    with writing(engine).begin() as connection:
        connection.execute(sa.delete(audit).where(audit.c.project_id == project_id, audit.c.at < before))
        connection.execute(sa.delete(alerts).where(alerts.c.project_id == project_id, alerts.c.cleared_at < before))


#: What lies beside our files in a directory or bucket is somebody's.
_OURS = re.compile(r"project=\d+/month=[\d-]+/run=[0-9a-f]+/window=[^/]+\.parquet")


def _sweep_orphans(engine: sa.Engine, store: PatternStore, now: float) -> int:
    """Files of batches whose entering was cut short, and that never came again."""
    old = {path for path, written in store.all() if written < now - _ORPHAN_S and _OURS.fullmatch(path)}
    if not old:
        return 0
    with engine.connect() as connection:
        named = set(connection.execute(sa.select(pattern_files.c.path)).scalars())
    for path in old - named:
        store.remove(path)
    return len(old - named)


def join_times(engine: sa.Engine, rows: int = _ROWS, points: int = _POINTS) -> int:
    """Join the many small rows of long runs into one each, thinned; how many runs."""
    many = sa.select(times.c.run_id).group_by(times.c.run_id).having(sa.func.count() > rows)
    with engine.connect() as connection:
        ids = list(connection.execute(many).scalars())
    for run_id in ids:
        with writing(engine).begin() as connection:
            found = connection.execute(
                sa.select(times).where(times.c.run_id == run_id).order_by(times.c.until_s).with_for_update()
            ).all()
            whole = join_points([msgspec.msgpack.decode(zlib.decompress(row.columns), type=Points) for row in found])
            step = -(-len(whole.at_s) // points)
            last = len(whole.at_s) - 1
            kept = [at for at in range(len(whole.at_s)) if at % step == 0 or at == last]
            thin = Points(**{name: tuple(getattr(whole, name)[at] for at in kept) for name in Points.__struct_fields__})
            connection.execute(sa.delete(times).where(times.c.id.in_([row.id for row in found])))
            connection.execute(
                sa.insert(times).values(
                    project_id=found[0].project_id,
                    run_id=run_id,
                    until_s=found[-1].until_s,
                    columns=zlib.compress(msgspec.msgpack.encode(thin), 6),
                )
            )
    return len(ids)


def vacuum(engine: sa.Engine) -> None:
    """Give the room of removed rows back to the disk.

    Raises:
        OSError: SQLite cannot: the disk is full, or somebody is at work for too long.
    """
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if engine.dialect.name == "sqlite":
            raw = connection.connection.driver_connection
            assert raw is not None
            try:
                raw.execute("VACUUM").close()
                raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
            except sqlite3.Error as error:
                raise OSError(f"the room of what was removed stays taken: {error}") from error
        else:
            connection.exec_driver_sql("VACUUM (ANALYZE)")


ALERTS_S, SWEEP_S = 60.0, 3600.0


class Chores:
    """A thread beside the service.

    Args:
        engine: The database.
        store: Where patterns lie.
        asked: Works insights out.
        alerts_s: Pause between two looks for alerts, seconds.
        sweep_s: Pause between two sweeps, seconds.
    """

    def __init__(
        self,
        engine: sa.Engine,
        store: PatternStore,
        asked: Asked,
        alerts_s: float = ALERTS_S,
        sweep_s: float = SWEEP_S,
    ) -> None:
        self._engine, self._store, self._asked = engine, store, asked
        self._alerts_s, self._sweep_s = alerts_s, sweep_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleet chores", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End after what is being done."""
        self._over.set()
        self._thread.join()

    def look(self) -> None:
        """Raise, clear and tell alerts of all projects."""
        with self._engine.connect() as connection:
            ids = list(connection.execute(sa.select(projects.c.id)).scalars())
        for project_id in ids:
            if self._over.is_set():
                return
            try:
                caller = Caller(0, "alerts", project_id, frozenset({"read"}), 0.0)
                settle(self._engine, project_id, self._asked.insights(caller))
            except Exception:  # one project's reports cost no other its alerts
                log.exception("alerts of project %d could not be worked out", project_id)
        for project_id in ids:
            if self._over.is_set():
                return
            try:
                tell(self._engine, project_id)
            except Exception:  # nor does its webhook
                log.exception("project %d could not be told its alerts", project_id)

    def _run(self) -> None:
        swept = time.monotonic()
        while not self._over.wait(self._alerts_s):
            try:
                if time.monotonic() - swept >= self._sweep_s:
                    swept = time.monotonic()
                    log.info("swept: %s", sweep(self._engine, self._store))
            except Exception:  # the service outlives what goes wrong here; the next round tries again
                log.exception("retention failed")
            try:
                self.look()
            except Exception:
                log.exception("alerts failed")
