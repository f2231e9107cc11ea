"""A page of each verdict, drawn beside the collector."""

import asyncio
import gc
import sys

import psutil
import pytest

from eroica.archive.forget import PAGE_FILE
from eroica.archive.store import Store
from eroica.collector import child_processes
from eroica.collector.child_processes import Pages, page_of
from support.verdicts import plain

VERDICT = plain("healthy", "Healthy: nothing ever looked wrong.", job="job")


async def drawn(pages, *windows):
    for window_id in windows:
        pages.judged(window_id, VERDICT)
    await pages.close(30)


def test_the_final_page_stands_in_the_run_directory(tmp_path):
    Store(tmp_path).save_final(VERDICT)
    (tmp_path / "log").mkdir()
    notes = []
    asyncio.run(drawn(Pages(tmp_path, notes.append), 0))
    assert notes == []
    assert b"Nothing ever looked wrong." in page_of(tmp_path).read_bytes()
    assert page_of(tmp_path).stat().st_mode & 0o077 == 0


def test_what_cannot_be_drawn_is_a_note_and_nothing_else(tmp_path):
    (tmp_path / "log").mkdir()
    notes = []
    asyncio.run(drawn(Pages(tmp_path, notes.append), 7))
    assert notes == ["the page of window 7 was not drawn; see log/pages.log"]
    assert not list(tmp_path.rglob(PAGE_FILE))


def test_however_many_pages_wait_the_final_one_comes_first(tmp_path, monkeypatch):
    asked = []

    async def draw(self, window_id):
        asked.append(window_id)

    monkeypatch.setattr(Pages, "_draw", draw)
    asyncio.run(drawn(Pages(tmp_path, lambda note: None), *range(1, 151), 0))
    assert asked[0] == 0 and 0 < len(asked) < 150


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the drawing goes on, which `subprocess` finds odd
def test_closing_does_not_wait_for_a_drawing_that_hangs(tmp_path, monkeypatch):
    """Whatever the drawing does, the collector ends; the drawing ends by itself."""
    monkeypatch.setattr(
        child_processes, "isolated", lambda *_, **__: [sys.executable, "-c", "import time; time.sleep(600)"]
    )
    here = psutil.Process()
    before = {child.pid for child in here.children()}

    async def close_soon():
        pages = Pages(tmp_path, lambda note: None)
        pages.judged(0, VERDICT)
        await asyncio.sleep(0.1)
        await pages.close(0.1)

    asyncio.run(close_soon())
    gc.collect()
    (drawing,) = [child for child in here.children() if child.pid not in before]
    assert drawing.status() != psutil.STATUS_ZOMBIE  # it is still at it
    drawing.kill()
    drawing.wait()
