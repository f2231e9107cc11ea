"""The fleet's pages in a real browser, before a real service with 10,000 jobs on 12,500 hosts."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from selenium.webdriver.common.keys import Keys
from support.browser import PHONE, Browser
from support.run_directories import RunDirectory, a_verdict

from bulk import BAD, fill
from serving import Serving, reporter

pytestmark = pytest.mark.browser
EVIL = "<img src=x onerror=hacked=1>"


@pytest.fixture(scope="module")
def large(service: Serving) -> Iterator[Serving]:
    from eroica_fleet.database import open_database

    engine = open_database(f"sqlite:///{service._data / 'fleet.db'}")
    fill(engine, 10_000, 12_500, 2_500, evil=EVIL)
    engine.dispose()
    yield service


def come_in(browser: Browser, service: Serving, *scopes: str) -> None:
    browser.open(f"{service.url}/")
    browser.one("input[name=token]").send_keys(service.token(*(scopes or ("read",))), Keys.ENTER)
    browser.until(lambda: browser.all("#jobs a"), "no job is listed")


def jobs(browser: Browser) -> list[str]:
    return browser.script("return [...document.querySelectorAll('#jobs .job b')].map(each => each.textContent)")


def fits(browser: Browser) -> bool:
    return bool(browser.script("return document.documentElement.scrollWidth <= document.documentElement.clientWidth"))


def test_ten_thousand_jobs_are_listed_searched_and_walked_by_keyboard(browser: Browser, large: Serving) -> None:
    come_in(browser, large)
    assert browser.driver.current_url == f"{large.url}/"
    assert browser.text("#jobs-count") == "10,000"
    assert len(jobs(browser)) == 25
    assert jobs(browser)[0] == f"job-00000{EVIL}"
    browser.press("/")
    browser.press("job-0404")
    browser.until(lambda: browser.text("#jobs-count") == "10", "the search never ended")
    assert jobs(browser) == [f"job-0404{at}{EVIL}" for at in (*range(9), 9)]
    browser.press(Keys.ARROW_DOWN)
    browser.press(Keys.ARROW_DOWN)
    assert "job-04041" in browser.driver.switch_to.active_element.text
    browser.press(Keys.ENTER)
    browser.until(lambda: browser.all("#windows li b") or browser.all("#chart svg"), "no run is shown")
    assert browser.text("h1") == f"job-04041{EVIL}"
    browser.driver.back()
    browser.until(lambda: browser.text("#jobs-count") == "10", "the search is forgotten on the way back")
    assert browser.script("return window.hacked") is None
    assert browser.errors() == []


def test_a_host_is_found_by_how_often_it_was_named_beside_chance(browser: Browser, large: Serving) -> None:
    come_in(browser, large)
    browser.until(lambda: browser.all("#hosts tr.suspicious"), "no host is suspicious")
    first = browser.all("#hosts tr.suspicious")[0].text
    assert BAD in first
    assert len(browser.all("#hosts tr.suspicious")) == 1
    assert BAD in browser.text("#notable")
    browser.all("#hosts tr.suspicious a")[0].click()
    browser.until(lambda: browser.all("#jobs a") and browser.text("#jobs-count") not in ("", "10,000"), "no search")
    assert browser.one("#q").get_attribute("value") == BAD


def test_it_is_read_on_a_phone_in_the_dark_and_by_a_machine(browser: Browser, large: Serving) -> None:
    come_in(browser, large)
    browser.until(lambda: browser.all("#hosts table"), "no hosts")
    for size, dark in ((PHONE, True), (PHONE, False), ((1280, 900), True)):
        browser.size(*size)
        browser.appearance(dark=dark)
        assert fits(browser), size
        assert browser.axe() == []
    dark = browser.script("return getComputedStyle(document.body).backgroundColor")
    assert sum(int(part) for part in dark[4:-1].split(",")) < 150
    assert browser.errors() == []


def test_a_run_is_followed_while_it_reports(browser: Browser, large: Serving, tmp_path) -> None:  # type: ignore[no-untyped-def]
    directory = RunDirectory(tmp_path / "run", "followed")
    directory.course(*[100.0] * 20)
    directory.window(1, None)
    come_in(browser, large, "read", "window")
    browser.until(lambda: browser.text("#link") == "live", "it is not live")
    assert reporter(large.environ(), directory.path, "followed").wait(60) == 0
    browser.until(lambda: jobs(browser)[0] == "followed", "the new job does not come by itself")
    browser.all("#jobs a")[0].click()
    browser.until(lambda: browser.all("#chart svg path.mean"), "no iteration times")
    browser.until(lambda: browser.text("#link") == "live", "it is not live")
    directory.course(*[150.0] * 20)
    directory.window(2, a_verdict("followed", summary="Worker 3 is slow."))
    directory.end(a_verdict("followed", summary="It was worker 3."))
    assert reporter(large.environ(), directory.path, "followed").wait(60) == 0
    browser.until(lambda: browser.text("#sentence") == "It was worker 3.", "the verdict does not come by itself")
    assert "node1" in browser.text("#hosts")
    assert browser.axe() == []
    assert browser.errors() == []
    report = browser.all("#windows a")[0].get_attribute("href")
    browser.open(report)
    assert "worker 3" in browser.text("body").lower()


def test_pages_come_quickly(large: Serving) -> None:
    """Not a benchmark: an index that is missing would show."""
    token = large.token("read")
    for path in ("/v1/runs", "/v1/runs?q=job-09", "/v1/runs?q=node0004", "/v1/runs/5000", "/v1/hosts"):
        large.ask("GET", path, token)
        began = time.monotonic()
        large.ask("GET", path, token)
        assert time.monotonic() - began < 2.0, path
