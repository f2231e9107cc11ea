"""Culprits that change from iteration to iteration: pauses, hold-ups and uneven loads that wander over the workers.

No worker is slower on average, yet everybody waits for somebody each time. Nobody is blamed; what is lost in an
iteration is what the last one has beyond the usual. Python's garbage collector has a rule of its own.

Array suffixes: W workers, I iterations, R rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate, FindingKind
from eroica.diagnosis.frames import NOTHING, Focus, find_focus
from eroica.diagnosis.lateness import JOB_WIDE, LEAST_STRENGTH, measure, time_above
from eroica.diagnosis.lateness_by_iteration import Turns, take_turns
from eroica.diagnosis.more_data import is_data
from eroica.diagnosis.reading import describe, doing, python_cause
from eroica.diagnosis.speed import EXPLAINED_BY_QUEUE, held_share, operators, queued_share
from eroica.diagnosis.under_operators import Past, find_called_focus, inside_us, newest_around, past_of, rows_under
from eroica.diagnosis.uneven_loads import find_uneven_loads
from eroica.diagnosis.view import View
from eroica.diagnosis.wandering import GROWN, OFTEN, Loss, heaviest, rotating_candidate, strength_of
from eroica.diagnosis.words import format_ms, short_name
from eroica.model.shares import percent
from eroica.model.window import ALONE, SLOWER

Floats = NDArray[np.float64]
#: Fewer iterations do not show that the culprit changes, unless there are many workers to draw from, and devices: on
#: processors the last of many is late for no reason.
_FEWEST_ITERATIONS = 10
_FEWEST_DRAWS = 3
_MANY_WORKERS = 64
#: Workers and iterations of a healthy job differ; the last of four to 64 leads by up to 19 % of the usual time on busy
#: cores, and by 2 % on devices.
_LEAD_CPU = 0.25
_LEAD_DEVICE = 0.08
#: Share of the lateness that a function must hold to be named.
_MOST = 0.5
#: Who holds this share of a function's time runs it alone.
_ALONE = 0.9
_HELD = 0.03
#: A run-queue wait that cannot be compared with an earlier one says little.
_UNCOMPARED = 0.7
#: Operators under a function took each worker at most this share of the time when all was well.
_HARDLY_THEN = 1 / 3
_MOST_NAMED = 4


def find_rotating(view: View) -> list[Candidate]:
    """Find what holds up one worker after another: a named function, uneven loads, or the processors."""
    if view.is_trace or view.workers < 2:
        return []
    uneven = list(find_uneven_loads(view))
    many = view.workers >= _MANY_WORKERS and view.fleet.has_accelerator
    if uneven or view.iterations < (_FEWEST_DRAWS if many else _FEWEST_ITERATIONS):
        return uneven
    turns = take_turns(view.fleet)
    at = turns.iterations_with(_least_lead(view))
    if at.size < OFTEN * view.iterations or not turns.wanders(at):
        return []
    is_new, purpose = _is_new(view, turns), view.context.window.purpose
    named = _named(view, turns, at) if is_new else None
    if named is not None or (purpose in SLOWER and not is_new):
        return named or []
    held = _held_up(view, turns, at)
    if is_new and purpose not in ALONE:
        return [_called(view, turns, held) or held]
    allowed = max(held.least_gain, view.settings.expected_collective)  # of what nobody knows to have changed
    limited = msgspec.structs.replace(held, least_gain=allowed)
    return [limited] if is_new or held.cause == "load-imbalance" else []


def _least_lead(view: View) -> float:
    return _LEAD_DEVICE if view.fleet.has_accelerator and not _share_devices(view) else _LEAD_CPU


def _share_devices(view: View) -> bool:
    """True if most workers take turns on their devices with others of the job."""
    return bool(view.shares_device.mean() >= JOB_WIDE)


def _is_new(view: View, turns: Turns) -> bool:
    """True if turns have grown since the baseline window; without one, if no host or device is crowded."""
    past = view.suspects.baseline
    if past is None or past.iteration_us.shape[1] < 2:
        return not (_share_devices(view) if view.fleet.has_accelerator else view.is_crowded.any())
    before = take_turns(past)
    lead, usual = float(turns.lead_us.mean()), float(before.lead_us.mean())
    return lead >= GROWN * usual and lead - usual >= _least_lead(view) / 2 * turns.usual_us


# --- a function that wanders ---


def _named(view: View, turns: Turns, at: NDArray[np.intp]) -> list[Candidate] | None:
    """Accuse the Python function that holds most of the lateness of the last worker.

    Returns:
        None where there is no such function; empty where it is one worker's alone, whatever turns the others take.
    """
    keys = view.fleet.keys
    rows = [row for row, key in enumerate(keys) if key.kind == "python" and view.fleet.critical_us[row].max() > 0]
    own_RI, usual_R = _on_last(view, turns, rows, at)
    excess_R = np.maximum(own_RI.mean(axis=1) - usual_R, 0.0) if rows else np.zeros(0)
    focus = find_focus(keys, rows, excess_R, own_RI.mean(axis=1)) if rows else None
    if focus is None or not focus.is_specific:
        return None
    inside = [rows.index(row) for row in focus.functions]
    excess_I = own_RI[inside].sum(axis=0) - usual_R[inside].sum()
    share = float(excess_I.mean() / max(float(turns.late_us[at].mean()), 1e-9))
    if share < _MOST or strength_of(excess_I) < LEAST_STRENGTH:
        return None
    if _is_of_one(view, focus.functions):
        return []
    spent = measure(view, focus.functions)
    removed = time_above(spent.steady_us, np.median(spent.time_us, axis=1), np.ones(view.workers, np.bool_))
    lost = float(excess_I.sum()) / view.iterations
    done = doing(view, focus.functions, range(view.workers))
    cause = python_cause(done, is_input=keys[focus.functions[0]].phase == "input")
    named = msgspec.structs.replace(focus, share=min(share, 1.0))
    sentence = (
        f"One worker after another spends time in {focus.label}, another one each time: {format_ms(lost)} of each "
        f"{format_ms(view.iteration_us)} iteration, and all others wait."
    )
    evidence = (
        *_turn_evidence(view, turns, at),
        f"Whoever is last spends {format_ms(float(own_RI[inside].sum(axis=0).mean()))} in {focus.label}, "
        f"{percent(min(share, 1.0))} of what makes it late; the usual is {format_ms(float(usual_R[inside].sum()))}.",
        *describe(done),
    )
    loss = Loss(removed_us=removed, mean_us=lost, strength=strength_of(excess_I))
    return [rotating_candidate(view, (cause, "python"), named, loss, sentence, evidence)]


def _is_of_one(view: View, functions: Sequence[int]) -> bool:
    """True if one worker alone runs these functions: others are late in turns because they wait for it."""
    time_W = view.fleet.critical_us[list(functions)].sum(axis=0)
    return bool(time_W.max() >= _ALONE * time_W.sum())


def _on_last(view: View, turns: Turns, rows: list[int], at: NDArray[np.intp]) -> tuple[Floats, Floats]:
    """Return the time of rows on the last worker of some iterations, and their mean on others. float64 [R, I], [R]."""
    own, usual = np.zeros((len(rows), at.size)), np.zeros(len(rows))
    for place, row in enumerate(rows):
        series_WI = view.fleet.series([row])
        own[place] = series_WI[turns.last[at], at]
        others = series_WI[:, at].sum() - own[place].sum()
        usual[place] = others / max((view.workers - 1) * at.size, 1)
    return own, usual


# --- processors that are held up in turns ---


def _held_up(view: View, turns: Turns, at: NDArray[np.intp]) -> Candidate:
    rows = operators(view.fleet)
    own_RI, usual_R = _on_last(view, turns, rows, at)
    late_us = max(float(turns.late_us[at].mean()), 1e-9)
    coverage = float(np.clip((own_RI.sum(axis=0).mean() - usual_R.sum()) / late_us, 0.0, 1.0)) if rows else 0.0
    alone_us = turns.above_us - np.maximum(turns.above_us.min(axis=0), 0.0)  # what everybody has is nobody's turn
    removed = np.where(alone_us >= _least_lead(view) / 2 * turns.usual_us, np.maximum(alone_us, 0.0), 0.0)
    cause, doubt, why = _why_held(view, removed, coverage)
    waits_more = cause == "cpu-contention" and view.suspects.baseline is not None
    if not waits_more and coverage >= _MOST:  # not if it waits for cores more, or is late elsewhere
        cause, doubt, why = _more_data(view, rows, own_RI, usual_R) or (cause, doubt, why)
    focus = heaviest(view, rows, own_RI.mean(axis=1) - usual_R) if cause != "unknown" else NOTHING
    lost = float(turns.late_us[at].sum()) / view.iterations
    words = {
        "cpu-contention": "waits for a core",
        "compute-slow": "computes the same operators more slowly",
        "load-imbalance": "gets more work at the same speed",
        "unknown": "is held up, in no function that is known",
    }
    sentence = (
        f"One worker after another {words[cause]}, another one each time: {format_ms(lost)} of each "
        f"{format_ms(view.iteration_us)} iteration, and all others wait."
    )
    kind: FindingKind = "other" if cause == "unknown" else "compute"
    evidence = (*_turn_evidence(view, turns, at), *why)
    loss = Loss(removed_us=removed, mean_us=lost, strength=strength_of(turns.late_us))
    found = rotating_candidate(view, (cause, kind), focus, loss, sentence, evidence)
    return msgspec.structs.replace(found, coverage=coverage, doubt=doubt, functions=tuple(rows))


def _called(view: View, turns: Turns, held: Candidate) -> Candidate | None:
    """Accuse the function whose operators hardly ran in the baseline window and are most of the lateness in turn.

    It is called now and then, by each worker at another time: the operators that it calls look like more data.
    """
    past = past_of(view) if view.knows_callers and held.kind == "compute" and held.coverage >= _MOST else None
    if past is None:
        return None
    for most_then in (1.0, _HARDLY_THEN):  # beside other changes, only what is new
        focus = find_called_focus(view, range(view.workers), past, most_then)
        found = _by(view, turns, held, newest_around(view, focus, past), past) if focus is not None else None
        if found is not None:
            return found
    return None


def _by(view: View, turns: Turns, held: Candidate, focus: Focus, past: Past) -> Candidate | None:
    """Accuse the function of that lateness; None where it hardly ran, ran before, or is one worker's."""
    now_W, before_W = inside_us(view.fleet, rows_under(view.fleet, focus)), past.under(focus)
    share = float((now_W - before_W).sum()) / max(held.mean_us, 1e-9)
    is_new = bool((before_W <= _HARDLY_THEN * now_W).all()) and now_W.max() < _ALONE * now_W.sum()
    if not is_new or not _MOST <= share <= 1 / _MOST:
        return None
    return msgspec.structs.replace(
        held,
        cause="python-on-critical-path",
        kind="python",
        focus=msgspec.structs.replace(focus, share=min(share, 1.0)),
        functions=focus.functions,
        coverage=min(share, 1.0),
        doubt=1.0,
        sentence=(
            f"One worker after another spends time in {focus.label}, another one each time: {format_ms(held.mean_us)} "
            f"of each {format_ms(view.iteration_us)} iteration, and all others wait."
        ),
        evidence=(
            *_turn_evidence(view, turns, turns.iterations_with(_least_lead(view))),
            f"Operators that {focus.label} calls, {short_name(held.focus.name)} first, take {format_ms(now_W.mean())} "
            f"per iteration and worker; {format_ms(before_W.mean())} in the {view.past_window}.",
        ),
        stands_for=frozenset({"memory-operation-storm", "load-imbalance", "compute-slow"}),
    )


