"""Matrix products of backward beside those of forward."""

from __future__ import annotations

import numpy as np
import pytest

from eroica.model.pattern import FunctionKey
from eroica.model.verdict import Verdict
from eroica.pipeline import analyze
from support import FleetPlan, SlowLoader, synthesize, synthesize_window
from support.fleet import Draft

FORWARD = FunctionKey(kind="compute", name="aten::addmm", phase="forward")
BACKWARD = FunctionKey(kind="compute", name="aten::mm", phase="backward")


class Products:
    """Matrix products take so many milliseconds, in so many calls."""

    def __init__(self, forward_ms: float, backward_ms: float, calls: float = 28.0, spread: float = 0.05) -> None:
        self.forward_ms, self.backward_ms, self.calls, self.spread = forward_ms, backward_ms, calls, spread

    def apply(self, draft: Draft) -> None:
        for key in (FORWARD, BACKWARD):
            draft.time_us.pop(key, None)
            draft.count.pop(key, None)
        vary_WI = 1 + self.spread * draft.noise.standard_normal(draft.shape)
        draft.add(FORWARD, np.full(draft.shape, self.forward_ms * 1e3), 14.0, 0.9)
        draft.add(BACKWARD, self.backward_ms * 1e3 * np.clip(vary_WI, 0.2, 3.0), self.calls, 0.9)


def verdict_on(products: Products, seed: int = 0, *, accelerator: bool = False, workers: int = 4) -> Verdict:
    patterns = synthesize(FleetPlan(workers=workers, seed=seed, accelerator=accelerator), [products], 2)
    return analyze("job", synthesize_window(patterns, "manual", ()), patterns)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("spread", [0.05, 0.4])
def test_products_of_backward_that_take_far_longer_than_those_of_forward_are_told(seed: int, spread: float) -> None:
    verdict = verdict_on(Products(8, 200, spread=spread), seed)
    found = verdict.cause
    assert found is not None and (found.cause, found.scope, found.function.name) == ("compute-slow", "all", "aten::mm")
    assert "denormal" in verdict.summary and "set_flush_denormal" in found.next_step
    assert found.gain == pytest.approx(176 / 250, abs=0.12)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("products", "accelerator"),
    [
        (Products(30, 66), False),  # as usual
        (Products(30, 105), False),  # with forward run again
        (Products(8, 200, calls=200.0), False),  # other products
        (Products(8, 200), True),
    ],
)
def test_what_is_usual_or_not_comparable_is_not(products: Products, accelerator: bool, seed: int) -> None:
    assert b"set_flush_denormal" not in verdict_on(products, seed, accelerator=accelerator).to_json()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("then_ms", "told"), [(16, True), (180, False)])
def test_a_model_whose_backward_has_always_been_so_long_has_not_become_slow_by_it(
    seed: int, then_ms: float, told: bool
) -> None:
    before = synthesize(FleetPlan(seed=seed + 100), [Products(8, then_ms)], 1)
    patterns = synthesize(FleetPlan(seed=seed), [Products(8, 240)], 2)
    verdict = analyze("job", synthesize_window(patterns, "slow", before), patterns, before)
    assert (b"set_flush_denormal" in verdict.to_json()) == told


@pytest.mark.parametrize("seed", range(3))
def test_forward_outside_of_what_is_called_forward_counts(seed: int) -> None:
    class Head:
        """Most of forward runs outside of the wrapped module, under another operator's name."""

        def apply(self, draft: Draft) -> None:
            key = FunctionKey(kind="compute", name="aten::linalg_cholesky_ex", phase="other")
            draft.add(key, np.full(draft.shape, 90e3), 2.0, 0.9)

    patterns = synthesize(FleetPlan(seed=seed), [Products(8, 200), Head()], 2)
    verdict = analyze("job", synthesize_window(patterns, "manual", ()), patterns)
    assert b"set_flush_denormal" not in verdict.to_json()


class OnOne(Products):
    """As above, but backward's products are as usual on all workers but one."""

    def __init__(self, worker: int) -> None:
        super().__init__(8, 16)
        self.worker = worker

    def apply(self, draft: Draft) -> None:
        super().apply(draft)
        draft.time_us[BACKWARD][self.worker] *= 12


@pytest.mark.parametrize("seed", range(3))
def test_a_worker_whose_gradients_alone_are_so_small_is_named(seed: int) -> None:
    found = verdict_on(OnOne(2), seed).cause
    assert found is not None and (found.cause, found.workers) == ("compute-slow", (2,))
    assert "set_flush_denormal" in found.next_step


@pytest.mark.parametrize("seed", range(3))
def test_small_gradients_on_one_of_two_workers_are_told_though_the_other_is_as_late_by_reading(seed: int) -> None:
    patterns = synthesize(FleetPlan(workers=2, seed=seed), [OnOne(0), SlowLoader((1,), 176)], 2)
    verdict = analyze("job", synthesize_window(patterns, "manual", ()), patterns)
    found = {one.cause: one for one in verdict.findings if one.role == "cause"}
    assert {cause: one.workers for cause, one in found.items()} == {"compute-slow": (0,), "slow-data-loading": (1,)}
    assert "set_flush_denormal" in found["compute-slow"].next_step
