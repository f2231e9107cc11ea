"""Workers that wait for a core more than their peers, who wait for them, while no function of theirs stands out.

A worker whose training thread keeps losing its core is late by what all of its functions take longer together; each by
itself may stay within the differences between healthy workers. Four measurements must agree. The kernel counts more
time without a core than on the peers and in the baseline window. The worker is busy for longer than its peers, and
waits less for others than they do. The time without a core accounts for most of that excess.

Array suffixes: W workers.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.frames import NOTHING, find_focus
from eroica.diagnosis.lateness import LEAST_AGREEMENT, LEAST_STRENGTH, accuse, lateness_of
from eroica.diagnosis.neighbor_use import LEAST_CORES
from eroica.diagnosis.speed import EXPLAINED_BY_QUEUE, queued_share
from eroica.diagnosis.view import View
from eroica.diagnosis.words import name_workers
from eroica.model.shares import percent

Floats = NDArray[np.float64]
CAUSE = "cpu-contention"
#: Share of the time that a thread must be without a core beyond its peers' and its own in the baseline window.
_LEAST_MORE = 0.1
#: The same where workers take turns on too few cores and there is no baseline window: luck decides which one gets it.
_LEAST_MORE_CROWDED = 0.2


def find_without_core(view: View, explained: set[int]) -> list[Candidate]:
    """Accuse workers that are late for want of a core, and not accused of anything known.

    Args:
        view: The window.
        explained: Workers (indices) that a cause was found for.
    """
    if view.is_trace or view.fleet.has_accelerator:
        return []
    queued_W, before_W = queued_share(view.fleet), view.then(queued_share)
    usual_W = view.fleet.usual(queued_W)
    more_W = np.nan_to_num(queued_W - np.fmax(usual_W, before_W))
    excess = view.fleet.above_usual(view.fleet.busy_us)
    excess_W = np.nan_to_num(excess.excess_us)
    unsure_W = view.is_crowded & np.isnan(before_W)
    late_W = np.asarray(more_W >= np.where(unsure_W, _LEAST_MORE_CROWDED, _LEAST_MORE), dtype=np.bool_)
    late_W &= ~view.is_crowded | view.is_slow  # turns on too few cores are nobody's fault
    late_W &= excess.strength >= LEAST_STRENGTH * view.noise_factor * view.strictness
    late_W &= more_W * view.iteration_us >= EXPLAINED_BY_QUEUE * excess_W
    late_W &= view.deficit_us >= LEAST_AGREEMENT * excess_W
    late_W[list(explained)] = False
    if not late_W.any():
        return []
    members, excess_W = np.flatnonzero(late_W), np.maximum(excess_W, 1e-9)
    late = lateness_of("peers", excess, view.fleet.busy_us, late_W, view.deficit_us / excess_W)
    share = float(np.clip(more_W * view.iteration_us / excess_W, 0, 1)[members].min())
    evidence = (_waiting(view, queued_W, usual_W, before_W, members), *_started(view, members))
    focus = msgspec.structs.replace(NOTHING, share=share)
    return [accuse(late, CAUSE, "other", focus, (), view.settings.min_gain, evidence)]


def _waiting(view: View, queued_W: Floats, usual_W: Floats, before_W: Floats, members: NDArray[np.intp]) -> str:
    before = float(np.nan_to_num(before_W[members], nan=-1.0).mean())
    own = "its" if members.size == 1 else "their"
    then = f" ({percent(before)} in the {view.past_window})" if before >= 0 else ""
    return (
        f"{'Its training thread is' if members.size == 1 else 'Their training threads are'} ready but without a core "
        f"{percent(float(queued_W[members].mean()))} of the time{then}, that of {own} peers "
        f"{percent(float(usual_W[members].mean()))}."
    )


def _started(view: View, members: NDArray[np.intp]) -> list[str]:
    """Name processes that the accused have started and that compute meanwhile."""
    fleet = view.fleet
    rows = [at for at, key in enumerate(fleet.keys) if key.thread == "child"]
    used_RW = fleet.total_us[rows] * np.nan_to_num(fleet.pattern[rows, :, 1]) / max(view.iteration_us, 1e-9)
    used_R = used_RW[:, members].mean(axis=1)
    focus = find_focus(fleet.keys, rows, used_R, used_R) if rows else None
    if focus is None or used_R.sum() < LEAST_CORES:
        return []
    whom = name_workers([fleet.ranks[worker] for worker in members])
    has = "has" if members.size == 1 else "have"
    return [f"Processes that {whom} {has} started use {used_R.sum():.1f} cores meanwhile, most of it in {focus.label}."]
