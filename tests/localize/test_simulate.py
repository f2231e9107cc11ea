from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eroica.localize.fleet import Fleet, build_fleet
from eroica.localize.simulate import simulate_iterations, simulated_gain
from eroica.settings import Settings
from support import FleetPlan, SlowLoader, synthesize


def fleet(busy: list[list[float]], transfer: float = 0.0) -> Fleet:
    """One role whose members wait for the last."""
    plain = build_fleet(synthesize(FleetPlan(workers=len(busy), iterations=len(busy[0]))), Settings(one_off_fraction=0))
    times = np.array(busy)
    iteration = np.broadcast_to(times.max(axis=0) + transfer, times.shape)
    fields = {name: getattr(plain, name) for name in plain.__struct_fields__}
    return Fleet(**{**fields, "iteration_us": iteration, "wait_us": iteration - times})


def test_removing_a_latecomers_excess_gains_what_the_others_waited() -> None:
    removed = np.array([[0.0] * 3, [40.0] * 3])
    assert simulated_gain(fleet([[60.0] * 3, [100.0] * 3]), removed) == pytest.approx(0.4)


def test_wandering_pauses_gain_more_than_any_workers_mean() -> None:
    busy = 50 + 40 * np.eye(4)
    assert simulated_gain(fleet(busy.tolist()), 40 * np.eye(4)) == pytest.approx(4 / 9)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 1000), st.floats(0, 3))
def test_a_simulated_iteration_is_never_longer_than_the_real_one_nor_shorter_than_anybodys_rest(
    seed: int, factor: float
) -> None:
    own = build_fleet(synthesize(FleetPlan(seed=seed % 5, iterations=12), [SlowLoader((1,), 20)]), Settings())
    removed = np.random.default_rng(seed).uniform(0, 20_000 * factor, own.iteration_us.shape)
    result = simulate_iterations(own, removed)
    now = own.iteration_us.mean(axis=0)
    assert (result <= now + 1e-6).all()
    assert (result >= np.minimum(np.maximum(own.busy_us - removed, 0).max(axis=0), now) - 1e-6).all()
