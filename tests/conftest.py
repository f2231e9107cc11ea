"""How `make test` shares two cores: jobs take turns on one side, all others on the other; pages share one Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from eroica.testing.browser import Browser


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        heavy = any(item.get_closest_marker(name) for name in ("jobs", "root"))
        parts = "browser" if item.get_closest_marker("browser") else item.nodeid.split("::")[0]
        item.add_marker(pytest.mark.xdist_group("jobs" if heavy else parts))


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
