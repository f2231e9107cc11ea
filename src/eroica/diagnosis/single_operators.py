"""One operator that takes longer on some workers, while their other operators run at normal speed.

The device or processor is not slower, then: what differs is what this operator is given (shapes, denormal numbers, a
layout that needs another algorithm) or which implementation was chosen.
"""

from __future__ import annotations

from collections import defaultdict

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.frames import NOTHING, Focus
from eroica.diagnosis.lateness import LEAST_RATIO, Lateness, accuse, late_against_peers, measure
from eroica.diagnosis.limits import SAME_COUNT
from eroica.diagnosis.more_data import has_more_data, more_data_evidence
from eroica.diagnosis.speed import operators
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms
from eroica.localize.excess import median_of_others

Floats = NDArray[np.float64]
#: With more workers than cores, an operator takes twice as long by luck; on devices healthy ones differ by little.
_CROWDED_RATIO = 1.5
_DEVICE_RATIO = 0.3
#: From this factor over all operators on, it is not this one that is slow.
_SLOW_ALTOGETHER = 1.3
#: What an equal count leaves open: another cause of the same kind, on the same worker.
_DOUBT = 0.85
_NEXT_STEP = (
    "Compare what this operator gets on these workers and on their peers: shapes, memory layout, data type, denormal "
    "or special numbers, and which algorithm is chosen (autotuning, deterministic mode, library versions)."
)


def find_slow_operators(view: View) -> list[Candidate]:
    """Accuse single operators with excess on workers that the others wait for; those of the same workers together.

    Where most operators of a worker are slower, it is none of them; but those that work on more data are still told.
    """
    by_workers: dict[tuple[int, ...], list[tuple[int, Lateness]]] = defaultdict(list)
    standing_out = _standing_out(view)
    more_W = has_more_data(view) if standing_out else np.zeros(0, np.bool_)
    slow_W = view.speed.factor >= _SLOW_ALTOGETHER
    ratio = _DEVICE_RATIO if view.fleet.has_accelerator else LEAST_RATIO
    for row in standing_out:
        for late in late_against_peers(view, measure(view, [row]), least_ratio=ratio):
            told_W = _runs_longer(view, row) & (more_W | ~slow_W)
            members = tuple(worker for worker in late.workers if told_W[worker])
            if members:
                by_workers[members].append((row, late))
    found = ((list(members), rows, _on_data(view, rows)) for members, rows in by_workers.items())
    return [
        _candidate(view, tuple(members), rows, on_data and bool(more_W[members].all()))
        for members, rows, on_data in found
        if on_data or not slow_W[members].any()
    ]


def _on_data(view: View, found: list[tuple[int, Lateness]]) -> bool:
    """True if operators of forward and of backward stand out: what they have in common is the data."""
    return {"forward", "backward"} <= {view.fleet.keys[row].phase for row, _ in found}


def _standing_out(view: View) -> list[int]:
    """List operators that take some worker longer than its peers by enough: a look at means, before series are read."""
    rows = np.asarray(operators(view.fleet), dtype=np.intp)
    if not rows.size or view.workers < 2:
        return []
    peers_RW = np.nan_to_num(view.suspects.peers_us[rows], nan=np.inf)
    floor_RW = np.maximum(view.settings.min_gain * view.iteration_us, _least_ratio(view) * peers_RW)
    out_R = (view.fleet.critical_us[rows] - peers_RW >= floor_RW).any(axis=1)
    return [int(row) for row in rows[out_R]]


def _least_ratio(view: View) -> Floats:
    """Return the excess relative to the peers' time from which an operator stands out. float64 [W]."""
    if view.fleet.has_accelerator:
        return np.full(view.workers, _DEVICE_RATIO)
    return np.where(view.is_crowded, _CROWDED_RATIO, LEAST_RATIO)


def _runs_longer(view: View, row: int) -> NDArray[np.bool_]:
    """Mark workers on which this operator runs equally often, and longer than on most others. bool [W]."""
    usual_W = np.nan_to_num(view.fleet.usual(view.fleet.count[row]))
    same_W = (usual_W > 0) & (np.abs(view.fleet.count[row] - usual_W) <= SAME_COUNT * usual_W)
    peers_W = median_of_others(view.fleet.critical_us[row], view.fleet.roles)
    over_W = view.fleet.critical_us[row] - peers_W >= _least_ratio(view) * peers_W
    return np.asarray(same_W & over_W, dtype=np.bool_)


def _candidate(view: View, members: tuple[int, ...], found: list[tuple[int, Lateness]], has_more: bool) -> Candidate:
    """Build one candidate for all operators that stand out on the same workers, named by the one with most excess.

    Args:
        view: The window.
        members: The workers.
        found: Rows, and by how much each is late.
        has_more: These workers compute on more data than their peers: their other operators may be too short to show.
    """
    found = sorted(found, key=lambda one: one[1].reference_us - one[1].mean_us)
    rows = tuple(row for row, _ in found)
    removed_WI = np.sum([late.removed_us for _, late in found], axis=0)
    removed_WI[[worker for worker in range(view.workers) if worker not in members]] = 0.0
    mean_us = sum(late.mean_us for _, late in found)
    reference_us = sum(late.reference_us for _, late in found)
    first = found[0][1]
    share = (first.mean_us - first.reference_us) / max(mean_us - reference_us, 1e-9)
    focus: Focus = msgspec.structs.replace(
        NOTHING, name=view.fleet.keys[rows[0]].name, functions=(rows[0],), share=share, is_specific=True
    )
    late = Lateness(
        reference="peers",
        workers=members,
        removed_us=removed_WI,
        mean_us=mean_us,
        reference_us=reference_us,
        strength=max(late.strength for _, late in found),
        agreement=first.agreement,
        is_hidden=first.is_hidden,
    )
    least = view.settings.min_gain
    if has_more:
        evidence = tuple(more_data_evidence(view, np.asarray(members, dtype=np.intp)))
        return accuse(late, "load-imbalance", "compute", focus, rows, least, evidence)
    evidence = tuple(_evidence(view, members, row) for row in rows[:3])
    accused = accuse(late, "compute-slow", "compute", focus, rows, least, evidence)
    return msgspec.structs.replace(accused, doubt=_DOUBT, next_step=_NEXT_STEP, is_one_operator=True)


def _evidence(view: View, members: tuple[int, ...], row: int) -> str:
    """State how often and how long an operator runs on the accused and on the peers."""
    fleet, own = view.fleet, list(members)
    count = float(fleet.count[row, own].mean())
    each = float((fleet.total_us[row, own] / np.maximum(fleet.count[row, own], 1e-9)).mean())
    usual_W = fleet.usual(fleet.total_us[row] / np.maximum(fleet.count[row], 1e-9))
    return (
        f"{fleet.keys[row].name} runs {count:.0f} times per iteration as on the peers, but takes {format_ms(each)} "
        f"each time and there {format_ms(float(np.nanmean(usual_W[own])))}; other operators run at normal speed."
    )
