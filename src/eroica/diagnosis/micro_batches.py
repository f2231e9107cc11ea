"""Stages of a pipeline that pass on fewer, larger pieces of a batch than when the job was healthy.

Of m micro-batches in p stages, p - 1 of m + p - 1 turns are idle on each stage, so the fewer there are, the longer each
waits for the others, though all of them do the same work as before, and nobody is late.

Array suffixes: W workers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.communication import kind_of
from eroica.diagnosis.frames import whole_rows
from eroica.diagnosis.lateness import LEAST_STRENGTH
from eroica.diagnosis.view import View, noise_factor
from eroica.diagnosis.words import format_ms
from eroica.localize.excess import mean_error
from eroica.localize.fleet import Fleet
from eroica.model.shares import percent

Floats = NDArray[np.float64]
#: So many times fewer messages and operators are another cut, and workers may do so much more themselves.
_FEWER = 1.5
_SAME = 1.1
#: Share of what iterations have grown by that each worker must wait longer for the other stages.
_EXPLAINS = 0.6
_BETWEEN_TWO = frozenset({"send", "recv"})
_NEXT_STEP = (
    "Set the number of micro-batches back to what it was, or to four times as many as there are stages; if larger ones "
    "are wanted for the kernels' sake, enlarge the batch, not the pieces."
)


def find_fewer_micro_batches(view: View) -> list[Candidate]:
    """All stages wait longer for each other since the pieces that they pass on have become fewer."""
    past = view.suspects.baseline
    if past is None or view.is_trace or not view.is_slow or not set(view.fleet.ranks) <= set(past.ranks):
        return []
    rows = _rows_between_stages(view.fleet)
    if not rows or np.unique(view.fleet.roles).size < 2:
        return []
    now_W, then_W = _messages(view.fleet), view.then(_messages)
    fewer_W = then_W / np.maximum(now_W, 1e-9)
    operators = 1 / max(float(np.nanmedian(view.speed_change.count_ratio)), 1e-9)
    if not (now_W > 0).all() or not (fewer_W >= _FEWER).all() or not operators >= _FEWER:
        return []
    waits_W = view.fleet.series(rows).mean(axis=1)
    longer_W = waits_W - view.then(_waits)
    grown_us = view.iteration_us - past.mean_iteration_us
    busier_W = view.fleet.busy_us.mean(axis=1) / np.maximum(np.nanmean(view.busy_before(), axis=1), 1e-9)
    if grown_us <= 0 or (longer_W < _EXPLAINS * grown_us).any() or (busier_W > _SAME).any():
        return []
    error_us = float(mean_error(view.fleet.iteration_us.mean(axis=0)[None])[0]) * noise_factor(view.iterations - 1)
    strength = grown_us / max(error_us, 1e-9)
    if strength < LEAST_STRENGTH * view.strictness:
        return []
    return [_candidate(view, past, rows, float(np.median(fewer_W)), min(strength, 99.0))]


def _rows_between_stages(fleet: Fleet) -> list[int]:
    return [at for at, key in enumerate(fleet.keys) if key.kind == "collective" and kind_of(fleet, at) in _BETWEEN_TWO]


def _messages(fleet: Fleet) -> Floats:
    """Sends and receives in an iteration. float64 [W]."""
    return np.asarray(fleet.count[_rows_between_stages(fleet)].sum(axis=0))


def _waits(fleet: Fleet) -> Floats:
    """Mean time in them that is waited for. float64 [W]."""
    return np.asarray(fleet.series(_rows_between_stages(fleet)).mean(axis=1))


def _candidate(view: View, past: Fleet, rows: list[int], fewer: float, strength: float) -> Candidate:
    heaviest = max(rows, key=lambda at: float(view.fleet.critical_us[at].mean()))
    before_us, now_us = past.mean_iteration_us, view.iteration_us
    lost = 1 - before_us / now_us
    waits_us, then_us = float(view.fleet.series(rows).mean()), float(np.nanmean(view.then(_waits)))
    now, then = float(np.median(_messages(view.fleet))), float(np.nanmedian(view.then(_messages)))
    return Candidate(
        cause="misconfiguration",
        scope="all",
        workers=tuple(range(view.workers)),
        functions=tuple(rows),
        focus=whole_rows(view.fleet.keys[heaviest].name, rows),
        kind="collective",
        removed_us=np.full_like(view.fleet.iteration_us, now_us - before_us),
        mean_us=waits_us,
        reference_us=then_us,
        reference="baseline",
        strength=strength,
        coverage=1.0,
        agreement=None,
        least_gain=view.settings.min_gain,
        evidence=(
            f"Each stage sends and receives {now:.0f} times in an iteration, {then:.0f} times in the healthy window, "
            f"and runs its operators {fewer:.1f} times as seldom; it computes no longer than then.",
            f"Waiting for other stages takes {format_ms(waits_us)} of each iteration, {format_ms(then_us)} then.",
            f"Iterations take {format_ms(now_us)} instead of {format_ms(before_us)}, {percent(now_us / before_us - 1)} "
            "longer.",
        ),
        gain=lost,
        sentence=(
            f"All {view.workers} workers wait for other stages of the pipeline, {format_ms(waits_us)} of each "
            f"{format_ms(now_us)} iteration instead of {format_ms(then_us)}: batches are cut into {fewer:.1f} times "
            "fewer micro-batches than when the job was healthy, so that less of the stages' work overlaps."
        ),
        next_step=_NEXT_STEP,
    )