def _more_data(
    view: View, rows: list[int], own_RI: Floats, usual_R: Floats
) -> tuple[str, float, tuple[str, ...]] | None:
    """Return uneven load as cause if the last worker's forward and backward take longer, but its optimizer does not."""
    fixed_R = np.asarray([view.fleet.keys[row].phase == "optimizer" for row in rows], dtype=np.bool_)
    if not fixed_R.any() or fixed_R.all() or float(usual_R[fixed_R].sum()) <= 0:
        return None
    grows, fixed = (float(own_RI[of].sum(axis=0).mean() / max(usual_R[of].sum(), 1e-9)) for of in (~fixed_R, fixed_R))
    if grows < 1 + _least_lead(view) or not is_data(grows, fixed):
        return None
    text = (
        f"Operators of forward and backward then take {grows:.2f} times as long as usual, those of the optimizer "
        f"{fixed:.2f} times: the processor is as fast, the tensors are larger."
    )
    return "load-imbalance", 1.0, (text,)


def _why_held(view: View, removed_WI: Floats, coverage: float) -> tuple[str, float, tuple[str, ...]]:
    """Choose cause, doubt and evidence: hosts' facts are means of the window, so they are compared with the loss."""
    if coverage < _MOST and view.fleet.has_accelerator:
        return "unknown", 1.0, ()
    lost = float(removed_WI.sum() / max(float(view.fleet.busy_us.sum()), 1e-9))
    held = float(held_share(view.fleet).mean())
    if view.fleet.has_accelerator or held > _HELD:
        text = (f"Processes were stopped or held back by a quota {percent(held)} of the time.",) if held > _HELD else ()
        return "compute-slow", 1.0, text
    queue = _mean_known(queued_share(view.fleet))
    past = view.suspects.baseline
    before = _mean_known(queued_share(past)) if past is not None else 0.0
    if queue - before < EXPLAINED_BY_QUEUE * lost:
        return "compute-slow" if coverage >= _MOST else "unknown", 1.0, ()
    then = f", {percent(before)} in the baseline window" if past is not None else ""
    text = (f"Training threads are ready but without a core {percent(queue)} of the time{then}.",)
    return "cpu-contention", 1.0 if past is not None else _UNCOMPARED, text


def _mean_known(fact_W: Floats) -> float:
    known = fact_W[~np.isnan(fact_W)]
    return float(known.mean()) if known.size else 0.0


def _turn_evidence(view: View, turns: Turns, at: NDArray[np.intp]) -> tuple[str, ...]:
    counts = np.bincount(turns.last[at], minlength=view.workers)
    order = [int(worker) for worker in np.argsort(-counts, kind="stable") if counts[worker]]
    listed = ", ".join(f"worker {view.fleet.ranks[worker]} in {counts[worker]}" for worker in order[:_MOST_NAMED])
    more = f" and {len(order) - _MOST_NAMED} others in the rest" if len(order) > _MOST_NAMED else ""
    return (
        f"In {at.size} of {view.iterations} iterations one worker takes at least {percent(_least_lead(view))} longer "
        f"than it usually does, and others do not: {listed}{more}.",
        f"It is then {format_ms(float(turns.late_us[at].mean()))} behind the median worker.",
    )
