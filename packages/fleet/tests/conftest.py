"""One service for the tests of a file that do not end it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.browser import Browser, why_no_browser

from postgres import Postgres, why_no_postgres
from serving import Serving


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


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """One headless Chromium for all tests of pages."""
    if why_no_browser():
        pytest.skip(why_no_browser())
    browser = Browser()
    yield browser
    browser.quit()


@pytest.fixture
def browser(chromium: Browser) -> Browser:
    """The same one as if it had just been started."""
    chromium.reset()
    return chromium


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what takes long: thorough.txt names it."""
    slow = set((Path(__file__).parent / "thorough.txt").read_text(encoding="utf-8").split("\n"))
    for item in items:
        if item.nodeid in slow:
            item.add_marker(pytest.mark.thorough)
