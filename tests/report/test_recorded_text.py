from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console

from eroica.model.pattern import FunctionKey, WorkerPattern
from eroica.model.window import Window
from eroica.pipeline import analyze
from eroica.report.text import render_verdict
from eroica.testing import FleetPlan, synthesize
from eroica.testing.recordings import recorded_worker


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
    assert "all workers" in shown(host_bound())
    text = shown(host_bound(world=3))
    assert "all workers" not in text.split("Note:")[0]
    assert "missing: workers 1, 2" in text


def test_stages_are_nobodys_fault() -> None:
    text = shown(synthesize(FleetPlan(workers=4, stages=2, accelerator=True)))
    assert "how the job is laid out" in text
    assert "no worker is to blame" in text
