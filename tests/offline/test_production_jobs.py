"""Two jobs of a production cluster, as operator times: who is to blame, and when nobody is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from operator_times import patterns_of, read_layout

from eroica.model.verdict import Verdict
from eroica.model.window import Window
from eroica.pipeline import analyze

JOBS = Path(__file__).parents[2] / "../shared/traces/jobs"


def diagnosed(name: str) -> Verdict:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: it reads these files")
    if not JOBS.is_dir():
        pytest.skip(f"there are no recorded jobs in {JOBS}")
    table = parquet.read_table(JOBS / f"trace-{name}.parquet")
    wanted = ("rank", "step", "optype", "start_ts", "duration")
    columns = {column: np.asarray(table.column(column).to_numpy()) for column in wanted}
    patterns = patterns_of(columns, read_layout(JOBS / f"meta-{name}.yaml"))
    window = Window(
        window_id=1,
        purpose="trace",
        kind="trace",
        reason="",
        first_iteration=0,
        last_iteration=patterns[0].last_iteration,
    )
    return analyze(name, window, patterns)


def test_the_four_workers_of_the_slow_stage_are_blamed_for_what_was_published_and_who_waits_is_not() -> None:
    slow_stage = diagnosed("AR")
    causes = [finding for finding in slow_stage.findings if finding.role == "cause"]
    assert slow_stage.verdict == "slow"
    assert [(cause.cause, cause.workers) for cause in causes] == [("compute-slow", (0, 1, 2, 3))]
    assert causes[0].gain is not None and 1 / (1 - causes[0].gain) == pytest.approx(1.97, rel=0.1)
    assert causes[0].confidence > 0.75
    symptoms = [finding for finding in slow_stage.findings if finding.role == "symptom"]
    assert symptoms and all(not set(symptom.workers) & {0, 1, 2, 3} for symptom in symptoms)


def test_a_long_last_stage_is_the_models_and_nobodys_fault_and_costs_what_was_published() -> None:
    long_stage = diagnosed("ST")
    causes = [finding for finding in long_stage.findings if finding.role == "cause"]
    assert [(cause.cause, cause.workers) for cause in causes] == [("stage-imbalance", ())]
    assert "last of 4 pipeline stages (workers 6 and 7)" in long_stage.summary
    assert causes[0].gain is not None and 1 / (1 - causes[0].gain) == pytest.approx(1.18, abs=0.05)
