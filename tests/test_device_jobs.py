"""Jobs of the exam on a GPU tell their own pace, also where they end before their fault begins."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
JOB = Path(__file__).parents[1] / "benchmarks" / "device" / "jobs" / "language_model.py"


@pytest.mark.parametrize(
    ("iterations", "onset", "before", "after"), [(100, 60, 10.0, 10.0), (30, 60, 10.0, None), (10, 60, None, None)]
)
def test_a_language_model_reports_what_it_measured(
    iterations: int, onset: int, before: float | None, after: float | None, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("language_model", JOB)
    assert spec is not None and spec.loader is not None
    job = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(job)
    job.report("neighbor", onset, [0.01 * count for count in range(iterations + 1)])
    told = json.loads(capsys.readouterr().out)
    assert told["job"] == "neighbor"
    assert (told["mean_ms_before"], told["mean_ms_after"]) == (
        before if before is None else pytest.approx(before),
        after if after is None else pytest.approx(after),
    )
