"""Host-bound work in recorded traces: the device waits for the host to launch the next kernel.

Array suffixes: W workers, I iterations, F functions.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate, FindingKind
from eroica.diagnosis.frames import NOTHING, OUTSIDE, Focus, is_own_frame, is_whole_step, split_frame
from eroica.diagnosis.lateness import JOB_WIDE, LEAST_STRENGTH, time_above
from eroica.diagnosis.limits import LISTED
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms, name_workers, short_name
from eroica.localize.excess import mean_error
from eroica.model.pattern import BESIDE_INPUT
from eroica.model.shares import percent

Floats = NDArray[np.float64]
_HOST_THREADS = frozenset({"training", "autograd"})
_HOST_KINDS = frozenset({"compute", "other", "python"})
#: Python functions that hold this share of the host's time are named as such by the rule for Python.
_MOSTLY_PYTHON = 0.5
#: Profiling slows the host too, by an unknown share.
_DOUBT = 0.8


def find_host_bound(view: View) -> list[Candidate]:
    """Accuse hosts that leave devices idle for over `expected_host` of the iteration, input and collectives aside.

    Not judged where executions of collectives contradict each other: then events are missing, and gaps say nothing.
    """
    if not view.is_trace or not view.fleet.has_accelerator or view.suspects.arrivals.contradicted:
        return []
    rows = host_rows(view)
    host_WI = view.fleet.series(rows) + unattributed(view)
    mean_W = host_WI.mean(axis=1)
    allowed = view.settings.expected_host * view.iteration_us
    strength_W = (mean_W - allowed) / np.maximum(mean_error(host_WI), 1e-9)
    strong_W = strength_W >= LEAST_STRENGTH * view.strictness
    late_W = (mean_W - allowed >= view.settings.min_gain * view.iteration_us) & strong_W
    if late_W.mean() < JOB_WIDE or _is_python(view, rows, mean_W):
        return []
    return [_candidate(view, rows, host_WI, late_W, float(np.median(strength_W[late_W])))]


def host_rows(view: View) -> list[int]:
    """List rows of the host's threads that held a moment in which no device had work, input aside."""
    busy = view.fleet.critical_us.max(axis=1) > 0
    return [
        row
        for row, key in enumerate(view.fleet.keys)
        if busy[row] and key.thread in _HOST_THREADS and key.kind in _HOST_KINDS and key.phase != "input"
    ]


def unattributed(view: View) -> Floats:
    """Return the time of each iteration that no row holds, neither the device's nor the host's. float64 [W, I]."""
    held_WI = view.fleet.series(range(len(view.fleet.keys)))
    return np.asarray(np.maximum(view.fleet.iteration_us - held_WI, 0.0))


def _is_python(view: View, rows: list[int], mean_W: Floats) -> bool:
    python = [row for row in rows if view.fleet.keys[row].kind == "python"]
    return float(view.fleet.critical_us[python].sum(axis=0).mean()) >= _MOSTLY_PYTHON * float(mean_W.mean())


def _candidate(view: View, rows: list[int], host_WI: Floats, late_W: NDArray[np.bool_], strength: float) -> Candidate:
    workers = tuple(int(worker) for worker in np.flatnonzero(late_W))
    time_R = view.fleet.critical_us[rows][:, late_W].mean(axis=1) if rows else np.zeros(0)
    focus, kind = _focus(view, rows, time_R)
    where = _own_function(view, workers)
    if where and not focus.stack:
        focus = msgspec.structs.replace(focus, place=where)
    mean_us = float(host_WI[late_W].mean())
    allowed = view.settings.expected_host * view.iteration_us
    return Candidate(
        cause="host-bound",
        scope="all",
        workers=workers,
        functions=tuple(rows),
        focus=focus,
        kind=kind,
        removed_us=time_above(host_WI, np.full(view.workers, allowed), late_W),
        mean_us=mean_us,
        reference_us=allowed,
        reference="expectation",
        strength=strength,
        coverage=min(float(time_R.sum()) / max(mean_us, 1e-9), 1.0),
        least_gain=view.settings.min_gain,
        evidence=tuple(_evidence(view, rows, time_R, mean_us)),
        sentence=_sentence(view, workers, focus, mean_us, where),
        doubt=_DOUBT,
    )


def _focus(view: View, rows: list[int], time_R: Floats) -> tuple[Focus, FindingKind]:
    """Find the function, annotation or operator with most of the gaps; none where these lie outside of all."""
    if not rows or is_whole_step(view.fleet.keys[rows[int(np.argmax(time_R))]].name):
        return NOTHING, "other"
    row = rows[int(np.argmax(time_R))]
    key = view.fleet.keys[row]
    focus = Focus(
        name=key.name,
        place=split_frame(key.stack[-1]).place if key.stack else "",
        stack=key.stack,
        functions=(row,),
        share=float(time_R.max() / max(float(time_R.sum()), 1e-9)),
    )
    return focus, "python" if key.kind == "python" else "compute" if key.kind == "compute" else "other"


def _own_function(view: View, workers: tuple[int, ...]) -> str:
    """Find the user's deepest function in the stack that ran longest, "" where no Python was recorded.

    It is where the host launches from, and not what is to be removed.
    """
    total_F = view.fleet.total_us[:, list(workers)].mean(axis=1)
    python = [at for at, key in enumerate(view.fleet.keys) if key.kind == "python" and key.thread in _HOST_THREADS]
    if not python:
        return ""
    stack = view.fleet.keys[max(python, key=lambda at: float(total_F[at]))].stack
    return next((split_frame(entry).label for entry in reversed(stack) if is_own_frame(entry)), "")


def _sentence(view: View, workers: tuple[int, ...], focus: Focus, mean_us: float, inside: str) -> str:
    whose = "The device waits"
    if view.workers > 1:
        whose = f"The devices of {name_workers([view.fleet.ranks[worker] for worker in workers])} wait"
    where = f", most of all in {short_name(focus.name)}" if focus.functions else f", most of all in the {OUTSIDE}"
    place = f", inside {inside}" if inside else ""
    return f"{whose} for the host {format_ms(mean_us)} of each {format_ms(view.iteration_us)} iteration{where}{place}."


def _name(name: str) -> str:
    return "code outside any recorded operator" if is_whole_step(name) else short_name(name)


def _evidence(view: View, rows: list[int], time_R: Floats, mean_us: float) -> list[str]:
    top = [int(at) for at in np.argsort(-time_R, kind="stable")[:LISTED]]
    named = ", ".join(f"{_name(view.fleet.keys[rows[at]].name)} {format_ms(float(time_R[at]))}" for at in top)
    kernels = [row for row, key in enumerate(view.fleet.keys) if key.thread == "device" and key.kind == "compute"]
    count = float(view.fleet.count[kernels].sum(axis=0).mean()) if kernels else 0.0
    share = f"{percent(mean_us / max(view.iteration_us, 1e-9))}"
    allowed = f"at most {percent(view.settings.expected_host)} is expected"
    sentences = [f"The device has no work for {share} of the iteration, {allowed}; {count:.0f} kernels run in each."]
    phases = {phase: time_R[[view.fleet.keys[row].phase == phase for row in rows]].sum() for phase in BESIDE_INPUT}
    parts = ", ".join(f"{phase} {format_ms(float(time))}" for phase, time in phases.items() if time > 0)
    if parts:
        sentences.append(f"By part of the iteration: {parts}.")
    if named:
        sentences.append(f"Most of that time the host is in: {named} per iteration.")
    sentences.append("Profiling itself slows the host: without it the gaps are somewhat shorter.")
    return sentences
