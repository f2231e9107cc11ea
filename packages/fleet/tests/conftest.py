"""One service for the tests of a file that do not end it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fixtures import browser, chromium, mark_thorough

from postgres import Postgres, why_no_postgres
from serving import Serving

__all__ = ["browser", "chromium"]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
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
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'fleet.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.new_database()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what takes long: thorough.txt names what --junitxml measured at 3 s, further cases of a test at 2 s."""
    mark_thorough(items, Path(__file__).with_name("thorough.txt"))
