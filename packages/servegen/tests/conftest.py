from __future__ import annotations

from pathlib import Path

import pytest

from servegen.pool import Pool, read_pool

DATA = Path(__file__).resolve().parents[4] / "shared" / "data" / "servegen"


def published(name: str) -> Pool:
    if not DATA.is_dir():
        pytest.skip("the published pools are not on this machine")
    return read_pool(DATA / name)


@pytest.fixture(scope="session")
def sample() -> Pool:
    return read_pool("sample")


@pytest.fixture(scope="session")
def reasoning() -> Pool:
    return published("reason-deepseek-r1")


@pytest.fixture(scope="session")
def multimodal() -> Pool:
    return published("multimodal-mm-image")
