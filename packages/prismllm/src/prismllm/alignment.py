"""Aligns slices that were timed apart by the calls that they share, and returns the residual.

Each timed iteration is a slice of its own: one rank, alone, on a clock that stands in calls. Iterations of one kind
come to the same calls, so one offset for each iteration and one moment for each call put them on one clock, by least
squares. What remains says how well one of them stands for the others; the replay uses their medians.

Source: PrismLLM (arXiv 2605.15617) names an inter-slice timing calibration, of which nothing more is public; least
squares on offsets is this implementation's own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from prismllm.graph import Kind, Layout
from prismllm.model import Residual

Floats = NDArray[np.float64]


def align(kinds: Sequence[Kind], layout: Layout) -> Residual | None:
    """Align all timed iterations.

    Args:
        kinds: Of ranks, with samples of each of their segments.
        layout: Groups as families; calls that a rank makes alone are not shared.

    Returns:
        What is left; None where nothing can be left: no kind has two timed iterations and two shared calls.
    """
    squares = own_s = worst_s = 0.0
    freedom = runs = calls = 0
    worst = (-1, "")
    for kind in kinds:
        of_launches = [(at, kind.step.calls[place]) for at, place in enumerate(kind.step.moments) if place >= 0]
        shared = [at for at, call in of_launches if layout.families[layout.family_of(call.group)].shape[1] > 1]
        count = len(kind.samples_ns)
        if count < 2 or len(shared) < 2:
            continue
        samples_RM = np.array(kind.samples_ns, float) / 1e9
        left_RC = residuals(np.cumsum(samples_RM, axis=1)[:, shared])
        run, call = np.unravel_index(int(np.argmax(np.abs(left_RC))), left_RC.shape)
        if abs(left_RC[run, call]) >= abs(worst_s):
            made = kind.step.calls[kind.step.moments[shared[int(call)]]]
            worst_s, worst = float(left_RC[run, call]), (kind.rank, f"{made.op} at {made.site}")
        squares += float((left_RC**2).sum())
        freedom += (count - 1) * (len(shared) - 1)
        own_s += float(samples_RM.sum())
        runs, calls = runs + count, calls + len(shared)
    if not runs:
        return None
    seconds = float(np.sqrt(squares / freedom))
    return Residual(seconds, seconds * runs / own_s if own_s else 0.0, worst_s, *worst, runs, calls)


def residuals(moments_RC: Floats) -> Floats:
    """Return the residuals of one offset for each run and one moment for each call, by least squares.

    Args:
        moments_RC: When each run comes to each call, on the run's own clock; seconds, float64 [runs, calls].

    Returns:
        Seconds by which the run comes later than all of them do, float64 [runs, calls].
    """
    of_runs, of_calls = moments_RC.mean(axis=1, keepdims=True), moments_RC.mean(axis=0, keepdims=True)
    left: Floats = moments_RC - of_runs - of_calls + moments_RC.mean()
    return left
