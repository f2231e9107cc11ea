"""A cause that blames nobody: time lost because another worker is the last one in each iteration.

Array suffixes: W workers, I iterations, R rows.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate, FindingKind
from eroica.diagnosis.frames import NOTHING, Focus, whole_rows
from eroica.diagnosis.view import View
from eroica.localize.excess import mean_error

Floats = NDArray[np.float64]
#: Share of the iterations in which somebody must lead.
OFTEN = 0.35
#: What is lost, or the spread of loads, must have grown by this factor since the baseline window, if there was one.
GROWN = 1.5
_LEAST_GAIN = 0.07


class Loss(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Time lost in each iteration on each worker (float64 [W, I]), its mean over all iterations, and its strength."""

    removed_us: Floats
    mean_us: float
    strength: float


def strength_of(lost_I: Floats) -> float:
    """Return the mean loss of an iteration, in standard errors over iterations. float64 [I]."""
    return float(lost_I.mean()) / max(float(mean_error(lost_I[None])[0]), 1e-9)


def heaviest(view: View, rows: list[int], excess_R: Floats) -> Focus:
    """Name the row with most excess. float64 [R]."""
    if not rows:
        return NOTHING
    row = rows[int(np.argmax(excess_R))]
    name = view.fleet.keys[row].name
    return whole_rows(name, (row,))


def rotating_candidate(
    view: View, what: tuple[str, FindingKind], focus: Focus, loss: Loss, sentence: str, evidence: tuple[str, ...]
) -> Candidate:
    """Build a candidate without workers.

    Args:
        view: The window.
        what: Cause and kind of its function.
        focus: The function to name.
        loss: Time lost, its mean and its strength.
        sentence: The whole sentence of the verdict.
        evidence: More sentences.
    """
    return Candidate(
        cause=what[0],
        scope="rotating",
        workers=(),
        functions=focus.functions,
        focus=focus,
        kind=what[1],
        removed_us=np.minimum(loss.removed_us, view.fleet.busy_us),
        mean_us=loss.mean_us,
        reference_us=0.0,
        reference="peers",
        strength=loss.strength,
        coverage=focus.share,
        least_gain=max(_LEAST_GAIN, view.settings.min_gain),
        evidence=evidence,
        sentence=sentence,
    )
