"""Stages of a pipeline that pass on fewer, larger pieces of a batch than when the job was healthy.

Of m micro-batches in p stages, p - 1 of m + p - 1 turns are idle on each stage. So the fewer micro-batches, the longer
each stage waits for the others, though all of them do the same work as before, and nobody is late.

Array suffixes: W workers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.communication import collectives
from eroica.diagnosis.frames import whole_rows
from eroica.diagnosis.lateness import LEAST_STRENGTH
from eroica.diagnosis.limits import MOST
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms
from eroica.localize.excess import mean_error
from eroica.localize.fleet import Fleet
from eroica.model.lost import noise_factor
from eroica.model.shares import percent

Floats = NDArray[np.float64]
#: So many times fewer messages and operators are another cut, and workers may do so much more themselves.
_FEWER = 1.5
_SAME = 1.1
#: Share of what iterations have grown by that the idle turns of fewer pieces account for.
_BY_FORMULA = 0.5
_BETWEEN_TWO = frozenset({"send", "recv"})
_NEXT_STEP = (
    "Set the number of micro-batches back to what it was, or to four times as many as there are stages; if larger ones "
    "are wanted for the kernels' sake, enlarge the batch, not the pieces."
)


def find_fewer_micro_batches(view: View) -> list[Candidate]:
    """Accuse stages of waiting longer for each other because they pass on fewer pieces of a batch."""
    past = view.suspects.baseline
    if past is None or view.is_trace or not view.is_slow or not set(view.fleet.ranks) <= set(past.ranks):
        return []
    stages = int(np.unique(view.fleet.roles).size)
    grown_us = view.iteration_us - past.mean_iteration_us
    if stages < 2 or grown_us <= 0 or not _pass_on_less(view):
        return []
    now, then = (float(np.min(pieces_W)) for pieces_W in (_received(view.fleet), view.then(_received)))
    idle = (now + stages - 1) / now / ((then + stages - 1) / then)
    longer_W = view.wait_us - view.then(_waits_us)
    busier_W = view.fleet.busy_us.mean(axis=1) / np.maximum(np.nanmean(view.busy_before(), axis=1), 1e-9)
    explained = (idle - 1) * past.mean_iteration_us >= _BY_FORMULA * grown_us
    if not explained or (longer_W < MOST * grown_us).any() or (busier_W > _SAME).any():
        return []
    error_us = float(mean_error(view.fleet.iteration_us.mean(axis=0)[None])[0]) * noise_factor(view.iterations - 1)
    strength = grown_us / max(error_us, 1e-9)
    if strength < LEAST_STRENGTH * view.strictness:
        return []
    return [_candidate(view, past, min(strength, 99.0))]


def _pass_on_less(view: View) -> bool:
    """True if all workers exchange fewer messages than in the baseline window, and run operators as much less often."""
    now_W, then_W, ratios_W = _messages(view.fleet), view.then(_messages), view.speed_change.count_ratio
    if not (now_W > 0).all() or not (_received(view.fleet) > 0).all() or np.isnan(ratios_W).all():
        return False
    return bool((then_W >= _FEWER * now_W).all()) and float(np.nanmedian(ratios_W)) <= 1 / _FEWER


def _messages(fleet: Fleet) -> Floats:
    """Count sends and receives in an iteration, by the records: kernels of both have one name. float64 [W]."""
    return _executions(fleet, _BETWEEN_TWO)


def _received(fleet: Fleet) -> Floats:
    """Count receives in an iteration: at the ends of a pipeline, pieces of a batch. float64 [W]."""
    return _executions(fleet, frozenset({"recv"}))


def _executions(fleet: Fleet, kinds: frozenset[str]) -> Floats:
    return np.asarray(
        [
            sum(record.executions for record in one.collectives if record.kind in kinds)
            / max(one.last_iteration - one.first_iteration, 1)
            for one in fleet.patterns
        ],
        dtype=np.float64,
    )


def _waits_us(fleet: Fleet) -> Floats:
    """Return the mean time in collectives: a final exchange of all takes its share of that. float64 [W]."""
    return np.asarray(fleet.wait_us.mean(axis=1))


def _candidate(view: View, past: Fleet, strength: float) -> Candidate:
    rows = collectives(view)
    heaviest = max(rows, key=lambda at: float(view.fleet.critical_us[at].mean()))
    fewer = float(np.median(view.then(_messages) / _messages(view.fleet)))
    before_us, now_us = past.mean_iteration_us, view.iteration_us
    lost = 1 - before_us / now_us
    waits_us, then_us = float(view.wait_us.mean()), float(np.nanmean(view.then(_waits_us)))
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
        least_gain=view.settings.min_gain,
        evidence=(
            f"Each stage sends and receives {now:.0f} times in an iteration, {then:.0f} times in the "
            f"{view.past_window}, and runs its operators {fewer:.1f} times as seldom; it computes no longer than then.",
            f"Waiting for other stages takes {format_ms(waits_us)} of each iteration, {format_ms(then_us)} then.",
            f"Iterations take {format_ms(now_us)} instead of {format_ms(before_us)}, {percent(now_us / before_us - 1)} "
            "longer.",
        ),
        gain=lost,
        sentence=(
            f"All {view.workers} workers wait for other stages of the pipeline, {format_ms(waits_us)} of each "
            f"{format_ms(now_us)} iteration instead of {format_ms(then_us)}: batches are cut into {fewer:.1f} times "
            f"fewer micro-batches than {view.back_then}, so that less of the stages' work overlaps."
        ),
        next_step=_NEXT_STEP,
    )
