"""What the line under a running job says, in every width."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from rich.cells import cell_len

from eroica.model.worker import Worker
from eroica.report.footer import footer
from eroica.wire.messages import JobStatus, WindowLine, WorkerStatus

WORKER = WorkerStatus(worker=Worker(global_rank=0, world_size=2, host="node", pid=1), state="steady")


def worker(**facts: Any) -> WorkerStatus:
    return msgspec.structs.replace(WORKER, **facts)


def job(**facts: Any) -> JobStatus:
    return JobStatus(job="llm", message="", **facts)


LINK = "127.0.0.1:43125"
SLOW = WindowLine(
    window_id=3,
    purpose="slow",
    phase="done",
    verdict="slow",
    summary="Slow: worker 2 spends 48 % of each iteration in time.sleep called by __getitem__ of the data loader",
)
OPEN = WindowLine(window_id=4, purpose="slow", phase="window", first_iteration=1200, last_iteration=1300)
WORKERS = (worker(iteration=1240), worker(iteration=1250))
JOB = job(phase="watching", iteration=1240, mean_ms=34.2, best_ms=17.9, workers=WORKERS, windows=(SLOW,))


def said(status: JobStatus, columns: int, link: str = "", silence_s: float = 0.0) -> str:
    return "".join(piece.text for piece in footer(status, columns, link, silence_s))


def test_with_room_it_says_everything_and_the_link_stands_at_the_right() -> None:
    line = said(JOB, 199, LINK)
    assert line.startswith(
        " eroica  watching · iteration 1240 · 34.2 ms, best 17.9 · 2 workers · slow: worker 2 spends"
    )
    assert line.endswith(LINK) and cell_len(line) == 199


@pytest.mark.parametrize("columns", range(39, 220, 7))
def test_it_never_takes_more_than_there_is_and_keeps_state_and_pace(columns: int) -> None:
    line = said(JOB, columns, LINK)
    assert cell_len(line) <= columns and "watching" in line and "34.2 ms" in line


def test_a_window_says_how_far_the_last_worker_has_got_in_it() -> None:
    assert "window 4: 40 %" in said(job(phase="window", iteration=1250, workers=WORKERS, windows=(OPEN,)), 79)
    early = job(phase="window", iteration=1100, workers=(worker(iteration=1100),), windows=(OPEN,))
    assert "window 4: about to begin" in said(early, 79)


def test_silent_and_gone_workers_and_old_news_are_said() -> None:
    workers = (worker(silent=True), worker(silent=True), worker(state="gone", ended=True))
    assert "2 silent, 1 gone" in said(job(phase="watching", workers=workers), 60)
    assert "no news for 12 s" in said(JOB, 60, silence_s=12.2)
    assert "BLOCKED" in said(job(phase="blocked", workers=workers), 60)


def test_names_from_the_job_can_not_move_the_cursor() -> None:
    evil = WindowLine(
        window_id=1, purpose="slow", phase="done", verdict="slow", summary="Slow: \x1b[2J\u202eworker\r\n日本語"
    )
    line = said(job(phase="\x1b[3J", workers=WORKERS, windows=(evil,)), 100)
    assert line.isprintable() and "worker 日本語" in line
