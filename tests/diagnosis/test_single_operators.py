"""One slow operator on one worker: named, with what that means; healthy unevenness of operators is not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from eroica.model.pattern import FunctionKey
from eroica.model.verdict import Verdict
from eroica.pipeline import analyze
from support import FleetPlan, SlowCompute, Trouble, synthesize, synthesize_window
from support.fleet import Draft


def judged(*troubles: Trouble, **plan: object) -> Verdict:
    healthy = synthesize(FleetPlan(**{**plan, "draw": 1}), (), 1)
    patterns = synthesize(FleetPlan(**plan), troubles, 2)
    return analyze("job", synthesize_window(patterns, "slow", healthy), patterns, healthy)


def test_a_worker_that_is_slow_altogether_is_not_told_operator_by_operator() -> None:
    verdict = judged(SlowCompute((1,), 2.5), seed=3)
    causes = [finding for finding in verdict.findings if finding.role == "cause"]
    assert [(cause.cause, cause.workers) for cause in causes] == [("compute-slow", (1,))]
    assert "shapes" not in causes[0].next_step


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("plan", [{}, {"workers": 16}, {"accelerator": True}, {"cores": 2}, {"iterations": 3}])
def test_uneven_operators_of_a_healthy_job_accuse_nobody(seed: int, plan: dict[str, object]) -> None:
    assert judged(seed=seed, **plan).findings == ()


@dataclass(frozen=True)
class HeavyOptimizer:
    """The optimizer's operators take most of the time of all."""

    ms: float

    def apply(self, draft: Draft) -> None:
        """On all workers alike."""
        key = FunctionKey(kind="compute", name="aten::lerp_", phase="optimizer", thread="training")
        draft.add(key, np.full(draft.shape, self.ms * 1e3), 40.0, 0.95)


@dataclass(frozen=True)
class MoreData:
    """Operators on data of some workers, all or those named, take so many times as long; they run as often."""

    workers: tuple[int, ...]
    factor: float
    names: tuple[str, ...] = ()

    def apply(self, draft: Draft) -> None:
        """In forward and backward."""
        for key in draft.time_us:
            named = not self.names or key.name in self.names
            if key.kind == "compute" and key.phase in ("forward", "backward") and named:
                draft.time_us[key][list(self.workers)] *= self.factor


@pytest.mark.parametrize("seed", range(4))
def test_operators_of_forward_and_backward_that_stand_out_are_more_data(seed: int) -> None:
    """Beside a heavy optimizer, the worker is not slower altogether."""
    healthy = synthesize(FleetPlan(seed=seed, draw=1), [HeavyOptimizer(55.0)], 1)
    patterns = synthesize(FleetPlan(seed=seed), [HeavyOptimizer(55.0), MoreData((1,), 2.2)], 2)
    verdict = analyze("job", synthesize_window(patterns, "slow", healthy), patterns, healthy)
    found = verdict.cause
    assert found is not None, verdict.summary
    assert (found.cause, found.workers) == ("load-imbalance", (1,)), verdict.summary
    assert any("the tensors are larger" in sentence for sentence in found.evidence)


@pytest.mark.parametrize("seed", range(3))
def test_more_data_is_told_where_workers_take_turns_and_all_operators_on_it_take_longer(seed: int) -> None:
    """Slower altogether, but not by as much as who gets no core is."""
    most = MoreData((1,), 2.2, names=("aten::addmm", "aten::gelu_backward", "aten::native_layer_norm_backward"))
    plan = {"workers": 4, "per_host": 4, "cores": 2}
    verdict = judged(HeavyOptimizer(4.0), MoreData((1,), 1.6), most, seed=seed, **plan)
    found = verdict.cause
    assert found is not None, verdict.summary
    assert (found.cause, found.workers) == ("load-imbalance", (1,)), verdict.summary


@pytest.mark.parametrize("seed", range(3))
def test_a_worker_that_is_slower_altogether_where_workers_take_turns_is_not_accused_of_operators(seed: int) -> None:
    verdict = judged(SlowCompute((1,), 1.7, "nothing_of_note"), seed=seed, workers=4, per_host=4, cores=2)
    assert not any("operators run at normal speed" in line for one in verdict.findings for line in one.evidence)
    assert verdict.cause is None or verdict.cause.cause != "load-imbalance", verdict.summary


@dataclass(frozen=True)
class WithoutCore(MoreData):
    """The same while the training threads of these workers are ready but without a core for a share of the time."""

    queued: float = 0.85

    def apply(self, draft: Draft) -> None:
        """As above, and a fact of the host."""
        super().apply(draft)
        for worker in self.workers:
            draft.facts[worker]["run_queue_wait"] = self.queued


@pytest.mark.parametrize("seed", range(3))
def test_who_waits_for_a_core_has_no_more_data_though_the_optimizer_is_spared(seed: int) -> None:
    """The optimizer is so short that few of its turns are hit."""
    verdict = judged(WithoutCore((1,), 1.8), seed=seed)
    found = verdict.cause
    assert found is not None, verdict.summary
    assert (found.cause, found.workers) == ("cpu-contention", (1,)), verdict.summary
    told = judged(WithoutCore((1,), 1.8, queued=0.25), seed=seed).cause
    assert told is not None
    assert told.cause == "load-imbalance"
