from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from watched_jobs import Host


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    watched = Host(tmp_path)
    yield watched
    watched.close()
