"""Set how far a group of rows must exceed its reference, so that it is no accident of busy hosts.

Healthy workers on shared cores differ by 30 % in what they compute, and a worker on which every operator takes longer
takes longer in everything. What hardly uses a core knows neither: Python that waits for a device, a simulator or a
service takes as long as those do, and a fifth more of it is worth a word.

Array suffixes: W workers, R rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.limits import HELD
from eroica.diagnosis.more_data import has_more_data, has_more_data_since
from eroica.diagnosis.speed import EXPLAINED_BY_QUEUE, held_share, queued_share
from eroica.diagnosis.view import View
from eroica.localize.excess import Excess
from eroica.localize.fleet import Fleet

Floats = NDArray[np.float64]
#: Excess relative to the reference from which what uses no core differs.
_RATIO_WITHOUT_CORE = 0.2
#: Fewer samples are too few to say how much of a core is used.
_FEWEST_SAMPLES = 5


def use_of_core(view: View, functions: Sequence[int], reference: str) -> Floats:
    """Return the share of a core that rows use, 0-1; 1 for all but the training thread's Python, and where unknown.

    Whatever holds a worker up lowers its use, so the use of the reference counts if it is more. Waiting for
    loaders is nobody's pace: it varies with what is left of their lead.

    Args:
        view: The window.
        functions: The rows.
        reference: "peers" or "baseline".

    Returns:
        float64 [W].
    """
    keys = [view.fleet.keys[row] for row in functions]
    if any(key.kind != "python" or key.thread != "training" or key.phase == "input" for key in keys):
        return np.ones(view.workers)
    use_W = _measured(view.fleet, functions)
    usual_W = view.fleet.usual(use_W)
    if reference == "baseline":
        usual_W = view.then(lambda past: _measured(past, view.rows_before(functions)))
    most_W = np.where(held_share(view.fleet) <= HELD, np.fmax(use_W, usual_W), 1.0)
    return np.asarray(np.where(np.isnan(use_W), 1.0, most_W))


def _measured(fleet: Fleet, functions: Sequence[int]) -> Floats:
    """Return the mean use of a core in some functions, 0-1; NaN where too few samples tell. float64 [W]."""
    rows = list(functions)
    samples_RW = fleet.samples[rows]
    time_RW = np.where(samples_RW > 0, fleet.critical_us[rows], 0.0)
    used_W = (np.nan_to_num(fleet.pattern[rows, :, 1]) * time_RW).sum(axis=0)
    share_W = np.clip(used_W / np.maximum(time_RW.sum(axis=0), 1e-9), 0.0, 1.0)
    return np.where(samples_RW.sum(axis=0) >= _FEWEST_SAMPLES, share_W, np.nan)


def excuse(view: View, reference: str, use_W: Floats) -> Floats:
    """Return how much longer a worker may take because everything does; kernels tell nothing of Python. float64 [W].

    A slower processor does not make what uses no core longer; more data does, as whatever is waited for has more of it.

    Args:
        view: The window.
        reference: "peers" or "baseline".
        use_W: Share of a core that is used meanwhile. float64 [W].
    """
    if view.fleet.has_accelerator:
        return np.ones(view.workers)
    factor_W, more_W = view.speed.factor, has_more_data(view)
    if reference == "baseline":
        factor_W, more_W = view.speed_change.factor, has_more_data_since(view)
    shared_W = np.where(more_W, 1.0, use_W)
    return np.asarray(1.0 + (np.maximum(np.nan_to_num(factor_W, nan=1.0), 1.0) - 1.0) * shared_W)


def ratio_to_differ(view: View, excess: Excess, highest: float, use_W: Floats, usual_queue_W: Floats) -> Floats:
    """Return the excess relative to the reference from which workers differ. float64 [W].

    Who waits longer for a core, after each of many short waits for something else, only seems to use none.

    Args:
        view: The window.
        excess: Excess of the workers.
        highest: The ratio for what keeps a core busy.
        use_W: Share of a core that is used. float64 [W].
        usual_queue_W: Share of the time in which threads of the reference were ready but had no core. float64 [W].
    """
    longer_us = np.nan_to_num(queued_share(view.fleet) - usual_queue_W) * view.iteration_us
    by_queue_W = (longer_us > 0) & (longer_us >= EXPLAINED_BY_QUEUE * np.nan_to_num(excess.excess_us))
    lowest = min(_RATIO_WITHOUT_CORE, highest)
    return np.asarray(lowest + (highest - lowest) * np.where(by_queue_W, 1.0, use_W))


def stands_out(view: View, excess: Excess, ratio: float | Floats, least_strength: float) -> NDArray[np.bool_]:
    """Mark workers that surely exceed the reference, by enough of it and of the iteration. bool [W].

    Args:
        view: The window.
        excess: Excess of the workers.
        ratio: Excess relative to the reference from which they differ. float64 [W], or one for all.
        least_strength: Excess in standard errors.
    """
    amount_W = np.nan_to_num(excess.excess_us, nan=-1.0)
    floor_W = np.maximum(view.settings.min_gain * view.iteration_us, ratio * np.nan_to_num(excess.reference_us))
    return np.asarray((amount_W >= floor_W) & (excess.strength >= least_strength * view.strictness), dtype=np.bool_)
