"""Python garbage collection: pauses that wander over the workers, so that everybody waits for somebody each time."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.frames import Focus
from eroica.diagnosis.lateness import time_above
from eroica.diagnosis.view import View
from eroica.localize.excess import mean_error
from eroica.model.shares import percent

Floats = NDArray[np.float64]
#: Healthy collections take about 1 % of each worker, at different moments; four workers lose 4 to 6 % to them.
_LEAST_GAIN = 0.07
#: Collections are traced, not sampled; the question is only whether a few of them are a habit.
_LEAST_STRENGTH = 2.0
#: In a few iterations healthy collections cost more than that by chance: the cost beyond it must be worth so many
#: standard errors over iterations. With one, none of 1,360 healthy fleets of four or eight workers and 2 to 20
#: iterations is alarmed; without, one in a hundred of those with 2.
_LEAST_BEYOND = 1.0
#: One worker with more than this share of all pauses is a worker's own matter.
_MOSTLY_ONE = 0.75
#: In an iteration with a pause, this share of the workers pauses: they collect together.
_TOGETHER = 0.7
_PAUSE_US = 500.0
_MOST_LISTED = 8


def find_collections(view: View) -> list[Candidate]:
    """Accuse garbage collections that cost the job more than a healthy one's do, and more than in its baseline."""
    rows = [at for at, key in enumerate(view.fleet.keys) if key.kind == "gc" and view.fleet.critical_us[at].max() > 0]
    if not rows:
        return []
    time_WI = view.fleet.series(rows)
    before_W = np.nan_to_num(view.before(rows).mean(axis=1))
    excess_W = time_WI.mean(axis=1) - before_W
    late_W = excess_W > 0
    if not late_W.any():
        return []
    scope, workers = _scope(time_WI)
    strength = _strength(time_WI, before_W)
    if strength < _LEAST_STRENGTH or not _is_beyond_healthy(view, time_WI, before_W):
        return []
    return [
        Candidate(
            cause="garbage-collection",
            scope=scope,
            workers=workers,
            functions=tuple(rows),
            focus=_focus(view, rows),
            kind="other",
            removed_us=time_above(time_WI, before_W, late_W),
            mean_us=float(time_WI.mean(axis=1)[list(workers) or slice(None)].mean()),
            reference_us=float(before_W.mean()),
            reference="baseline" if view.suspects.baseline is not None else "expectation",
            strength=strength,
            agreement=_agreement(view, time_WI),
            least_gain=max(_LEAST_GAIN, view.settings.min_gain),
            evidence=_evidence(view, rows, time_WI),
        )
    ]


def _scope(time_WI: Floats) -> tuple[Literal["some", "all", "rotating"], tuple[int, ...]]:
    """Return the scope and the workers of the pauses; no worker is named where the pauses wander."""
    share_W = time_WI.sum(axis=1) / time_WI.sum()
    everybody = tuple(range(share_W.size))
    if share_W.size == 1:
        return "all", everybody
    if share_W.max() >= _MOSTLY_ONE:
        return "some", (int(share_W.argmax()),)
    paused_WI = time_WI > _PAUSE_US
    with_pause = paused_WI.any(axis=0)
    if with_pause.any() and paused_WI[:, with_pause].mean() >= _TOGETHER:
        return "all", everybody
    return "rotating", ()


def _strength(time_WI: Floats, before_W: Floats) -> float:
    """Return the time lost to collections in an iteration, in standard errors over iterations."""
    lost_I = time_WI.sum(axis=0) - before_W.sum()
    if lost_I.size < 2:
        return 0.0
    return float(lost_I.mean() / max(lost_I.std(ddof=1) / np.sqrt(lost_I.size), 1e-9))


def _is_beyond_healthy(view: View, time_WI: Floats, before_W: Floats) -> bool:
    """True if the longest collection of each iteration, which all wait for, surely costs more than in the baseline."""
    lost_I = time_WI.max(axis=0) - before_W.max()
    beyond_us = float(lost_I.mean()) - _LEAST_GAIN * view.iteration_us
    return beyond_us >= _LEAST_BEYOND * view.noise_factor * float(mean_error(lost_I[None])[0])


def _agreement(view: View, time_WI: Floats) -> float | None:
    """Return the share of iterations with a pause in which the paused worker waits no longer than the median one."""
    if view.workers == 1:
        return None
    longest_I = time_WI.argmax(axis=0)
    paused = np.flatnonzero(time_WI.max(axis=0) > max(_PAUSE_US, view.settings.min_gain * view.iteration_us))
    if not paused.size:
        return None
    own = view.fleet.wait_us[longest_I[paused], paused]
    return float((own <= np.median(view.fleet.wait_us[:, paused], axis=0)).mean())


def _focus(view: View, rows: list[int]) -> Focus:
    row = max(rows, key=lambda at: float(view.fleet.critical_us[at].sum()))
    key = view.fleet.keys[row]
    return Focus(
        name=key.name, place="", stack=key.stack, functions=tuple(rows), share=1.0, is_own=False, is_specific=True
    )


def _evidence(view: View, rows: list[int], time_WI: Floats) -> tuple[str, ...]:
    paused_WI = time_WI > _PAUSE_US
    count = float(view.fleet.count[rows].sum() / view.workers)
    longest = max(
        (
            row.max_s
            for function, key in enumerate(view.fleet.keys)
            if key.kind == "gc"
            for _, row in view.fleet.rows_of(function)
        ),
        default=0.0,
    )
    shares = time_WI.sum(axis=1) / time_WI.sum()
    most = np.argsort(-shares, kind="stable")[:_MOST_LISTED]
    spread = ", ".join(f"{view.fleet.ranks[worker]}: {percent(shares[worker])}" for worker in np.sort(most).tolist())
    which = f"on the {_MOST_LISTED} workers with most of it" if view.workers > _MOST_LISTED else "by worker"
    return (
        f"{percent(paused_WI.any(axis=0).mean())} of the iterations have a collection on some worker; the longest took "
        f"{longest * 1e3:.1f} ms, {count:.2f} collections per worker and iteration.",
        f"Share of all collection time {which}: {spread}.",
    )
