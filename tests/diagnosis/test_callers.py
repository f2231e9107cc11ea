"""Work in operators: told as the function that calls them, as uneven work, or as nobody's doing."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from eroica.model.pattern import FunctionKey, FunctionPattern, WorkerPattern
from eroica.model.verdict import Verdict
from eroica.pipeline import analyze
from support import FleetPlan, LargerBatches, Trouble, synthesize, synthesize_window
from support.fleet import Draft, accused, causes

FRAMES = ("Module._call_impl (torch/nn/modules/module.py:1782)", "attend (project/attention.py:43)")
SORT = FunctionKey(kind="compute", name="aten::sort", phase="forward", thread="training")
SORT_BACKWARD = FunctionKey(kind="compute", name="SortBackward0", phase="backward", thread="training")
EVERYBODY = (0, 1, 2, 3)
seeds = pytest.mark.parametrize("seed", range(3))


class Sorting:
    """Operators of one function: so long in forward, so long their gradients in backward."""

    def __init__(self, workers: Sequence[int], forward_ms: float, backward_ms: float = 0.0) -> None:
        self.workers, self.forward_ms, self.backward_ms = list(workers), forward_ms, backward_ms

    def apply(self, draft: Draft) -> None:
        on_WI = np.zeros(draft.shape)
        on_WI[self.workers] = 1e3
        draft.add(SORT, self.forward_ms * on_WI, 4.0, 0.95)
        if self.backward_ms:
            draft.add(SORT_BACKWARD, self.backward_ms * on_WI, 4.0, 0.95)


def called_by_attend(patterns: Sequence[WorkerPattern], workers: Sequence[int], ms: float) -> list[WorkerPattern]:
    """The patterns with stacks that were sampled during the operators: the function takes hardly any time itself."""
    key = FunctionKey(kind="python", name="attend", stack=(*LOOP, *FRAMES), phase="forward", thread="training")
    changed = []
    for one in patterns:
        seconds = ms / 1e3 * (one.last_iteration - one.first_iteration)
        more = FunctionPattern(
            key=key, beta=0.0, mu=0.95, resource="cpu", resource_samples=200, total_s=seconds, count=40, max_s=0.1
        )
        has = one.worker.global_rank in workers
        changed.append(msgspec.structs.replace(one, functions=(*one.functions, more)) if has else one)
    return changed


LOOP = ("<module> (project/train.py:1)", "main (project/train.py:40)")


class Scaled:
    """Everything of some parts of the iteration takes so many times as long, or is run so many times as often."""

    def __init__(self, phases: Sequence[str], longer: float = 1.0, oftener: float = 1.0) -> None:
        self.phases, self.longer, self.oftener = phases, longer, oftener

    def apply(self, draft: Draft) -> None:
        for key in draft.time_us:
            if key.phase in self.phases:
                draft.time_us[key] = draft.time_us[key] * self.longer * self.oftener
                draft.count[key] = draft.count[key] * self.oftener


def in_attend(seed: int, draw: int, troubles: Sequence[Trouble], ms: float) -> list[WorkerPattern]:
    """Stacks of `attend` were sampled during operators on everybody."""
    made = synthesize(FleetPlan(workers=4, seed=seed, draw=draw), troubles, draw + 1)
    return called_by_attend(made, EVERYBODY, ms)


DATA = ("forward", "backward")


@seeds
@pytest.mark.parametrize("purpose", ["slow", "manual"])
@pytest.mark.parametrize(
    ("then", "now", "times"),
    [
        pytest.param([], [Scaled(DATA, longer=2.5)], 2.5, id="larger batches"),
        pytest.param([], [Scaled(DATA, oftener=4.0)], 4.0, id="more micro-batches"),
        pytest.param([], [Scaled((*DATA, "optimizer", "other"), longer=4.0)], 4.0, id="slow processors"),
        pytest.param(
            [Scaled(("optimizer",), longer=15.0)],
            [Scaled(("optimizer",), longer=15.0), Scaled(DATA, longer=4.0)],
            4.0,
            id="larger batches beside a long optimizer",
        ),
    ],
)
def test_longer_operators_all_over_are_no_functions_doing(
    seed: int, purpose: str, then: list[Trouble], now: list[Trouble], times: float
) -> None:
    before, patterns = in_attend(seed, 0, then, 8), in_attend(seed, 1, now, 8 * times)
    verdict = analyze("job", synthesize_window(patterns, purpose, before), patterns, before)  # type: ignore[arg-type]
    assert not [one for one in causes(verdict) if one.function.name == "attend"], verdict.summary


@seeds
def test_a_function_that_was_there_before_in_full_is_not_named(seed: int) -> None:
    """Another one's operators have come on top."""
    before = in_attend(seed, 0, [Sorting(EVERYBODY, 40)], 40)
    patterns = in_attend(seed, 1, [Sorting(EVERYBODY, 90)], 40)
    verdict = analyze("job", synthesize_window(patterns, "slow", before), patterns, before)
    assert not [one for one in causes(verdict) if one.function.name == "attend"], verdict.summary


def judged(*troubles: Trouble, before: Sequence[Trouble] = (), **plan: object) -> Verdict:
    healthy = synthesize(FleetPlan(**{**plan, "draw": 1}), before, 1)
    patterns = synthesize(FleetPlan(**plan), troubles, 2)
    return analyze("job", synthesize_window(patterns, "slow", healthy), patterns, healthy)


@pytest.mark.parametrize("seed", range(6))
def test_larger_batches_on_one_worker_are_uneven_work(seed: int) -> None:
    verdict = judged(LargerBatches(2.5, (2,)), seed=seed)
    assert accused(verdict) == [("load-imbalance", (2,))]
    assert verdict.cause is not None
    assert any("tensors are larger" in sentence for sentence in verdict.cause.evidence)
