"""Which block of a worker's own time holds what it takes longer: one function, or several that hold nearly all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from eroica.diagnosis.account import Part, largest_part
from eroica.diagnosis.context import WindowContext
from eroica.diagnosis.view import View
from eroica.localize import localize
from eroica.model.pattern import FunctionKey
from eroica.settings import Settings
from support import BackwardHook, FleetPlan, SlowPython, Trouble, synthesize, synthesize_window
from support.fleet import Draft

seeds = pytest.mark.parametrize("seed", range(3))


class Operator:
    """An operator takes so long on all workers."""

    def __init__(self, name: str, ms: float, phase: str = "backward") -> None:
        self.key = FunctionKey(kind="compute", name=name, phase=phase, thread="training")  # type: ignore[arg-type]
        self.ms = ms

    def apply(self, draft: Draft) -> None:
        draft.add(self.key, np.full(draft.shape, self.ms * 1e3), 1.0, 0.95)


def block(seed: int, then: Sequence[Trouble], now: Sequence[Trouble], scale: float = 1.0) -> Part | None:
    before = synthesize(FleetPlan(workers=4, seed=seed), then, 1)
    patterns = synthesize(FleetPlan(workers=4, seed=seed, draw=1, scale=scale), now, 2)
    context = WindowContext(job="job", window=synthesize_window(patterns, "slow", before), expected_workers=4)
    return largest_part(View(localize(patterns, before, Settings()), context, Settings()))


@seeds
def test_what_took_most_of_the_time_already_is_the_block_where_the_rest_takes_no_longer(seed: int) -> None:
    found = block(seed, [SlowPython(150)], [SlowPython(250)])
    assert found is not None
    assert found.late.workers == (0, 1, 2, 3)
    assert "_score_tokens" in found.cell.name


@seeds
def test_where_everything_takes_longer_alike_nothing_is_the_block(seed: int) -> None:
    assert block(seed, [SlowPython(150)], [SlowPython(150)], scale=1.8) is None


@seeds
def test_one_function_is_a_block_by_itself_though_others_take_longer_too(seed: int) -> None:
    added: list[Trouble] = [SlowPython(48), Operator("custom::fold", 12), Operator("custom::scan", 12, "forward")]
    found = block(seed, [], added)
    assert found is not None
    assert "_score_tokens" in found.cell.name
    assert found.late.mean_us == pytest.approx(48e3, rel=0.1)


@seeds
def test_a_worker_with_a_small_part_of_the_excess_is_not_accused_with_who_has_the_rest(seed: int) -> None:
    found = block(seed, [], [BackwardHook((0, 1, 3), 7.0), BackwardHook((2,), 80.0)])
    assert found is not None
    assert found.late.workers == (2,)
    assert found.late.agreement is not None
