"""Tests of pages share one Chromium. `make test` gives whole files to two processes: a file's tests may share a job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from eroica.testing.browser import Browser


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """One headless Chromium for all tests of pages."""
    from eroica.testing.browser import Browser, why_no_browser  # Selenium only where it is needed

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
