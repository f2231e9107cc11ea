"""The browser that tests of pages share: it must see what goes wrong in a page, or those tests prove nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.browser import PHONE, Browser

pytestmark = pytest.mark.browser
PAGE = """<!doctype html><html lang="en"><title>t</title>
<meta name="viewport" content="width=device-width">
<style>:root {color-scheme: light dark} @media (prefers-color-scheme: dark) {h1::after {content: " dark"}}</style>
<main><h1 id="head">before</h1></main>
<script>document.getElementById("head").firstChild.data = innerWidth</script>
"""


def written(tmp_path: Path, text: str) -> Path:
    page = tmp_path / "page.html"
    page.write_text(text)
    return page


def test_a_good_page_leaves_no_trace_but_its_own_request(browser: Browser, tmp_path: Path) -> None:
    page = written(tmp_path, PAGE)
    browser.open(page)
    assert browser.errors() == [] and browser.axe() == []
    assert browser.requests() == [page.as_uri()]
    assert browser.text("#head") == "1280"


def test_errors_and_requests_and_barriers_of_a_bad_page_are_seen(browser: Browser, tmp_path: Path) -> None:
    bad = "<img src='http://127.0.0.1:9/x.png'><script>missing()</script>"
    browser.open(written(tmp_path, PAGE.replace("</main>", f"{bad}</main>")))
    assert any("missing is not defined" in text for text in browser.errors())
    assert "http://127.0.0.1:9/x.png" in browser.requests()
    assert [violation.rule for violation in browser.axe()] == ["image-alt"]


def test_who_looks_can_be_changed_and_changes_back(browser: Browser, tmp_path: Path) -> None:
    page = written(tmp_path, PAGE)
    browser.size(*PHONE)
    browser.appearance(dark=True)
    browser.open(page)
    assert browser.text("#head") == "390"
    after = "return getComputedStyle(document.getElementById('head'), '::after').content"
    assert browser.script(after) == '" dark"'
    browser.javascript(False)
    browser.open(page)
    assert browser.text() == "before"
    browser.reset()
    browser.open(page)
    assert browser.text("#head") == "1280" and browser.script(after) == "none"


def test_offline_and_pictures(browser: Browser, tmp_path: Path) -> None:
    browser.open(written(tmp_path, PAGE + "<div style='height: 3000px'></div>"))
    browser.offline()
    assert browser.script("return navigator.onLine") is False
    small, whole = (browser.screenshot(tmp_path / f"{name}.png", name == "whole") for name in ("small", "whole"))
    heights = [int.from_bytes(path.read_bytes()[20:24], "big") for path in (small, whole)]
    assert heights[0] == 900 and heights[1] > 3000
