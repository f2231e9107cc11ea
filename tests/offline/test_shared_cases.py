"""The shared cases: what is true of each is what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from eroica.model.verdict import Verdict
from eroica.offline import diagnose
from eroica.settings import Settings

_CASES = Path(__file__).parents[2] / "../shared/cases/traces"
pytestmark = pytest.mark.skipif(not _CASES.is_dir(), reason="the shared cases are not here")


def judged(name: str) -> Verdict:
    return diagnose(str(_CASES / name), settings=Settings(readers=1))


def accused(verdict: Verdict) -> set[int]:
    return {worker for one in verdict.findings if one.role == "cause" and one.scope == "some" for worker in one.workers}


@pytest.mark.parametrize(("name", "why"), [("cpu_only_rank_*", "no device events"), ("cut_rank_*", "file ends inside")])
def test_a_recording_without_its_kernels_accuses_nobody_and_is_named_first(name: str, why: str) -> None:
    verdict = judged(name)
    assert not accused(verdict) and verdict.verdict in ("healthy", "undetermined")
    assert verdict.coverage.missing == (1,) and why in verdict.coverage.notes[0]
    assert "Worker 1 is left out" in verdict.summary and why in verdict.summary


@pytest.mark.parametrize("name", ["shifted_rank_*", "deepep_*", "one_step_six_waits_*"])
def test_a_late_worker_costs_what_the_others_wait_for_it(name: str) -> None:
    """Other steps recorded, the kernels of another library, six collectives of one step."""
    verdict = judged(name)
    assert accused(verdict) == {2} and verdict.cause is not None and verdict.cause.gain == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("layers_as_iterations.json", ("No iterations were found", "looks like inference")),
        ("host_runs_ahead.json", ("No iterations were found",)),
        ("startup_unmarked.json", ("No iterations were found", "once per process")),
        ("ascend_trace_view.json", ("unknown kind",)),
    ],
)
def test_what_cannot_be_told_is_undetermined_and_says_why(name: str, words: tuple[str, ...]) -> None:
    verdict = judged(name)
    assert verdict.verdict == "undetermined" and all(word in verdict.summary for word in words)
    assert "per process" not in verdict.summary or "% of the iteration" not in verdict.summary


def test_a_long_stage_is_structure_in_groups_of_two_as_well() -> None:
    verdict = judged("pair_groups_*")
    assert [finding.cause for finding in verdict.findings if finding.role == "cause"] == ["stage-imbalance"]
    assert not accused(verdict)


def test_waiting_for_another_worker_each_time_is_said_with_its_share() -> None:
    verdict = judged("rotating_*")
    assert not accused(verdict) and "27 % of each iteration" in verdict.summary
    assert "another worker each time" in verdict.summary
