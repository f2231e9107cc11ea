"""The database and its tables: opened, brought up to date, and spoken to in SQL that SQLite and PostgreSQL share.

Times are seconds since 1970. Each row belongs to one project, and each question names the projects that it may see.
Changes of tables need a migration in `migrations/versions`; `docs/fleet.md` describes them for readers of the database.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from eroica.errors import InputError, UnavailableError, UsageError
from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(column_0_label)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)
#: SQLite counts rows by itself only in a plain INTEGER key.
Id = BigInteger().with_variant(Integer, "sqlite")


def _project() -> Column[int]:
    return Column("project_id", Id, ForeignKey("projects.id"), nullable=False)


def _run() -> Column[int]:
    return Column("run_id", Id, ForeignKey("runs.id", ondelete="CASCADE"), nullable=False)


projects = Table(
    "projects",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", String(200), nullable=False, unique=True),
    Column("created_at", Float, nullable=False),
    Column("retention_days", Float, nullable=False),  # of verdicts and iteration times
    Column("pattern_days", Float, nullable=False),
    Column("quota_bytes", BigInteger, nullable=False),  # of patterns
    Column("requests_per_s", Float, nullable=False),
    Column("webhook_url", Text, nullable=False, server_default=""),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", Id, primary_key=True),
    Column("project_id", Id, ForeignKey("projects.id"), nullable=True),  # none: the operator of the whole service
    Column("name", String(200), nullable=False),
    Column("hash", String(64), nullable=False, unique=True),  # SHA-256 of the token
    Column("scopes", String(200), nullable=False),  # with commas
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float),
    Column("revoked_at", Float),
)

sessions = Table(
    "sessions",
    metadata,
    Column("hash", String(64), primary_key=True),  # SHA-256 of the cookie
    Column("token_id", Id, ForeignKey("tokens.id", ondelete="CASCADE"), nullable=False),
    Column("expires_at", Float, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("id", Id, primary_key=True),
    _project(),
    Column("run", String(32), nullable=False),
    Column("job", String(300), nullable=False),
    Column("search", Text, nullable=False),  # job and commit in lower case
    Column("commit_id", String(100), nullable=False),
    Column("host", String(300), nullable=False),
    Column("eroica_version", String(40), nullable=False),
    Column("began_at", Float, nullable=False),
    Column("heard_at", Float, nullable=False),
    Column("beat_at", Float, nullable=False),
    Column("phase", String(40), nullable=False),
    Column("message", Text, nullable=False),
    Column("iteration", BigInteger, nullable=False),
    Column("mean_ms", Float),
    Column("best_ms", Float),
    Column("workers", Integer, nullable=False),
    Column("hosts", Integer, nullable=False),
    Column("until_s", Float, nullable=False),  # end of its last stretch in `times`, seconds after its start
    Column("spark", Text, nullable=False),  # JSON: the last mean iteration times, ms
    Column("verdict", String(20), nullable=False),  # of the newest window, or the final one; "" without
    Column("cause", String(60), nullable=False),
    Column("summary", Text, nullable=False),
    Column("judged_at", Float),
    Column("changed", BigInteger, nullable=False),  # milliseconds since 1970, for pages that follow
    UniqueConstraint("project_id", "run"),
    Index("ix_runs_project_heard", "project_id", "heard_at"),
    Index("ix_runs_project_job", "project_id", "job", "began_at"),
    Index("ix_runs_project_changed", "project_id", "changed"),
)

run_hosts = Table(
    "run_hosts",
    metadata,
    Column("run_id", Id, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("host", String(300), primary_key=True),
    _project(),
    Index("ix_run_hosts_project_host", "project_id", "host"),
)

verdicts = Table(
    "verdicts",
    metadata,
    Column("id", Id, primary_key=True),
    _project(),
    _run(),
    Column("window_id", Integer, nullable=False),  # 0: the run's final verdict
    Column("piece_at", Float, nullable=False),
    Column("judged_at", Float, nullable=False),
    Column("purpose", String(20), nullable=False),
    Column("verdict", String(20), nullable=False),
    Column("summary", Text, nullable=False),
    Column("cause", String(60), nullable=False),
    Column("function", Text, nullable=False),
    Column("gain", Float),
    Column("confidence", Float, nullable=False),
    Column("baseline_ms", Float),
    Column("current_ms", Float),
    Column("record", LargeBinary, nullable=False),  # the whole verdict, JSON, zlib
    UniqueConstraint("run_id", "window_id"),
    Index("ix_verdicts_project_judged", "project_id", "judged_at"),
)

findings = Table(
    "findings",
    metadata,
    Column("id", Id, primary_key=True),
    _project(),
    _run(),
    Column("verdict_id", Id, ForeignKey("verdicts.id", ondelete="CASCADE"), nullable=False),
    Column("window_id", Integer, nullable=False),
    Column("judged_at", Float, nullable=False),
    Column("cause", String(60), nullable=False),
    Column("function", Text, nullable=False),
    Column("kind", String(20), nullable=False),
    Column("scope", String(20), nullable=False),
    Column("workers", Integer, nullable=False),
    Column("gain", Float),
    Column("confidence", Float, nullable=False),
    Index("ix_findings_verdict_id", "verdict_id"),
    Index("ix_findings_run_id", "run_id"),
    Index("ix_findings_project_judged", "project_id", "judged_at"),
)

culprits = Table(
    "culprits",
    metadata,
    Column("id", Id, primary_key=True),
    _project(),
    _run(),
    Column("finding_id", Id, ForeignKey("findings.id", ondelete="CASCADE"), nullable=False),
    Column("judged_at", Float, nullable=False),
    Column("host", String(300), nullable=False),
    Column("device", String(200), nullable=False),  # "" where only the host is known
    Column("global_rank", Integer),
    Index("ix_culprits_finding_id", "finding_id"),
    Index("ix_culprits_project_judged", "project_id", "judged_at"),
    Index("ix_culprits_project_host", "project_id", "host"),
)

times = Table(
    "times",
    metadata,
    Column("id", Id, primary_key=True),
    _project(),
    _run(),
    Column("until_s", Float, nullable=False),  # end of its last stretch, seconds after the run's start
    Column("columns", LargeBinary, nullable=False),  # `records.Points` as zlib-compressed MessagePack
    Index("ix_times_run_id", "run_id"),
)

pattern_files = Table(
    "pattern_files",
    metadata,
    Column("id", Id, primary_key=True),
    _project(),
    _run(),
    Column("window_id", Integer, nullable=False),
    Column("block", Integer, nullable=False),
    Column("purpose", String(20), nullable=False),
    Column("piece_at", Float, nullable=False),
    Column("path", Text, nullable=False),  # below the place that the service keeps patterns in
    Column("workers", Integer, nullable=False),
    Column("iterations", Integer, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("profile", LargeBinary, nullable=False),  # JSON, zlib: function -> critical seconds over its workers
    UniqueConstraint("run_id", "window_id", "block"),
    Index("ix_pattern_files_project_at", "project_id", "piece_at"),
)

standstills = Table(
    "standstills",
    metadata,
    Column("id", Id, primary_key=True),
    _project(),
    _run(),
    Column("window_id", Integer, nullable=False),
    Column("seen_at", Float, nullable=False),
    Column("record", LargeBinary, nullable=False),  # blockage.json, zlib
    UniqueConstraint("run_id", "window_id"),
)

pieces = Table(
    "pieces",
    metadata,
    Column("project_id", Id, ForeignKey("projects.id"), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("received_at", Float, nullable=False),
    Index("ix_pieces_received_at", "received_at"),
)

orders = Table(
    "orders",
    metadata,
    Column("id", Id, primary_key=True),
    _project(),
    _run(),
    Column("asked_at", Float, nullable=False),
    Column("reason", Text, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("told_at", Float),
    Index("ix_orders_run_id", "run_id"),
)

repairs = Table(
    "repairs",
    metadata,
    Column("id", Id, primary_key=True),
    _project(),
    Column("host", String(300), nullable=False),
    Column("at", Float, nullable=False),
    Column("note", Text, nullable=False),
    Index("ix_repairs_project_host", "project_id", "host"),
)

alerts = Table(
    "alerts",
    metadata,
    Column("id", Id, primary_key=True),
    _project(),
    Column("key", String(400), nullable=False),
    Column("kind", String(40), nullable=False),
    Column("text", Text, nullable=False),
    Column("raised_at", Float, nullable=False),
    Column("cleared_at", Float),
    Column("sent_at", Float),
    Index("ix_alerts_project_key", "project_id", "key"),
)

audit = Table(
    "audit",
    metadata,
    Column("id", Id, primary_key=True),
    Column("project_id", Id, nullable=True),
    Column("at", Float, nullable=False),
    Column("who", String(200), nullable=False),
    Column("action", String(60), nullable=False),
    Column("detail", Text, nullable=False),
    Column("address", String(100), nullable=False),
    Index("ix_audit_project_at", "project_id", "at"),
)


_DIALECTS = ("sqlite", "postgresql")
#: Any number, the same for all services of one database: only one of them migrates at a time.
_MIGRATION_LOCK = 0x45524F49


def open_database(url: str, *, pool: int = 8) -> sa.Engine:
    """An engine for the database at a URL.

    Args:
        url: `sqlite:///FILE` or `postgresql://USER@HOST/NAME`.
        pool: Connections that are kept open.

    Raises:
        UsageError: It is no such URL.
        UnavailableError: The driver is missing.
    """
    try:
        parsed = sa.make_url(url)
    except SQLAlchemyError:
        raise UsageError(
            "the database is no URL; it is like sqlite:///fleet.db or postgresql://user@host/fleet"
        ) from None
    if parsed.get_backend_name() not in _DIALECTS:
        raise UsageError(f"no {parsed.get_backend_name()} database; use sqlite:///FILE or postgresql://USER@HOST/NAME")
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() == "sqlite" and parsed.database:
        Path(parsed.database).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    options: dict[str, Any] = {"pool_size": pool, "max_overflow": 2 * pool}
    if parsed.get_backend_name() == "postgresql":
        options |= {"pool_pre_ping": True, "connect_args": {"connect_timeout": 10}}
    try:
        engine = sa.create_engine(parsed, **options)
    except ImportError as error:
        raise UnavailableError(f"PostgreSQL needs psycopg ({error}): pip install 'eroica[fleet,postgres]'") from None
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _set_up_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _set_up_sqlite(connection: Any, _record: object) -> None:
    """Readers beside one writer; a commit is on disk before we say so."""
    connection.isolation_level = None  # transactions begin where SQLAlchemy says so
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=30000"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: sa.Connection) -> None:
    """Who will write says so at once: a reader that turns writer may find that it must start over."""
    wants = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if wants else "BEGIN")


def writing(engine: sa.Engine) -> sa.Engine:
    """The same engine for transactions that write."""
    return engine.execution_options(writes=True)


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


def migrate(engine: sa.Engine, to: str = "head") -> None:
    """Bring the database up to date; several services may begin at once.

    Raises:
        InputError: It was made by a later Eroica.
        UnavailableError: It cannot be reached.
    """
    config = _config()
    try:
        with writing(engine).begin() as connection:
            if engine.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
            now = MigrationContext.configure(connection).get_current_revision()
            known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
            if now is not None and now not in known:
                raise InputError(f"the database is of revision {now}, from a later Eroica; upgrade this one")
            config.attributes["connection"] = connection
            command.upgrade(config, to)
    except sa.exc.OperationalError as error:
        raise UnavailableError(f"the database cannot be opened: {error.orig}") from error


def upsert(engine: sa.Engine | sa.Connection, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
    """An INSERT that knows ON CONFLICT, in the engine's dialect."""
    return postgresql.insert(table) if engine.dialect.name == "postgresql" else sqlite.insert(table)
