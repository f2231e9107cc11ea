"""Gradients that are exchanged in every backward pass of a step, though the optimizer uses their sum once.

`DistributedDataParallel` does so unless all but the last pass of a step run under `no_sync()`. A window tells it
without any other to compare with: the reducer's own operators run for as many gradients as are summed up, and all
operators of the backward pass run a multiple of times. The same holds for a recorded trace.
"""

from __future__ import annotations

from functools import reduce
from math import gcd

import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.communication import common_wait
from eroica.diagnosis.frames import whole_rows
from eroica.diagnosis.lateness import LEAST_STRENGTH
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms
from eroica.localize.excess import mean_error

Floats = NDArray[np.float64]
CAUSE = "fragmented-collectives"
#: The reducer's operator for each gradient that goes into an exchange, and autograd's for each that is summed up.
_EXCHANGED = "torch::distributed::reducer::mul_out"
_SUMMED = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
#: Executions per iteration are whole numbers within this, and two counts are the same within this share.
_WHOLE = 0.02
_SAME = 0.05
#: Share of the iteration that the exchanges must take.
_LEAST_SHARE = 0.10
_NEXT_STEP = (
    "Run all but the last backward pass of a step under model.no_sync(): the gradients are then summed up on each "
    "worker and exchanged once."
)


def find_exchange_per_pass(view: View) -> list[Candidate]:
    """Accuse all-reduces of the gradients in each of several backward passes of a step."""
    if view.workers < 2 or any(pattern.found_by == "span" for pattern in view.fleet.patterns):
        return []
    passes, rows = _passes(view), _exchanges(view)
    calls = float(np.median(view.fleet.count[rows].sum(axis=0))) if rows else 0.0
    if passes < 2 or calls < passes or not _exchanges_all(view):
        return []
    now_I = common_wait(view.fleet.series(rows))
    strength = float(now_I.mean()) / max(float(mean_error(now_I)[0]), 1e-9)
    if now_I.mean() < _LEAST_SHARE * view.iteration_us or strength < LEAST_STRENGTH * view.strictness:
        return []
    return [_candidate(view, rows, now_I, passes, calls, min(strength, 99.0))]


def _passes(view: View) -> int:
    """Count the backward passes of an optimizer step; 0 where that cannot be told.

    All operators of backward run a multiple of so many times as there are passes, all of the optimizer a multiple of
    the steps, or of the steps for each gradient.
    """
    passes = _common_factor(view, "backward", "Backward0")
    steps = _common_factor(view, "optimizer", "")
    gradients = _count(view, _SUMMED) / passes if passes else 0.0
    if passes < 1 or steps < 1 or gradients < 1:
        return 0
    steps = round(steps / gradients) if steps >= gradients else steps
    return passes // steps if steps >= 1 and passes % steps == 0 else 0


def _common_factor(view: View, phase: str, ending: str) -> int:
    """Find the largest number of which the counts of all operators of a phase are multiples; 0 without one."""
    fleet = view.fleet
    counts = [
        float(np.median(fleet.count[at]))
        for at, key in enumerate(fleet.keys)
        if key.kind == "compute" and key.phase == phase and key.name.endswith(ending)
    ]
    whole = [round(count) for count in counts if count >= 1 and abs(count - round(count)) <= _WHOLE * count]
    return reduce(gcd, whole, 0) if len(whole) == len(counts) else 0


def _exchanges(view: View) -> list[int]:
    """List rows of all-reduces."""
    return [
        at
        for at, key in enumerate(view.fleet.keys)
        if key.kind == "collective" and key.name.endswith(":all_reduce") and view.fleet.critical_us[at].max() > 0
    ]


def _exchanges_all(view: View) -> bool:
    """True if as many gradients go into exchanges as are summed up."""
    exchanged, summed = (_count(view, name) for name in (_EXCHANGED, _SUMMED))
    return exchanged > 0 and abs(exchanged - summed) <= _SAME * summed


def _count(view: View, name: str) -> float:
    rows = [at for at, key in enumerate(view.fleet.keys) if key.name == name]
    return float(np.median(view.fleet.count[rows].sum(axis=0))) if rows else 0.0


def _candidate(view: View, rows: list[int], now_I: Floats, passes: int, calls: float, strength: float) -> Candidate:
    heaviest = max(rows, key=lambda at: float(view.fleet.critical_us[at].mean()))
    mean_us, saved = float(now_I.mean()), 1 - 1 / passes
    name = view.fleet.keys[heaviest].name
    focus = whole_rows(name, rows)
    return Candidate(
        cause=CAUSE,
        scope="all",
        workers=tuple(range(view.workers)),
        functions=tuple(rows),
        focus=focus,
        kind="collective",
        removed_us=np.repeat(now_I * saved, view.workers, axis=0),
        mean_us=mean_us,
        reference_us=mean_us * (1 - saved),
        reference="expectation",
        strength=strength,
        least_gain=view.settings.min_gain,
        evidence=(
            f"Each step has {passes} backward passes, and as many gradients are exchanged as are summed up: "
            f"{calls:.0f} all-reduces where {calls / passes:.0f} would do.",
            f"Even the worker that arrives last spends {format_ms(mean_us)} of each iteration in them.",
        ),
        sentence=(
            f"All {view.workers} workers exchange their gradients after each of the {passes} backward passes of a "
            f"step, {format_ms(mean_us)} of each {format_ms(view.iteration_us)} iteration; once would be enough."
        ),
        next_step=_NEXT_STEP,
    )
