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


@pytest.fixture(scope="module")
def slow_stage() -> Verdict:
    return diagnosed("AR")


@pytest.fixture(scope="module")
def long_stage() -> Verdict:
    return diagnosed("ST")


def test_the_four_workers_of_the_slow_stage_are_blamed_and_no_other(slow_stage: Verdict) -> None:
    causes = [finding for finding in slow_stage.findings if finding.role == "cause"]
    assert slow_stage.verdict == "slow"
    assert [(cause.cause, cause.workers) for cause in causes] == [("compute-slow", (0, 1, 2, 3))]


def test_what_the_step_would_take_without_them_is_close_to_what_was_published(slow_stage: Verdict) -> None:
    cause = slow_stage.cause
    assert cause is not None and cause.gain is not None
    assert 1 / (1 - cause.gain) == pytest.approx(1.97, rel=0.1)
    assert cause.confidence > 0.75


def test_those_who_wait_for_the_slow_stage_are_symptoms(slow_stage: Verdict) -> None:
    symptoms = [finding for finding in slow_stage.findings if finding.role == "symptom"]
    assert symptoms
    assert all(not set(symptom.workers) & {0, 1, 2, 3} for symptom in symptoms)


def test_a_long_last_stage_is_the_models_and_nobodys_fault(long_stage: Verdict) -> None:
    causes = [finding for finding in long_stage.findings if finding.role == "cause"]
    assert [(cause.cause, cause.workers) for cause in causes] == [("stage-imbalance", ())]
    assert "last of 4 pipeline stages (workers 6 and 7)" in long_stage.summary
    assert "no worker is to blame" in long_stage.summary


def test_what_balanced_stages_would_save_is_close_to_what_was_published(long_stage: Verdict) -> None:
    cause = long_stage.cause
    assert cause is not None and cause.gain is not None
    assert 1 / (1 - cause.gain) == pytest.approx(1.18, abs=0.05)
