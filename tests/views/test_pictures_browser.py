"""Pictures that can be moved, in a real browser: the pointer and the keys tell what is on record."""

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
def page(tmp_path_factory: pytest.TempPathFactory, made: list[WorkerPattern]) -> Path:
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


def look(browser: Browser, page: Path, picture: str, selector: str) -> WebElement:
    """The page scrolled to a picture whose script has run."""
    browser.open(page)
    browser.script(f"document.getElementById('{picture}').scrollIntoView({{behavior: 'instant'}})")
    return browser.one(f"#picture-{picture} {selector}")


def point(browser: Browser, element: WebElement, x: float, y: float) -> None:
    """Move the pointer to a place within an element, pixels from its corner."""
    size = element.size
    moves = ActionChains(browser.driver, duration=0)
    moves.move_to_element_with_offset(element, round(x - size["width"] / 2), round(y - size["height"] / 2)).perform()


def test_the_pointer_tells_worker_host_function_and_value(browser: Browser, page: Path, cost: str) -> None:
    canvas = look(browser, page, "heatmap", "canvas")
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


def test_keys_zoom_the_heat_map_and_the_axis_follows(browser: Browser, page: Path) -> None:
    canvas = look(browser, page, "heatmap", "canvas")
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


def test_enter_looks_closer_at_a_stack_on_both_sides(browser: Browser, page: Path, cost: str) -> None:
    svg = look(browser, page, "flames", "svg.moving")
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


def test_moved_pictures_stay_readable_for_everybody_on_a_phone(browser: Browser, page: Path) -> None:
    browser.appearance(dark=True)
    browser.size(*PHONE)
    look(browser, page, "heatmap", "canvas")
    for picture in ("waits", "flames"):
        browser.script(f"document.getElementById('{picture}')?.scrollIntoView({{behavior: 'instant'}})")
    browser.one("#picture-flames svg.moving")
    assert not browser.axe()
    assert browser.script("return document.documentElement.scrollWidth <= window.innerWidth"), "nothing sticks out"
    assert browser.requests() == [page.as_uri()]
