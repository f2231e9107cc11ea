"""One service for the tests of a file that do not end it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
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
