"""Hosts that keep their devices waiting for launches: what is a finding and what is how eager code runs."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import pytest

from eroica.model.pattern import LAUNCHING, FunctionKey, Phase
from eroica.model.window import WindowPurpose
from eroica.pipeline import analyze
from support import FleetPlan, SlowPython, synthesize, synthesize_window
from support.fleet import Draft

seeds = pytest.mark.parametrize("seed", range(3))
EVERYBODY = (0, 1, 2, 3)


@dataclass(frozen=True)
class Launching:
    """The host launches in one part of the iteration for `ms` in which the device has no work."""

    ms: float
    count: float
    phase: Phase = "forward"
    workers: tuple[int, ...] = EVERYBODY

    def apply(self, draft: Draft) -> None:
        key = FunctionKey(kind="other", name=LAUNCHING, phase=self.phase)
        time_WI = np.zeros(draft.shape)
        time_WI[list(self.workers)] = self.ms * 1e3 * np.exp(draft.noise.normal(0, 0.05, draft.shape[1]))
        draft.add(key, time_WI, self.count, 0.9)


@dataclass(frozen=True)
class SlowLoop:
    """Python of the training loop itself, in no part of the iteration."""

    ms: float

    def apply(self, draft: Draft) -> None:
        key = draft.loop_frame("tokenize (project/text.py:5)", phase="other")
        draft.add(key, np.full(draft.shape, self.ms * 1e3), 1.0, 0.9)


def eager(forward: float = 12.0, backward: float = 20.0) -> tuple[Launching, Launching]:
    """How code runs that launches many small kernels."""
    return Launching(forward, 200), Launching(backward, 400, "backward")


@seeds
def test_python_that_far_exceeds_what_lies_between_launches_is_one(seed: int) -> None:
    patterns = synthesize(FleetPlan(draw=2, seed=seed, accelerator=True), [*eager(4, 6), SlowPython(30.0)], 2)
    verdict = analyze("job", synthesize_window(patterns, "manual"), patterns)
    assert verdict.cause is not None and verdict.cause.cause == "python-on-critical-path", verdict.summary
    assert verdict.cause.function.name == "_score_tokens"


@seeds
@pytest.mark.parametrize("purpose", ["baseline", "manual"])
def test_what_recording_itself_may_take_is_no_python_of_the_jobs(seed: int, purpose: WindowPurpose) -> None:
    """18 ms of Python are a cause in iterations as long as outside of the window, and none in those 20 ms longer."""
    patterns = synthesize(FleetPlan(seed=seed, accelerator=True), [*eager(), SlowLoop(18.0)], 2)
    window = synthesize_window(patterns, purpose)
    assert window.current_iteration_s is not None
    for recording_s, is_told in ((0.0, True), (0.02, False)):
        asked = msgspec.structs.replace(window, current_iteration_s=window.current_iteration_s - recording_s)
        verdict = analyze("job", asked, patterns)
        assert (verdict.cause is not None) == is_told, verdict.summary
