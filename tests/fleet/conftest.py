"""One service for the tests of a file that do not end it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres import Postgres, why_no_postgres
from serving import Serving


def need_extra() -> None:
    for name in ("alembic", "fsspec", "pyarrow", "sqlalchemy"):
        pytest.importorskip(name, reason="the service's libraries are not here: pip install 'eroica[fleet]'")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    need_extra()
    serving = Serving(tmp_path_factory.mktemp("service") / "data")
    yield serving
    serving.stop()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "report" / "llm"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One PostgreSQL for all tests; each asks it for a database of its own."""
    if why_no_postgres():
        pytest.skip(why_no_postgres())
    server = Postgres()
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database of either kind."""
    need_extra()
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'fleet.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.new_database()
