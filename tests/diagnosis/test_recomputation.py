"""What backward computes again is told where it accounts for what takes longer."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from eroica.model.pattern import FunctionKey
from eroica.model.verdict import Finding
from eroica.pipeline import analyze
from support import FleetPlan, synthesize, synthesize_window
from support.fleet import Draft

EVERYBODY = (0, 1, 2, 3)
LOOP = ("<module> (project/train.py:1)", "main (project/train.py:40)", "backward (torch/autograd/__init__.py:360)")
AGAIN = ("CheckpointFunction.backward (torch/utils/checkpoint.py:310)", "mix (project/model.py:20)")


class Mixing:
    """One function of backward takes so many milliseconds on some workers, below other frames or not."""

    def __init__(self, workers: tuple[int, ...], ms: float, frames: tuple[str, ...]) -> None:
        self.workers, self.ms, self.frames = list(workers), ms, frames

    def apply(self, draft: Draft) -> None:
        on_WI = np.zeros(draft.shape)
        on_WI[self.workers] = self.ms * 1e3
        stack = (*LOOP, *self.frames)
        draft.add(
            FunctionKey(kind="python", name="mix", stack=stack, phase="backward", thread="training"), on_WI, 4.0, 0.9
        )


def told(workers: tuple[int, ...], then: Sequence[Mixing], now: Sequence[Mixing]) -> tuple[Finding, list[str]]:
    """The cause, and what is said in its evidence of forward that runs again."""
    before = synthesize(FleetPlan(workers=4), then, 1)
    patterns = synthesize(FleetPlan(workers=4, draw=1), now, 2)
    found = analyze("job", synthesize_window(patterns, "slow", before), patterns, before).cause
    assert found is not None and found.workers == workers and found.function.name == "mix"
    return found, [text for text in found.evidence if "runs forward again" in text]


@pytest.mark.parametrize(("workers", "whom"), [(EVERYBODY, "before"), ((1,), "on the peers")])
def test_forward_that_runs_again_is_told_with_what_to_compare(workers: tuple[int, ...], whom: str) -> None:
    found, (text,) = told(workers, (), [Mixing(workers, 60, AGAIN)])
    assert text.endswith(f"; {whom} not at all.") and "60 ms per iteration" in text
    assert "activation checkpointing is switched on" in found.next_step


@pytest.mark.parametrize("ms", [0, 50])
def test_what_is_no_recomputation_or_was_there_before_is_not(ms: float) -> None:
    then = [Mixing(EVERYBODY, ms, AGAIN)]
    assert told(EVERYBODY, then, [*then, Mixing(EVERYBODY, 60, AGAIN[1:])])[1] == []


class Operators:
    """The same operators run for so many milliseconds more in backward, on everybody."""

    def apply(self, draft: Draft) -> None:
        key = FunctionKey(kind="compute", name="aten::mm", phase="backward")
        draft.add(key, np.full(draft.shape, 45e3), 40.0, 0.9)


@pytest.mark.parametrize("again", [True, False])
def test_operators_below_a_frame_that_runs_forward_again_are_its_time(again: bool) -> None:
    """Of Python itself it is a quarter, and forward of many modules: no function of the user's holds it."""
    modules = [(*AGAIN[: 1 if again else 0], f"forward (torch/nn/modules/part{at}.py:20)") for at in range(5)]
    before = synthesize(FleetPlan(workers=4), (), 1)
    patterns = synthesize(
        FleetPlan(workers=4, draw=1), [*(Mixing(EVERYBODY, 3, one) for one in modules), Operators()], 2
    )
    patterns = [
        msgspec.structs.replace(
            one,
            functions=[
                msgspec.structs.replace(row, total_s=4 * row.total_s) if row.key.name == "mix" else row
                for row in one.functions
            ],
        )
        for one in patterns
    ]
    found = analyze("job", synthesize_window(patterns, "slow", before), patterns, before).cause
    assert found is not None and found.workers == EVERYBODY
    assert (found.function.name == "CheckpointFunction.backward") == again, found.function
    assert not again or found.gain == pytest.approx(0.4, abs=0.12)


class Slower:
    """Whatever runs takes half as long again."""

    def apply(self, draft: Draft) -> None:
        for key in draft.time_us:
            if key.kind in ("python", "compute"):
                draft.time_us[key] = 1.5 * draft.time_us[key]


@pytest.mark.parametrize("seed", range(3))
def test_forward_that_has_always_run_again_is_not_why_everything_is_slower(seed: int) -> None:
    modules = [Mixing(EVERYBODY, 8, (AGAIN[0], f"forward (torch/nn/modules/part{at}.py:20)")) for at in range(5)]
    before = synthesize(FleetPlan(workers=4, seed=seed), [*modules, Operators()], 1)
    patterns = synthesize(FleetPlan(workers=4, seed=seed, draw=1), [*modules, Operators(), Slower()], 2)
    verdict = analyze("job", synthesize_window(patterns, "slow", before), patterns, before)
    assert all(not one.function.name.startswith("CheckpointFunction") for one in verdict.findings), verdict.summary
