"""A thread beside the training thread that computes in Python: the two share one interpreter lock.

The training thread then takes longer for everything it does, whatever that is, and uses little of a core meanwhile
though it is not waiting for one. Rules that look at single functions see a bit of it in each.

Array suffixes: W workers, I iterations, R rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.frames import Focus
from eroica.diagnosis.lateness import Lateness, accuse, late_against_baseline, late_against_peers, measure
from eroica.diagnosis.loading import frame_in_threads
from eroica.diagnosis.speed import host_fact
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms, name_workers
from eroica.model.shares import percent
from eroica.model.verdict import ResourceUse

Floats = NDArray[np.float64]
CAUSE = "python-on-critical-path"
_KINDS = frozenset({"python", "compute", "memory", "other"})
_PHASES = frozenset({"input", "forward", "backward", "optimizer", "other"})
#: A thread that keeps so much of a core busy leaves the lock only when it is made to, every few milliseconds.
_BUSY = 0.4
#: The training thread runs for at most this share of its own time (what waits for a core taken off), where it would
#: compute for more.
_STARVED = 0.5
#: Being starved of the lock is evidence of its own: standard errors of the time lost need be fewer, and count for more.
_LEAST_STRENGTH = 1.5
_CORROBORATION = 4.0
#: What rules for single functions make of it.
_SLOWER_TOO = frozenset({"compute-slow", "python-on-critical-path", "slow-data-loading"})
_NEXT_STEP = (
    "Let another process do what this thread does (multiprocessing, with its result through a queue), let it work in "
    "native code that gives the lock back, or do it less often."
)


def find_lock_contention(view: View) -> list[Candidate]:
    """Workers, or all, whose training thread takes longer for everything while another thread computes in Python."""
    busy_W = _busy_beside(view)
    if not (busy_W >= _BUSY).any():
        return []
    rows = view.rows(kinds=_KINDS, phases=_PHASES)
    starved_W = (busy_W >= _BUSY) & (_running(view, rows) <= _STARVED)
    if not starved_W.any():
        return []
    spent = measure(view, rows)
    found = [
        *late_against_peers(view, spent, _LEAST_STRENGTH, excused=False),
        *late_against_baseline(view, spent, _LEAST_STRENGTH, excused=False),
    ]
    return [
        candidate
        for late in found
        if starved_W[list(late.workers)].all() and (candidate := _candidate(view, rows, late, busy_W)) is not None
    ]


def _busy_beside(view: View) -> Floats:
    """Cores that the busiest Python frame of another thread uses. float64 [W]."""
    fleet = view.fleet
    rows = [at for at, key in enumerate(fleet.keys) if key.thread == "background" and key.kind == "python"]
    if not rows:
        return np.zeros(view.workers)
    share_RW = fleet.total_us[rows] / np.maximum(fleet.iteration_us.mean(axis=1), 1e-9)
    return np.asarray((share_RW * np.nan_to_num(fleet.pattern[rows, :, 1])).max(axis=0))


def _running(view: View, rows: Sequence[int]) -> Floats:
    """Share of its own time, less the wait for a core, in which a training thread runs. float64 [W]."""
    time_RW = view.fleet.critical_us[list(rows)]
    used_W = (time_RW * np.nan_to_num(view.fleet.pattern[list(rows), :, 1])).sum(axis=0)
    queued_W = np.nan_to_num(host_fact(view.fleet, "run_queue_wait")) * view.fleet.iteration_us.mean(axis=1)
    return np.asarray(used_W / np.maximum(time_RW.sum(axis=0) - queued_W, 1e-9 + used_W))


def _candidate(view: View, rows: list[int], late: Lateness, busy_W: Floats) -> Candidate | None:
    inside = frame_in_threads(view, late.workers, late.reference)
    if inside is None:
        return None
    members = list(late.workers)
    running_W = _running(view, rows)
    running, busy = float(running_W[members].mean()), percent(float(busy_W[members].mean()))
    evidence = (
        f"Another thread computes in {inside.label} and uses {busy} of a core; it and the training thread share one "
        "interpreter lock.",
        f"The training thread runs for {percent(running)} of its own time, waits for a core taken off.",
    )
    whole = msgspec.structs.replace(inside, share=1.0)
    found = accuse(late, CAUSE, "python", whole, rows, view.settings.min_gain, evidence)
    return msgspec.structs.replace(
        found,
        sentence=_sentence(view, late, inside),
        next_step=_NEXT_STEP,
        corroboration=_CORROBORATION,
        stands_for=_SLOWER_TOO,
        resource=ResourceUse(name="interpreter lock", mean=round(running, 4)),
    )


def _sentence(view: View, late: Lateness, inside: Focus) -> str:
    whose = name_workers([view.fleet.ranks[worker] for worker in late.workers])
    each = "each of " if len(late.workers) > 1 else ""
    now, usual, iteration = map(format_ms, (late.mean_us, late.reference_us, view.iteration_us))
    compared = f"took {usual} before" if late.reference == "baseline" else f"takes {usual} elsewhere"
    return (
        f"Another thread of {each}{whose} computes in {inside.label} and holds Python's interpreter lock: what "
        f"{compared} takes the training thread {now} of each {iteration} iteration."
    )
