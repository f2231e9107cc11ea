"""Hosts that keep their devices waiting for launches: what is a finding and what is how eager code runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest

from eroica.model.pattern import LAUNCHING, FunctionKey, FunctionPattern, Neighbor, Phase, WorkerPattern
from eroica.model.verdict import Verdict
from eroica.model.window import WindowPurpose
from eroica.pipeline import analyze
from support import FleetPlan, SlowPython, Trouble, synthesize, synthesize_window
from support.fleet import Draft

seeds = pytest.mark.parametrize("seed", range(3))
EVERYBODY = (0, 1, 2, 3)
NORMS = "gradient_norms (project/metrics.py:12)"


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


LOOP = ("<module> (project/train.py:1)", "main (project/train.py:20)")


def frame(
    like: FunctionPattern, name: str, ms: float, device_ms: float, iterations: int, phase: Phase = "other"
) -> FunctionPattern:
    """A row of Python whose samples all fall while the device works or is launched for."""
    return msgspec.structs.replace(
        like,
        key=FunctionKey(kind="python", name=name.split(" ", maxsplit=1)[0], stack=(*LOOP, name), phase=phase),
        **{"beta": 0.0, "critical_s": 0.0, "total_s": ms * iterations / 1e3, "count": iterations},
        device_s=device_ms * iterations / 1e3,
        per_iteration_us=b"",
    )


def calling(
    patterns: Sequence[WorkerPattern], ms: float, device_ms: float = 0.0, phase: Phase = "other"
) -> list[WorkerPattern]:
    """The patterns, with a function that launches; where a device works for it, it works for another one as well."""
    changed = []
    for pattern in patterns:
        iterations = pattern.last_iteration - pattern.first_iteration
        rows = [frame(pattern.functions[0], NORMS, ms, device_ms, iterations, phase)]
        if device_ms:
            rows.append(frame(pattern.functions[0], "loss (project/loss.py:3)", 12.0, 20.0, iterations))
        changed.append(msgspec.structs.replace(pattern, functions=(*pattern.functions, *rows)))
    return changed


def judged(
    seed: int,
    troubles: Sequence[Trouble],
    before: Sequence[Trouble] = (),
    purpose: WindowPurpose = "slow",
    baseline: bool = True,
    ms_called: float = 0.0,
    ms_on_device: float = 0.0,
) -> Verdict:
    plan = {"seed": seed, "accelerator": True}
    healthy = synthesize(FleetPlan(draw=1, **plan), before, 1)
    patterns = synthesize(FleetPlan(draw=2, **plan), troubles, 2)
    if ms_called:
        patterns = calling(patterns, ms_called, ms_on_device)
        healthy = calling(healthy, 0.0, 1e-3) if ms_on_device else healthy
    return analyze("job", synthesize_window(patterns, purpose, healthy), patterns, healthy if baseline else ())


@seeds
def test_python_that_far_exceeds_what_lies_between_launches_is_one(seed: int) -> None:
    verdict = judged(seed, [*eager(4, 6), SlowPython(30.0)], purpose="manual", baseline=False)
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


def beside(patterns: Sequence[WorkerPattern], *neighbors: Neighbor) -> list[WorkerPattern]:
    """The patterns on a host with these processes beside the job, which then is full."""
    outside = sum(one.cpu_cores for one in neighbors)
    facts = {"cores_outside": outside, "cores_worker": 1.0, "host_busy": 0.99 if outside else 0.5, "cpu_count": 8.0}
    return [
        msgspec.structs.replace(one, neighbors=neighbors, host_facts={**one.host_facts, **facts}) for one in patterns
    ]
