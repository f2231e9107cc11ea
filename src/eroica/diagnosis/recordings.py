"""Recorded traces: what a device that idles tells, and how much a few iterations are worth.

A recording holds one to five iterations, all events and no samples. Gaps of a device show its host; standard errors
over so few iterations say less than they seem to.

Array suffixes: W workers, I iterations, R rows. All times are microseconds per iteration.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.block import Block, Culprit
from eroica.diagnosis.frames import HALF, MOST, NOTHING, OUTSIDE, Focus, focus_on_row, is_own_frame, split_frame
from eroica.diagnosis.outliers import time_above
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms, name_workers, short_name
from eroica.localize.blame import BEYOND_CHANCE
from eroica.localize.excess import SURE, UNKNOWN_NOISE, mean_error
from eroica.model.lost import noise_factor
from eroica.model.shares import percent

Floats = NDArray[np.float64]
_HOST_THREADS, _HOST_KINDS = frozenset({"training", "autograd"}), frozenset({"compute", "other", "python"})
#: A recording should hold at least so many iterations; the reader is told of fewer.
FEW_STEPS = 5
#: Standard errors that a cause must be worth once few iterations are allowed for, and of a single iteration.
_LEAST_BELIEVED, _LEAST_BELIEVED_ONCE = 2.5, 1.5
#: So few iterations that are alike to the last digit say at most so many times what is known without them.
FEWEST_TOLD, _MOST_BEYOND_KNOWN = 4, 1.5
#: Share of the iteration from which waiting is worth a word.
WORTH_A_WORD = 0.1


def find_idle_devices(view: View) -> Iterator[Block]:
    """Yield hosts that leave devices idle for over `expected_host` of the iteration, input and collectives aside."""
    if not view.is_trace or not view.fleet.has_accelerator or view.suspects.arrivals.contradicted:
        return
    busy = view.fleet.critical_us.max(axis=1) > 0
    rows = [
        row
        for row, key in enumerate(view.fleet.keys)
        if busy[row] and key.thread in _HOST_THREADS and key.kind in _HOST_KINDS and key.phase != "input"
    ]
    unheld_WI = np.maximum(view.fleet.iteration_us - view.fleet.series(range(len(view.fleet.keys))), 0.0)
    host_WI = view.fleet.series(rows) + unheld_WI
    mean_W, allowed = host_WI.mean(axis=1), view.settings.expected_host * view.iteration_us
    strength_W = (mean_W - allowed) / np.maximum(mean_error(host_WI), 1e-9)
    late_W = (mean_W - allowed >= view.settings.min_gain * view.iteration_us) & (strength_W >= SURE * view.strictness)
    python = [row for row in rows if view.fleet.keys[row].kind == "python"]
    python_us = float(view.fleet.critical_us[python].sum(axis=0).mean())
    if late_W.mean() < MOST or python_us >= HALF * float(mean_W.mean()):
        return
    members = np.flatnonzero(late_W).tolist()
    focus = _heaviest(view, rows, members)
    yield Block(
        cell="launches",
        rows=tuple(rows),
        focus=focus,
        workers=tuple(members),
        scope="all",
        reference="expectation",
        removed_us=time_above(host_WI, np.full(view.workers, allowed), late_W),
        mean_us=float(host_WI[late_W].mean()),
        reference_us=allowed,
        strength=float(np.median(strength_W[late_W])),
        culprit=_idle_culprit(view, members, focus, float(host_WI[late_W].mean())),
    )


def _heaviest(view: View, rows: list[int], members: list[int]) -> Focus:
    """Return the operator or annotation with most of the gaps; none where these lie outside of all."""
    if not rows:
        return NOTHING
    time_R = view.fleet.critical_us[rows][:, members].mean(axis=1)
    row = rows[int(np.argmax(time_R))]
    if view.fleet.keys[row].name.startswith("ProfilerStep"):  # the annotation around an iteration, which is no function
        return NOTHING
    return focus_on_row(view.fleet.keys, row, float(time_R.max() / max(float(time_R.sum()), 1e-9)))


def _idle_culprit(view: View, members: list[int], focus: Focus, mean_us: float) -> Culprit:
    whose = "The device waits"
    if view.workers > 1:
        whose = f"The devices of {name_workers([view.fleet.ranks[at] for at in members])} wait"
    where = f", most of all in {short_name(focus.name)}" if focus.functions else f", most of all in the {OUTSIDE}"
    inside = _launched_from(view, members)
    place = f", inside {inside}" if inside else ""
    kernels = [row for row, key in enumerate(view.fleet.keys) if key.thread == "device" and key.kind == "compute"]
    count = float(view.fleet.count[kernels].sum(axis=0).mean()) if kernels else 0.0
    share = percent(mean_us / max(view.iteration_us, 1e-9))
    return Culprit(
        kind="late",
        subject=(f"{whose} for the host {format_ms(mean_us)} of each {view.now_text} iteration{where}{place}"),
        evidence=(
            f"The device has no work for {share} of the iteration, at most {percent(view.settings.expected_host)} is "
            f"expected; {count:.0f} kernels run in each.",
            "Profiling itself slows the host: without it the gaps are somewhat shorter.",
        ),
        doubt=0.8,
    )


def _launched_from(view: View, members: list[int]) -> str:
    """Return the user's deepest function in the stack that ran longest; "" where no Python was recorded."""
    total_F = view.fleet.total_us[:, members].mean(axis=1)
    python = [at for at, key in enumerate(view.fleet.keys) if key.kind == "python" and key.thread in _HOST_THREADS]
    if not python:
        return ""
    stack = view.fleet.keys[max(python, key=lambda at: float(total_F[at]))].stack
    return next((split_frame(entry).label for entry in reversed(stack) if is_own_frame(entry)), "")


