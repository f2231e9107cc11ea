from __future__ import annotations

import numpy as np
import pytest

from eroica.localize import Suspects, localize
from eroica.localize.rule import SuspectRow, flag_functions
from eroica.settings import Settings
from support import FleetPlan, SlowLoader, SlowPython, synthesize

PLAN = FleetPlan(seed=11)


def flagged(suspects: Suspects) -> list[SuspectRow]:
    found = flag_functions(suspects, range(len(suspects.fleet.keys)), Settings())
    return sorted(found, key=lambda row: -np.nan_to_num(row.excess_us))


def named(suspects: Suspects) -> set[tuple[str, tuple[int, ...], str]]:
    return {(row.key.name, row.workers, row.why) for row in flagged(suspects) if row.excess_us > 5000}


def test_a_new_function_on_one_worker_is_beyond_expectation_and_first_in_order() -> None:
    suspects = localize(synthesize(PLAN, [SlowLoader((2,), 40)], 2), [], Settings())
    first = flagged(suspects)[0]
    assert (first.key.name, first.workers, first.why) == ("_read_block", (2,), "expectation")
    assert first.excess_us == pytest.approx(40_000, rel=0.1)


def test_the_culprit_does_not_stand_out_in_the_collective_in_which_it_waits_least() -> None:
    """By the literal rule of eq. 11 it does: its pattern of all-reduce is the unique one."""
    suspects = localize(synthesize(PLAN, [SlowLoader((2,), 40)], 2), [], Settings())
    fleet = suspects.fleet
    row = next(at for at, key in enumerate(fleet.keys) if key.kind == "collective")
    beta = fleet.pattern[row, :, 0]
    assert beta.argmin() == 2
    assert beta[2] > Settings().beta_gate
    assert not any(2 in one.workers for one in flagged(suspects) if one.key.kind == "collective")


def test_against_the_baseline_all_workers_are_beyond_expectation() -> None:
    before = synthesize(PLAN, (), 1)
    suspects = localize(synthesize(PLAN, [SlowPython(30)], 2), before, Settings())
    assert ("_score_tokens", (0, 1, 2, 3), "expectation") in named(suspects)
    assert suspects.baseline is not None
