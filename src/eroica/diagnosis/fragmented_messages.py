"""Messages that some workers have begun to send in many small pieces: their partners, and all behind those, wait.

Array suffixes: W workers, I iterations.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.communication import called_from, kind_of
from eroica.diagnosis.fragmented import CUT_UP, LEAST_CALLS, SHORTER
from eroica.diagnosis.frames import whole_rows
from eroica.diagnosis.lateness import LEAST_STRENGTH
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms, name_workers
from eroica.localize.excess import mean_error
from eroica.localize.fleet import Fleet

Floats = NDArray[np.float64]
#: More than this share of the workers is everybody: another rule's matter (`fragmented`).
_FEW = 0.5
#: Share of what iterations have grown by that these workers must spend longer in sends.
_EXPLAINS = 0.5


def find_cut_up(view: View) -> list[Candidate]:
    """Accuse workers that send many times as many, shorter messages as in the baseline window, while others do not."""
    past = view.suspects.baseline
    if past is None or view.is_trace or not view.is_slow or not set(view.fleet.ranks) <= set(past.ranks):
        return []
    work_W = np.maximum(np.nan_to_num(view.speed_change.count_ratio, nan=1.0), 1.0)  # more batches, more messages
    calls_W, then_W = _calls(view.fleet), view.then(_calls) * work_W
    each_W, each_then_W = (_time_us(view.fleet) / np.maximum(calls_W, 1e-9), view.then(_each_us))
    more_W = (calls_W >= np.maximum(LEAST_CALLS, CUT_UP * then_W)) & (then_W > 0) & (each_W <= SHORTER * each_then_W)
    members = np.flatnonzero(more_W)
    if not members.size or members.size > _FEW * view.workers:
        return []
    rows = _sends(view.fleet)
    longer_WI = view.fleet.series(rows) - view.then(_waited_us)[:, None]
    longer_I = longer_WI[members].max(axis=0)
    grown_us = view.iteration_us - past.mean_iteration_us
    strength = float(longer_I.mean()) / max(float(mean_error(longer_I[None])[0]), 1e-9)
    if grown_us <= 0 or longer_I.mean() < _EXPLAINS * grown_us or strength < LEAST_STRENGTH * view.strictness:
        return []
    return [_candidate(view, members, longer_WI, min(strength, 99.0))]


def _sends(fleet: Fleet) -> list[int]:
    return [at for at, key in enumerate(fleet.keys) if key.kind == "collective" and kind_of(fleet, at) == "send"]


def _calls(fleet: Fleet) -> Floats:
    """Count sends in an iteration. float64 [W]."""
    return np.asarray(fleet.count[_sends(fleet)].sum(axis=0))


def _time_us(fleet: Fleet) -> Floats:
    """Return the time in sends, microseconds. float64 [W]."""
    return np.asarray(fleet.total_us[_sends(fleet)].sum(axis=0))


def _each_us(fleet: Fleet) -> Floats:
    """Return the time of one send, microseconds. float64 [W]."""
    return _time_us(fleet) / np.maximum(_calls(fleet), 1e-9)


def _waited_us(fleet: Fleet) -> Floats:
    """Return the mean time in sends that is waited for, microseconds. float64 [W]."""
    return np.asarray(fleet.series(_sends(fleet)).mean(axis=1))


def _candidate(view: View, members: NDArray[np.intp], longer_WI: Floats, strength: float) -> Candidate:
    fleet, rows = view.fleet, _sends(view.fleet)
    heaviest = max(rows, key=lambda at: float(fleet.critical_us[at, members].mean()))
    name = fleet.keys[heaviest].name
    removed_WI = np.zeros_like(longer_WI)
    removed_WI[members] = np.maximum(longer_WI[members], 0.0)
    calls, then = float(_calls(fleet)[members].mean()), float(np.nanmean(view.then(_calls)[members]))
    mean_us, longer_us = float(_waited_us(fleet)[members].mean()), float(removed_WI[members].mean())
    ending = "s" if members.size == 1 else ""
    who = name_workers([fleet.ranks[worker] for worker in members], capital=True)
    others = np.setdiff1d(np.arange(view.workers), members)
    return Candidate(
        cause="fragmented-collectives",
        scope="some",
        workers=tuple(int(worker) for worker in members),
        functions=tuple(rows),
        focus=whole_rows(name, rows),
        kind="collective",
        removed_us=removed_WI,
        mean_us=mean_us,
        reference_us=mean_us - longer_us,
        reference="baseline",
        strength=strength,
        least_gain=view.settings.min_gain,
        evidence=(
            f"{name}: {calls:.0f} times per iteration, {then:.0f} times {view.back_then}; on the other workers "
            f"{np.median(_calls(fleet)[others]):.0f} times.",
            *called_from(view, mean_us, members.tolist()),
        ),
        gain=min(float(removed_WI[members].max(axis=0).mean()) / max(view.iteration_us, 1e-9), 1.0),
        sentence=(
            f"{who} send{ending} {calls:.0f} messages in each {format_ms(view.iteration_us)} iteration, not {then:.0f} "
            f"as {view.back_then}, {format_ms(mean_us)} of it: what they cost is the calls, not the data, and "
            "their partners, and all behind those, wait."
        ),
    )
