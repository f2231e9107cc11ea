"""The database: opened, brought up to date, and spoken to in SQL that SQLite and PostgreSQL share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from eroica.errors import InputError, UnavailableError, UsageError
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

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
