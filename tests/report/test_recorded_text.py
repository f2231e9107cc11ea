from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console

from eroica.model.pattern import FunctionKey, WorkerPattern
from eroica.model.window import Window
from eroica.pipeline import analyze
from eroica.report.text import render_verdict
from support.recordings import recorded_worker


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


def test_one_rank_of_several_is_not_all_workers() -> None:
    alone = shown(host_bound())
    assert "all workers" not in alone
    assert "worker 0" in alone
    text = shown(host_bound(world=3))
    assert "all workers" not in text.split("Note:")[0]
    assert "missing: workers 1, 2" in text
