"""Where removed time is taken from: the stretch between two meetings that the peers spend less in."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eroica.localize.arrivals import read_arrivals
from eroica.localize.fleet import Fleet, build_fleet
from eroica.localize.simulate import Removal, share_gains, simulate_iterations, simulated_gain
from eroica.model.worker import ProcessGroup
from eroica.settings import Settings
from support import FleetPlan, SlowLoader, synthesize
from support.pipelines import Step, patterns_of_played, play

ITERATIONS, WORKERS, MEETINGS = 12, 4, 8
WORK, EXTRA, TRANSFER = 5_000.0, 10_000.0, 200.0
PLAIN_US = MEETINGS * (WORK + TRANSFER)


def fleet_of(work_WIK: np.ndarray, transfer_us: float = TRANSFER) -> Fleet:
    """Eight all-reduces of all workers in each iteration, with that much work before each."""
    everybody = ProcessGroup(name="0", description="default_pg", ranks=tuple(range(WORKERS)), backend="gloo")
    programs = [
        [
            step
            for work_K in work_IK
            for step in (
                *(s for work in work_K for s in (Step("work", work), Step("all_reduce", transfer_us, "0"))),
                Step("iteration"),
            )
        ]
        for work_IK in work_WIK
    ]
    return seen(programs, [everybody])


def seen(programs: Sequence[Sequence[Step]], groups: Sequence[ProcessGroup]) -> Fleet:
    fleet = build_fleet(patterns_of_played(play(programs, groups), groups), Settings(one_off_fraction=0.0))
    arrivals = read_arrivals(fleet)
    assert arrivals.replay is not None
    return msgspec.structs.replace(fleet, replay=arrivals.replay)


def alike() -> np.ndarray:
    return np.full((WORKERS, ITERATIONS, MEETINGS), WORK)


def test_a_slow_loader_before_one_of_eight_meetings_is_worth_all_of_it() -> None:
    work = alike()
    work[1, :, 0] += EXTRA
    fleet = fleet_of(work)
    removed = np.zeros_like(fleet.iteration_us)
    removed[1] = EXTRA
    assert simulated_gain(fleet, removed) == pytest.approx(EXTRA / (PLAIN_US + EXTRA), abs=0.01)


def test_what_all_workers_spend_is_not_taken_from_where_noise_makes_them_late() -> None:
    """With 20 % of noise, time taken from each one's latest stretches would save several times what was spent."""
    work = alike() * np.random.default_rng(2).uniform(0.8, 1.2, (WORKERS, ITERATIONS, MEETINGS))
    work[:, :, 0] += EXTRA
    fleet = fleet_of(work)
    small = 0.1 * EXTRA
    gain = simulated_gain(fleet, np.full_like(fleet.iteration_us, small))
    assert 0.7 * small < gain * float(fleet.iteration_us.mean()) < 1.2 * small


def test_a_worker_that_is_held_loses_that_share_of_its_work_and_all_that_of_their_transfers() -> None:
    """Worker 1 is stopped two thirds of the time: what it does takes three times as long, what all do together, too."""
    held, transfer_us = 2 / 3, 2_000.0
    work = alike()
    work[1] *= 3
    fleet = fleet_of(work, 3 * transfer_us)
    held_W = np.array([0.0, held, 0.0, 0.0])
    own = held_W[:, None] * fleet.busy_us
    truth = 1 - (WORK + transfer_us) / (3 * WORK + 3 * transfer_us)
    assert simulated_gain(fleet, own, held_W=held_W) == pytest.approx(truth, abs=0.01)
    assert simulated_gain(fleet, own) == pytest.approx(2 * WORK / (3 * WORK + 3 * transfer_us), abs=0.01)
    loader = np.zeros_like(own)
    loader[0] = 100.0
    gains = share_gains(fleet, [Removal(own, held_W), Removal(loader)])
    assert gains == pytest.approx([truth, 0.0], abs=0.02)
    apart = msgspec.structs.replace(fleet, replay=None)
    assert simulated_gain(apart, own, held_W=held_W) == pytest.approx(truth, abs=0.01)


# --- from busy and waiting times alone ---


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
