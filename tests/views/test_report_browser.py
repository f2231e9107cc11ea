"""The report in a real browser: nothing leaves it, nothing in it obeys, everybody can use it, and its pictures move."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from eroica.model.pattern import WorkerPattern
from eroica.model.words import milliseconds
from eroica.model.worker import Worker
from eroica.pipeline import analyze
from eroica.views.material import Material
from eroica.views.page import build_report
from support.browser import PHONE, Browser
from support.fleet import FleetPlan, synthesize, synthesize_window
from support.troubles import SlowLoader

pytestmark = pytest.mark.browser


def material(**changes):
    patterns = synthesize(FleetPlan(workers=4, iterations=30, seed=1), [SlowLoader(workers=(3,), ms=40, **changes)])
    window = synthesize_window(patterns)
    verdict = analyze("job", window, patterns)
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


# --- pictures that can be moved: the pointer and the keys tell what is on record ---


WORKERS, SLOW, LIKE = 4000, 2501, 16
#: Left of the heat map's cells, above them, and height of a row: of its script.
LEFT, TOP, ROW = 236, 34, 18
EVIL = "<img src=x onerror=hacked=1>"


@pytest.fixture(scope="module")
def made() -> list[WorkerPattern]:
    return synthesize(FleetPlan(workers=LIKE, iterations=6), [SlowLoader((SLOW % LIKE,), 40.0)])


@pytest.fixture(scope="module")
def cost(made: list[WorkerPattern]) -> str:
    """What the slow worker's function costs an iteration, as it is written."""
    row = next(row for row in made[SLOW % LIKE].functions if row.key.name == "_read_block")
    return milliseconds(1e3 * row.critical_s / 6)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory, made: list[WorkerPattern]) -> Path:
    """A report on 4,000 workers, all but one like one of fifteen, on hosts with a hostile name."""
    verdict = analyze("fleet", synthesize_window(made), made)
    first = msgspec.structs.replace(verdict.findings[0], workers=(SLOW,))
    healthy = [pattern for at, pattern in enumerate(made) if at != SLOW % LIKE]
    patterns = [_on(made[SLOW % LIKE] if rank == SLOW else healthy[rank % 15], rank) for rank in range(WORKERS)]
    verdict = msgspec.structs.replace(verdict, findings=(first, *verdict.findings[1:]))
    file = tmp_path_factory.mktemp("report") / "index.html"
    file.write_bytes(build_report(Material(verdict=verdict, patterns=patterns)))
    return file


def _on(pattern: WorkerPattern, rank: int) -> WorkerPattern:
    worker = Worker(global_rank=rank, world_size=WORKERS, host=f"node-{rank // 8}{EVIL}")
    return msgspec.structs.replace(pattern, worker=worker)


def look(browser: Browser, large: Path, picture: str, selector: str) -> WebElement:
    """The page scrolled to a picture whose script has run."""
    browser.open(large)
    browser.script(f"document.getElementById('{picture}').scrollIntoView({{behavior: 'instant'}})")
    return browser.one(f"#picture-{picture} {selector}")


def point(browser: Browser, element: WebElement, x: float, y: float) -> None:
    """Move the pointer to a place within an element, pixels from its corner."""
    size = element.size
    moves = ActionChains(browser.driver, duration=0)
    moves.move_to_element_with_offset(element, round(x - size["width"] / 2), round(y - size["height"] / 2)).perform()


def test_the_pointer_tells_worker_host_function_and_value(browser: Browser, large: Path, cost: str) -> None:
    canvas = look(browser, large, "heatmap", "canvas")
    width = canvas.size["width"] - LEFT - 1
    point(browser, canvas, LEFT + width * (SLOW + 0.5) / WORKERS, TOP + ROW / 2)
    told = browser.text("#picture-heatmap .heat-now")
    assert told.startswith(f"◆ worker {SLOW} on node-{SLOW // 8}{EVIL} · ")
    assert "_read_block (project/dataset.py:70)" in told
    assert f": {cost} per iteration" in told
    point(browser, canvas, LEFT + width * 0.25, TOP + ROW * 2.5)
    assert abs(int(browser.text("#picture-heatmap .heat-now").split()[1]) - 1000) < 8, "rank order, in a shared pixel"
    assert browser.script("return window.hacked") is None
    assert not browser.errors()


def test_keys_zoom_the_heat_map_and_the_axis_follows(browser: Browser, large: Path) -> None:
    canvas = look(browser, large, "heatmap", "canvas")
    width = canvas.size["width"] - LEFT - 1
    browser.script("arguments[0].focus()", canvas)
    browser.press(*["+"] * 8)
    point(browser, canvas, LEFT + 2, TOP + ROW / 2)
    first = int(browser.text("#picture-heatmap .heat-now").split()[1])
    point(browser, canvas, LEFT + width - 2, TOP + ROW / 2)
    last = int(browser.text("#picture-heatmap .heat-now").replace("◆ ", "").split()[1])
    assert first <= SLOW <= last
    assert 13 <= last - first + 1 <= 18, "4,000 workers, halved eight times"
    begin, each = SLOW + 0.5 - (SLOW + 0.5) / 256, width / (WORKERS / 256)
    alpha = "return arguments[0].getContext('2d').getImageData(arguments[1], arguments[2], 1, 1).data[3]"
    places = [LEFT + each * (SLOW + inside - begin) for inside in (-0.2, 0.2, 0.8, 1.2)]
    opaque = [browser.script(alpha, canvas, round(place), TOP + 6) for place in places]
    assert opaque == [0, 255, 255, 0], "its cell, and it alone, lies where the axis says"
    browser.press("c")
    browser.press(Keys.ARROW_LEFT)
    assert browser.text("#picture-heatmap .heat-now").startswith(f"worker {SLOW - 1} ")
    browser.press("0")
    point(browser, canvas, LEFT + 1, TOP + ROW * 1.5)
    assert int(browser.text("#picture-heatmap .heat-now").split()[1]) < 12


def test_enter_looks_closer_at_a_stack_on_both_sides(browser: Browser, large: Path, cost: str) -> None:
    svg = look(browser, large, "flames", "svg.moving")
    browser.script("arguments[0].focus()", svg)
    frames = "return [...document.querySelectorAll('#picture-flames .frame[data-tip^=__next__]')]"
    shown = f"{frames}.map((one) => one.getBoundingClientRect().width)[0]"
    narrow = browser.script(shown)
    browser.press(Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert browser.text("#picture-flames .flame-now").startswith("__next__")
    browser.press(Keys.ENTER)
    wide = browser.script(shown)
    assert wide > 1.1 * narrow
    browser.press(Keys.ESCAPE)
    browser.one("#picture-flames input").send_keys("_read_block")
    assert f": {cost} an iteration, peers 0 ms" in browser.text("#picture-flames .flame-now")
    assert len(browser.all("#picture-flames .frame.found")) == 1
    assert not browser.errors()


def test_moved_pictures_stay_readable_for_everybody_on_a_phone(browser: Browser, large: Path) -> None:
    browser.appearance(dark=True)
    browser.size(*PHONE)
    look(browser, large, "heatmap", "canvas")
    for picture in ("waits", "flames"):
        browser.script(f"document.getElementById('{picture}')?.scrollIntoView({{behavior: 'instant'}})")
    browser.one("#picture-flames svg.moving")
    assert not browser.axe()
    assert browser.script("return document.documentElement.scrollWidth <= window.innerWidth"), "nothing sticks out"
    assert browser.requests() == [large.as_uri()]
