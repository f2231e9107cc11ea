"""What a job lost against its own healthy window is told with its place, also where no kind of cause is known."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from eroica.model.lost import rank_errors
from eroica.model.pattern import FunctionKey, WorkerPattern
from eroica.model.verdict import Verdict
from eroica.model.window import WindowPurpose
from eroica.pipeline import analyze
from support import FleetPlan, synthesize, synthesize_window
from support.fleet import Draft

TRACING = FunctionKey(kind="compute", name="bytecode_tracing (dynamo_timed)", phase="forward", thread="training")
GUARDS = FunctionKey(kind="compute", name="build_guards (dynamo_timed)", phase="forward", thread="training")
SCAN = FunctionKey(kind="compute", name="custom::scan", phase="forward", thread="training")
COMPILER = (
    "CatchErrorsWrapper.__call__ (torch/_dynamo/convert_frame.py:2522)",
    "_compile (torch/_dynamo/convert_frame.py:1633)",
    "InstructionTranslatorBase.step (torch/_dynamo/symbolic_convert.py:1556)",
)
seeds = pytest.mark.parametrize("seed", range(3))


class Compiling:
    """Code is compiled again in some iterations, now on this worker and now on that one: ranges, and stacks in them."""

    def __init__(self, share: float, ms: float) -> None:
        self.share, self.ms = share, ms

    def apply(self, draft: Draft) -> None:
        random = np.random.default_rng(draft.shape[1])
        on_WI = (random.random(draft.shape) < self.share) * self.ms * 1e3
        for key, part in ((TRACING, 0.7), (GUARDS, 0.3)):
            draft.add(key, part * on_WI, 3.0, 0.95)
        draft.add(draft.loop_frame(*COMPILER, phase="forward"), 0.001 * on_WI, 1.0, 0.95)


class Scan:
    """An operator that was not there before, on all workers, beside no Python."""

    def __init__(self, ms: float, key: FunctionKey = SCAN) -> None:
        self.ms, self.key = ms, key

    def apply(self, draft: Draft) -> None:
        draft.add(self.key, np.full(draft.shape, self.ms * 1e3), 1.0, 0.95)


def sampled_inside(patterns: list[WorkerPattern], mean_ms: float) -> list[WorkerPattern]:
    """Stacks of the compiler are sampled inside of its ranges."""
    changed = []
    for one in patterns:
        more_s = mean_ms / 1e3 * (one.last_iteration - one.first_iteration)
        rows = [
            msgspec.structs.replace(row, total_s=row.total_s + more_s) if COMPILER[-1] in row.key.stack else row
            for row in one.functions
        ]
        changed.append(msgspec.structs.replace(one, functions=tuple(rows)))
    return changed


def judge(trouble: Compiling | Scan | None, seed: int, inside_ms: float = 0.0) -> Verdict:
    before = synthesize(FleetPlan(workers=4, seed=seed), (), 1)
    troubles = [trouble] if trouble is not None else []
    patterns = sampled_inside(synthesize(FleetPlan(workers=4, seed=seed, draw=1), troubles, 2), inside_ms)
    return analyze("job", synthesize_window(patterns, "slow", before), patterns, before)


@seeds
def test_an_operator_that_nobody_knows_is_named_with_its_gain(seed: int) -> None:
    verdict = judge(Scan(80), seed)
    found = verdict.cause
    assert found is not None, verdict.summary
    assert (found.function.name, found.scope) == ("custom::scan", "all"), verdict.summary
    usual, now = judge(None, seed).iteration.current_ms, verdict.iteration.current_ms
    assert usual is not None and now is not None and found.gain == pytest.approx(1 - usual / now, abs=0.06)


def test_ranks_are_as_scipy_would_have_them() -> None:
    """By the definition: how many pairs are in order, less half, over the spread that chance gives."""
    random = np.random.default_rng(1)
    now, then = random.integers(0, 9, (5, 12)).astype(float), random.integers(0, 7, (5, 9)).astype(float)
    for worker in range(5):
        found = rank_errors(now[worker], then[worker])
        pairs = sum((a > b) + (a == b) / 2 for a in now[worker] for b in then[worker])
        ties = np.unique(np.concatenate([now[worker], then[worker]]), return_counts=True)[1]
        spread = 12 * 9 / 12 * (22 - sum(t**3 - t for t in ties) / (21 * 20))
        assert found == pytest.approx((pairs - 54) / spread**0.5)


@pytest.mark.parametrize("purpose", ["early", "manual", "slow"])
def test_a_window_far_slower_than_its_own_past_is_never_healthy(purpose: WindowPurpose) -> None:
    """Everything takes 1.8 times as long: no place, no cause, and no health either."""
    before = synthesize(FleetPlan(workers=4, seed=1), (), 1)
    patterns = synthesize(FleetPlan(workers=4, seed=1, draw=1, scale=1.8), (), 2)
    verdict = analyze("job", synthesize_window(patterns, purpose, before), patterns, before)
    assert verdict.verdict != "healthy", verdict.summary


def test_a_window_far_slower_than_the_best_is_never_healthy_though_the_job_had_been_slower_still() -> None:
    """Nearer to the best mean than to the slow one for which it was opened, and still twice as slow as the best."""
    patterns = synthesize(FleetPlan(workers=4, seed=1, draw=1, scale=1.8), (), 2)
    window = msgspec.structs.replace(
        synthesize_window(patterns, "slow"), baseline_iteration_s=0.05, current_iteration_s=0.9
    )
    verdict = analyze("job", window, patterns)
    assert verdict.verdict == "undetermined", verdict.summary


@pytest.mark.parametrize(("current_s", "word"), [(0.138, "undetermined"), (0.062, "healthy")])
def test_without_a_window_to_compare_with_the_jobs_own_pace_counts_if_capturing_did_not_make_it(
    current_s: float, word: str
) -> None:
    patterns = synthesize(FleetPlan(workers=4, seed=1, draw=1, scale=1.8), (), 2)
    window = msgspec.structs.replace(
        synthesize_window(patterns, "early"), baseline_iteration_s=0.06, current_iteration_s=current_s
    )
    verdict = analyze("job", window, patterns)
    assert verdict.verdict == word, verdict.summary