def believed_strength(view: View, block: Block) -> float:
    """Return a block's standard errors, less what few recorded iterations may pretend.

    By Student's distribution, but not less than what is known without any repetition: functions of healthy workers vary
    by less than `UNKNOWN_NOISE` of their time.
    """
    few = noise_factor(view.iterations - 1)
    if few <= 1 or block.cell == "late":
        return block.strength
    scale = UNKNOWN_NOISE * float(np.hypot(block.mean_us, block.reference_us)) / view.iterations**0.5
    known, by_student = block.excess_us / max(scale, 1e-9), block.strength / few
    is_clear = by_student >= SURE and view.iterations >= FEWEST_TOLD
    most = block.strength if is_clear else _MOST_BEYOND_KNOWN * known
    return float(min(block.strength, max(by_student, known), most))


def is_believed(view: View, block: Block) -> bool:
    """Return True if a recording holds enough iterations to believe a block."""
    least = SURE if block.cell == "late" else _LEAST_BELIEVED
    return (
        not view.is_trace
        or view.strictness < 1
        or believed_strength(view, block) >= (least if view.iterations > 1 else _LEAST_BELIEVED_ONCE)
    )


def recorded_probability(view: View, block: Block) -> float:
    """Return the probability that a recording's cause is real: the gate is fitted on windows of running jobs."""
    strength = believed_strength(view, block)
    heard = max((view.workers / max(view.context.expected_workers, view.workers)) ** 0.5, 0.8)
    alone = 0.75 if view.workers == 1 else 1.0  # it has nobody to be compared with
    effect = strength**2 / (strength**2 + _LEAST_BELIEVED**2)
    return float(min(effect * (0.5 + 0.5 * block.focus.share) * heard * alone, 0.99))


def describe_turns(view: View) -> str:
    """Return a sentence on waiting for a different slowest worker in each iteration; "" if there is little of it.

    Stages of a pipeline wait for each other however even their work is.
    """
    arrivals, is_pipeline = view.suspects.arrivals, view.is_pipeline
    waited_us, most_us = float(arrivals.waited_us.sum()), float(arrivals.blamed_us.sum(axis=1).max(initial=0.0))
    each_us = float(view.wait_us.mean()) if is_pipeline else waited_us / max(view.iterations * (view.workers - 1), 1)
    is_of_one = most_us > (1 / view.workers + BEYOND_CHANCE) * waited_us and not is_pipeline
    if each_us < WORTH_A_WORD * view.iteration_us or is_of_one:
        return ""
    share = f"{percent(each_us / view.iteration_us)} of each iteration ({format_ms(each_us)})"
    if is_pipeline:
        why = "they wait while it fills and drains, and for each other. More microbatches make that less"
        return f" But stages of the pipeline spend {share} in communication: {why}."
    who = "another worker each time: nobody is to blame, and evener work would save most of it"
    if view.iterations == 1:
        who = "and one iteration does not tell whether that is always the same worker"
    return f" But {share} is waiting for whoever is slowest in it, {who}."
