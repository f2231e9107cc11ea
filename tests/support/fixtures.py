"""What the conftests of several packages share: one Chromium, and what takes long."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.browser import Browser


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """One headless Chromium for all tests of pages."""
    from support.browser import Browser, why_no_browser  # Selenium only where it is needed

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


def let_others_in(directory: Path) -> None:
    """Let other users into a directory of a test's and those above it, below the one for temporary files."""
    top = Path(tempfile.gettempdir())
    for one in (directory, *directory.parents):
        if top in one.parents:
            one.chmod(0o755)


def mark_thorough(items: list[pytest.Item], names: Path) -> None:
    """Mark the tests that a file names, one a line."""
    slow = set(names.read_text(encoding="utf-8").split("\n"))
    for item in items:
        if item.nodeid in slow:
            item.add_marker(pytest.mark.thorough)
