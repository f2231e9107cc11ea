"""The report in a real browser: nothing leaves it, nothing in it obeys, everybody can use it."""

import pytest

from eroica.pipeline import analyze
from eroica.settings import Settings
from eroica.views.material import Material
from eroica.views.page import build_report
from support.fleet import FleetPlan, synthesize, synthesize_window
from support.troubles import SlowLoader

pytestmark = pytest.mark.browser


def material(**changes):
    patterns = synthesize(FleetPlan(workers=4, iterations=30, seed=1), [SlowLoader(workers=(3,), ms=40, **changes)])
    window = synthesize_window(patterns)
    verdict = analyze("job", window, patterns, settings=Settings())
    return Material(verdict=verdict, window=window, patterns=patterns, name="run", window_id=1)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    file = tmp_path_factory.mktemp("report") / "index.html"
    file.write_bytes(build_report(material()))
    return file


WALK = """
const done = arguments[0];
const frame = () => new Promise((seen) => requestAnimationFrame(() => requestAnimationFrame(seen)));
(async () => {
  for (const one of document.querySelectorAll("figure")) {
    one.scrollIntoView({ behavior: "instant" });
    await frame();
  }
  window.scrollTo({ top: 0, behavior: "instant" });
  await frame();
  done();
})();
"""


def walk_through(browser):
    """Every picture comes near the screen once and is painted there, so that its script has run."""
    browser.driver.execute_async_script(WALK)


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_is_quiet_and_accessible(browser, report, dark):
    browser.appearance(dark=dark)
    browser.open(report)
    walk_through(browser)
    assert browser.axe() == []
    assert browser.errors() == []
    assert browser.requests() == [report.as_uri()]
    drawn = browser.script("return [...document.querySelectorAll('figure')].map(one => one.id.replace('picture-', ''))")
    assert drawn == ["iterations", "heatmap", "waits", "flames", "coverage"]


def test_hints_are_reached_by_keyboard(browser, report):
    browser.open(report)
    browser.script("document.querySelector('#iterations').scrollIntoView({behavior: 'instant'})")
    browser.until(lambda: browser.script("return !!document.querySelector('#iterations .scroll svg[tabindex]')"))
    shown = browser.script(
        """const svg = document.querySelector("#iterations .scroll svg");
        svg.focus();
        svg.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight", bubbles: true}));
        return document.getElementById("tip").textContent;"""
    )
    assert shown.startswith("iteration ")


@pytest.mark.parametrize("javascript", [True, False])
def test_a_phone_needs_no_sideways_scrolling(browser, report, javascript):
    browser.javascript(javascript)
    browser.size(360, 780)
    browser.open(report)
    browser.javascript(True)
    width = browser.script("return document.documentElement.scrollWidth")
    assert width <= 360


def test_hostile_names_do_nothing(browser, tmp_path):
    file = tmp_path / "hostile.html"
    file.write_bytes(
        build_report(
            material(frame='</script><img src="https://evil.example/x" onerror="document.title=1"> (a/b.py:1)')
        )
    )
    browser.open(file)
    walk_through(browser)
    assert browser.requests() == [file.as_uri()]
    assert browser.errors() == []
    assert browser.script("return document.title") == "Slow: job · Eroica"
    assert browser.script("return document.images.length") == 0
    assert "onerror" in browser.script("return document.querySelector('h1').textContent")


def test_paper_is_white_and_has_the_still_pictures(browser, report):
    browser.appearance(dark=True)
    browser.open(report)
    walk_through(browser)
    assert browser.script("return !!document.querySelector('#heatmap canvas')")
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    browser.script("window.dispatchEvent(new Event('beforeprint'))")
    assert browser.script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.script("return !document.querySelector('#heatmap canvas') && !!document.querySelector('svg.heat')")
    assert browser.script("return [...document.querySelectorAll('figure details[open]')].length") == 0
    browser.script("window.dispatchEvent(new Event('afterprint'))")
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert browser.script("return !!document.querySelector('#heatmap canvas')")
