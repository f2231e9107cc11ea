"""The shared cases: what is true of each is what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from eroica.errors import InputError
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


def test_workers_are_compared_on_the_steps_that_all_recorded() -> None:
    verdict = judged("shifted_rank_*")
    assert accused(verdict) == {2} and verdict.cause is not None and verdict.cause.gain == pytest.approx(0.5, abs=0.02)
    assert verdict.window is not None and (verdict.window.first_iteration, verdict.window.last_iteration) == (12, 16)


def test_a_long_stage_is_structure_in_groups_of_two_as_well() -> None:
    verdict = judged("pair_groups_*")
    assert [finding.cause for finding in verdict.findings if finding.role == "cause"] == ["stage-imbalance"]
    assert not accused(verdict)


def test_waiting_in_the_kernels_of_another_library_is_waiting() -> None:
    verdict = judged("deepep_*")
    assert accused(verdict) == {2} and verdict.cause is not None and verdict.cause.gain == pytest.approx(0.5, abs=0.02)


def test_layers_of_one_pass_are_no_iterations() -> None:
    verdict = judged("layers_as_iterations.json")
    assert verdict.verdict == "undetermined" and "No iterations were found" in verdict.summary
    assert "looks like inference" in verdict.summary and not verdict.findings


def test_calls_last_as_long_as_their_work_on_the_device() -> None:
    verdict = judged("host_runs_ahead.json")
    assert verdict.verdict == "undetermined"
    assert "No iterations were found" in verdict.summary


def test_with_stacks_and_without_the_answer_is_the_same() -> None:
    with_stacks, without = judged("host_bound_stacks.json"), judged("host_bound_no_stacks.json")
    assert with_stacks.verdict == without.verdict and "host-bound" in with_stacks.summary.lower()
    assert "inside forward (model.py:8)" in with_stacks.summary
    assert without.summary == with_stacks.summary.replace(", inside forward (model.py:8)", "")


def test_training_that_its_host_cannot_feed_is_host_bound() -> None:
    verdict = judged("launch_bound_training_no_stacks.json")
    assert "host-bound" in verdict.summary.lower() and "inference" not in verdict.summary


def test_six_collectives_of_one_step_cost_six_waits() -> None:
    verdict = judged("one_step_six_waits_*")
    assert accused(verdict) == {2} and verdict.cause is not None and verdict.cause.gain == pytest.approx(0.5, abs=0.02)


def test_a_device_of_an_unknown_maker_is_not_healthy() -> None:
    verdict = judged("ascend_trace_view.json")
    assert verdict.verdict == "undetermined" and "unknown kind" in verdict.summary


def test_waiting_for_another_worker_each_time_is_said_with_its_share() -> None:
    verdict = judged("rotating_*")
    assert not accused(verdict) and "27 % of each iteration" in verdict.summary
    assert "another worker each time" in verdict.summary


def test_the_start_of_a_process_is_no_share_of_an_iteration() -> None:
    verdict = judged("startup_unmarked.json")
    assert verdict.verdict == "undetermined" and "once per process" in verdict.summary
    assert "No iterations were found" in verdict.summary and "% of the iteration" not in verdict.summary


def test_a_trace_of_another_tool_is_named() -> None:
    with pytest.raises(InputError, match="a trace, but not PyTorch's: VizTracer"):
        judged("other_tool_viztracer.json")
