"""The screen of `eroica top` in every size."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from eroica.model.history import IterationHistory
from eroica.model.look import Ending
from eroica.model.worker import Worker
from eroica.report.top import View, build_screen, sparkline
from eroica.wire.messages import JobStatus, WindowLine, WorkerStatus


def worker(rank: int, **more: object) -> WorkerStatus:
    who = Worker(global_rank=rank, pid=rank + 1, host=f"node-{rank // 8}")
    return WorkerStatus(
        **{"worker": who, "state": "steady", "iteration": 212, "current_s": 0.018 + rank * 1e-5, **more}
    )


SLOW = WindowLine(
    window_id=2, purpose="slow", phase="done", first_iteration=90, verdict="slow", summary="Slow: worker 2 sleeps " * 9
)
HISTORY = IterationHistory(
    job="j", began=0.0, at_s=(1.0, 2.0, 3.0, 700.0), iteration=(1, 2, 3, 4), mean_ms=(18.0, 18.0, 18.0, 36.0)
)


def job(number: int) -> JobStatus:
    killed = Ending(kind="signal", number=9, out_of_memory=True)
    odd = (
        worker(0, silent=True, silence="no event for 12.0 s"),
        worker(1, ended=True, state="gone", ending=killed),
        worker(2, ended=True, state="finished", ending=Ending(kind="signed-off")),
    )
    workers = (*odd, *(worker(rank) for rank in range(3, number)))
    return JobStatus(
        job="llama \x1b[2J\u202e " * 20,
        phase="watching",
        message=f"{number} workers, watching",
        iteration=212,
        mean_ms=36.0,
        best_ms=18.0,
        hosts=("node-0", "node-1"),
        workers=workers,
        windows=(SLOW,),
        notes=("node-0: no hardware counters",),
    )


def screen(view: View, width: int, height: int | None = None) -> list[str]:
    return [text.plain for text in build_screen(view, width, height)]


@pytest.mark.parametrize("size", [(80, 24), (40, 16), (60, 30), (200, 60), (20, 5), (80, 2)])
@pytest.mark.parametrize("number", [3, 1000])
def test_it_fits_and_nothing_in_it_can_move_the_cursor(size: tuple[int, int], number: int) -> None:
    lines = screen(View(status=job(number), history=HISTORY, keys=True), *size)
    assert len(lines) <= max(size[1], 9) and all(cell_len(line) <= size[0] for line in lines)
    assert all(line.isprintable() for line in lines)


def test_at_80_by_24_all_that_matters_stands_there() -> None:
    lines = screen(View(status=job(1000), history=HISTORY, keys=True), 80, 24)
    text = " ".join(" ".join(lines).split())
    assert len(lines) == 24 and lines[-1].startswith(" q  quit")
    for words in ("36.0 ms now · 18.0 ms at best", "1 gone, 1 silent", "slow: worker 2 sleeps", "11 min 40 s"):
        assert words in text


def test_workers_that_are_gone_or_silent_come_first_then_the_slowest() -> None:
    lines = screen(View(status=job(1000)), 100)
    table = lines[next(at for at, line in enumerate(lines) if line.startswith("worker")) + 1 :]
    assert table[0].split()[:2] == ["1", "gone"] and "want of memory" in table[0]
    assert table[1].split()[:2] == ["0", "silent"] and "no event for 12.0 s" in table[1]
    assert table[2].split()[0] == "999" and any(line.startswith("and 960 more workers") for line in table)


def test_what_a_key_brought_about_and_old_news_are_said() -> None:
    lines = screen(View(status=job(3), keys=True, answer="window 4 is opening", silence_s=61.0), 80, 24)
    assert lines[-1] == "window 4 is opening" and "no news for 61 s" in lines[0]


def test_the_small_picture_rises_where_iterations_get_slower_and_shows_no_noise() -> None:
    assert sparkline((0, 1, 2, 3), (1.0, 1.0, 2.0, 2.0), 4) == "▁▁██"
    assert sparkline((0, 1, 2, 3), (1.0, 1.01, 1.0, 1.01), 4) == "▁▁▁▁"
    assert sparkline((0, 100), (1.0, 2.0), 5) == "▁▁▁▁█"
