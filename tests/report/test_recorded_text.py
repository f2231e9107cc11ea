from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from rich.console import Console

from eroica.model.pattern import FunctionKey, WorkerPattern
from eroica.model.window import Window
from eroica.pipeline import analyze
from eroica.report.text import render_verdict
from support.recordings import meet, recorded_collective, recorded_worker


def shown(patterns: Sequence[WorkerPattern]) -> str:
    first, last = patterns[0].first_iteration, patterns[0].last_iteration
    window = Window(window_id=1, purpose="trace", kind="trace", reason="", first_iteration=first, last_iteration=last)
    stream = io.StringIO()
    render_verdict(analyze("job", window, patterns), Console(file=stream, width=200))
    return stream.getvalue()


def host_bound(world: int = 1) -> list[WorkerPattern]:
    rows = [(FunctionKey(kind="compute", name="gemm", thread="device"), 5000.0)]
    rows.append((FunctionKey(kind="other", name="aten::empty", phase="forward"), 15_000.0))
    return [recorded_worker(0, [], iterations=5, world=world, rows=rows)]


def test_a_recording_says_how_many_iterations_it_holds_and_nothing_of_a_running_job() -> None:
    text = shown(host_bound())
    assert "5 recorded iterations (0–4)" in text
    assert "stood still" not in text
    assert "before" not in text
    assert "Reading cost: " in text


def test_one_rank_of_several_is_not_all_workers() -> None:
    alone = shown(host_bound())
    assert "all workers" not in alone
    assert "worker 0" in alone
    text = shown(host_bound(world=3))
    assert "all workers" not in text.split("Note:")[0]
    assert "missing: workers 1, 2" in text


def test_waiting_for_a_late_worker_is_not_shown_as_its_own_duration() -> None:
    arrival = np.tile(np.arange(1, 16) * 6000.0, (4, 1))
    arrival[3] += 2000
    end, duration = meet(arrival)
    which = np.repeat(np.arange(5), 3)
    rows = [(FunctionKey(kind="compute", name="gemm", thread="device"), 13_000.0)]
    made = [
        recorded_worker(rank, [recorded_collective(end[rank], duration[rank], which)], iterations=5, rows=rows)
        for rank in range(4)
    ]
    text = shown(made)
    assert "the other 3 workers wait" in text
    assert "duration" not in text
