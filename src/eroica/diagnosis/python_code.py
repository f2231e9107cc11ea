"""Python on the critical path, outside the loader: judged phase by phase, then by the frame that holds the excess."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.activities import activity_of
from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.frames import Focus, find_focus
from eroica.diagnosis.lateness import (
    JOB_WIDE,
    LEAST_STRENGTH,
    Lateness,
    accuse,
    judge_group,
    late_against_baseline,
    late_against_peers,
    measure,
    time_above,
)
from eroica.diagnosis.limits import MOST
from eroica.diagnosis.loader_children import frame_in_threads, is_idle_stack, where_it_runs
from eroica.diagnosis.margins import use_of_core
from eroica.diagnosis.reading import WAITS, Doing, describe, doing, library_frame, python_cause
from eroica.diagnosis.rows import reference_of_rows
from eroica.diagnosis.speed import launching_rows
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms
from eroica.localize.excess import excess_over_baseline, standard_error
from eroica.model.pattern import BESIDE_INPUT, Phase
from eroica.summarize.phases import is_engine_frame

Floats = NDArray[np.float64]
#: Modules, hooks and optimizers take up to half as long between launches as launching takes (measured, eager code).
_BETWEEN_LAUNCHES = 0.5
#: Share of a stated slowdown that a function must explain without a baseline window, if not most, where workers share
#: few cores: what one computes longer, others wait for cores longer.
_EXPLAINS_CROWDED = 0.35
#: And the least share of the iteration it must then hold, along the pipeline and on each worker.
_LEAST_SHARE = 0.08
_LEAST_ON_EACH = 0.05
#: Share of the time in which the training thread waits for another one, from which the function there is named.
_MOSTLY_THREADS = 0.4
#: Doubt where most workers hardly use a core in a function, and somebody else got longer meanwhile.
_MAY_ONLY_WAIT = 0.4
#: A whole window that holds so many times the mean of the iterations that count has others that hold much, such as an
#: evaluation; then what counts is read of so many workers.
_MOSTLY_COUNTED = 1.2
_MOST_READ = 64
#: Of so many accused each is asked what it does; more of them have one reason.
_MOST_APART = 16
#: Accused workers differ much if one has so many times as much as another.
_UNEQUAL = 3.0
#: Frames looked at where a phase as a whole does not stand out; against peers another only after one that does: on
#: busy cores the more are looked at, the more often one of them differs by chance.
_MOST_FRAMES = 3
#: Who takes so much more of the usual time in a function of all than they do.
_OF_ONE = 0.5
#: Another thread that is busy for this share of the iteration is worth a sentence.
_BUSY_BESIDE = 0.3
#: Where a frame lies that enters a collective.
_COLLECTIVES = "(torch/distributed/distributed_c10d.py:"
#: What packs and unpacks objects there.
_PICKLING = ("_object_to_tensor (", "_tensor_to_object (")
#: What a well-known library does there, and what to do about it.
_MEANINGS: dict[str, str] = {
    "compile": "That is a compiler: code is compiled again while the job trains.",
    "program": "That waits for another program that this function started.",
    "thread": "That waits for another thread.",
    "service": "That waits for the answer of a service.",
}
_NEXT_STEPS: dict[str, str] = {
    "compile": (
        "Find out why code is compiled again (TORCH_LOGS=recompiles): shapes, Python values or modes that change; mark "
        "sizes as dynamic (torch.compile(dynamic=True)) or pad them to a few, and compile before training begins."
    ),
    "program": "Do not start programs in the iteration: do their work before, in the process itself, or beside it.",
    "service": (
        "Make that service answer faster, ask it for many at once, or ask from another thread while training goes on."
    ),
    "thread": (
        "Look at what the other thread does: give it more of a lead (a longer queue), more threads or processes, or "
        "do not wait for its result in the iteration."
    ),
}
_WAITS = "Find out what this function waits for, and let that come beside the training, or less often."


def find_python(view: View) -> list[Candidate]:
    """Accuse functions that take longer on some workers than on peers, or on all than before or than expected."""
    found: dict[Hashable, list[Candidate]] = defaultdict(list)
    for at, one in enumerate(candidate for phase in BESIDE_INPUT for candidate in _in_phase(view, phase)):
        alike = not one.is_elsewhere and one.focus.is_own
        found[(one.cause, one.scope, one.workers, one.reference, one.focus.label) if alike else at].append(one)
    return [_together(parts) for parts in found.values()]


def _together(parts: Sequence[Candidate]) -> Candidate:
    """Join candidates of the same function on the same workers in several parts of the iteration."""
    if len(parts) == 1:
        return parts[0]
    whole = next((one for one in parts if one.gain is not None), None)
    if whole is not None:  # all of its rows are in it, whichever part it was met in
        return whole
    first = max(parts, key=lambda one: one.excess_us)
    rows = tuple(sorted({row for one in parts for row in one.functions}))
    named = tuple(sorted({row for one in parts for row in one.focus.functions}))
    return msgspec.structs.replace(
        first,
        functions=rows,
        focus=msgspec.structs.replace(first.focus, functions=named),
        removed_us=np.sum([one.removed_us for one in parts], axis=0),
        mean_us=sum(one.mean_us for one in parts),
        reference_us=sum(one.reference_us for one in parts),
    )


def python_rows(view: View, phases: Sequence[str] = BESIDE_INPUT) -> list[int]:
    """List rows of Python that these rules judge."""
    rows = view.rows(kinds=frozenset({"python"}), phases=frozenset(phases))
    return [row for row in rows if not is_judged_elsewhere(view.fleet.keys[row].stack)]


def _in_phase(view: View, phase: Phase) -> Iterator[Candidate]:
    rows = python_rows(view, (phase,))
    expected = _expected_share(view, phase) if view.fleet.has_accelerator else None
    if not rows:
        return
    for judged, late in _judged(view, rows, expected):
        for part in _by_function(view, rows, late):
            candidate = _narrowed(view, rows, part, expected)
            if candidate is not None and set(judged).isdisjoint(candidate.focus.functions):
                candidate = _narrowed(view, judged, part, expected)  # other iterations hold more of something else
            if candidate is not None:
                yield candidate
    if view.suspects.baseline is None and not view.fleet.has_accelerator:
        found = list(_explains_slowdown(view, rows, view.fleet.critical_us))
        if not found and phase == "other" and view.sees_callers:  # beside its step a training need not compute
            found = list(_explains_slowdown(view, rows, view.fleet.total_us))
        yield from found


def _expected_share(view: View, phase: Phase) -> float:
    """Return the share of the iteration that Python of one part may take: more where it launches much for a device."""
    launching_us = float(view.fleet.critical_us[launching_rows(view.fleet, phase)].sum(axis=0).mean())
    return view.settings.expected_python + _BETWEEN_LAUNCHES * launching_us / max(view.iteration_us, 1e-9)


def reading_of(stack: tuple[str, ...]) -> tuple[str, bool, bool]:
    """Return all that rules read in a call stack as a whole: stacks of one reading can be counted together."""
    return activity_of(stack), is_idle_stack(stack), is_judged_elsewhere(stack)


def is_judged_elsewhere(stack: Sequence[str]) -> bool:
    """True if a stack is nobody's Python, or the matter of another rule.

    A leaf that waits for the C++ autograd engine is a gap between operators, and one that enters a collective a part of
    that; saving and logging have a rule that knows that they may come every so many iterations.
    """
    return bool(stack) and (enters_collective(stack) or activity_of(stack) in ("save", "log"))


def enters_collective(stack: Sequence[str]) -> bool:
    """True if a stack ends where a collective is entered, or where the C++ autograd engine is waited for."""
    if not stack:
        return False
    enters = _COLLECTIVES in stack[-1] and not stack[-1].startswith(_PICKLING)
    return is_engine_frame(stack[-1]) or enters


def _judged(view: View, rows: list[int], expected: float | None) -> Iterator[tuple[list[int], Lateness]]:
    """List ways in which the phase, or one frame of it, takes too long, each with its rows.

    A new function is lost in the sum of a phase that varies by more than it costs, so frames are judged as well.
    """
    found = list(judge_group(view, rows, expected))
    yield from ((rows, late) for late in found)
    known = {late.reference for late in found}
    for reference in ("peers", "baseline"):
        if reference not in known:
            yield from _by_frame(view, rows, reference)


def _by_frame(view: View, rows: list[int], reference: str) -> Iterator[tuple[list[int], Lateness]]:
    """List frames that take too long: against peers of the worker with most excess, and of the next with another."""
    source = view.suspects.peers_us if reference == "peers" else view.suspects.before_us
    left = np.asarray(rows)
    floor = view.settings.min_gain * view.iteration_us
    for _ in range(_MOST_FRAMES):
        excess_RW = np.nan_to_num(view.fleet.critical_us[left] - source[left])
        most_W = excess_RW.sum(axis=0) if reference == "baseline" else excess_RW.max(axis=0, initial=0.0)
        worker = int(most_W.argmax())
        above = left[excess_RW[:, worker] > 0].tolist()
        excess_R = excess_RW[excess_RW[:, worker] > 0, worker]
        focus = find_focus(view.fleet.keys, above, excess_R, view.fleet.critical_us[above, worker])
        if focus is None or not focus.is_specific:
            return
        functions = list(focus.functions)
        least_us = min(2 * excess_R[np.isin(above, functions)].sum(), view.fleet.critical_us[functions, worker].sum())
        if least_us < floor:
            return
        spent = measure(view, functions)
        found = list(late_against_peers(view, spent) if reference == "peers" else late_against_baseline(view, spent))
        yield from ((functions, late) for late in found)
        if bool(found) == (reference == "baseline"):
            return
        left = left[~np.isin(left, functions)]


def _by_function(view: View, rows: list[int], late: Lateness) -> list[Lateness]:
    """Split some late workers where each is late in a function of its own: two troubles at a time are two."""
    if late.agreement is None or not 1 < len(late.workers) <= _MOST_APART:
        return [late]
    groups: dict[str, list[int]] = defaultdict(list)
    for worker in late.workers:
        alone = _of_these(late, (worker,))
        time_R = view.fleet.critical_us[rows, worker]
        focus = find_focus(view.fleet.keys, rows, time_R - reference_of_rows(view, rows, alone), time_R)
        groups[focus.label if focus is not None and focus.is_own and focus.is_specific else ""].append(worker)
    if len(groups) < 2 or "" in groups:
        return [late]
    return [_of_these(late, tuple(members)) for members in groups.values()]


def _of_these(late: Lateness, members: tuple[int, ...]) -> Lateness:
    """Take the part of a lateness that lies on some of the late; its means stay those of all."""
    removed_WI = np.zeros_like(late.removed_us)
    removed_WI[list(members)] = late.removed_us[list(members)]
    return msgspec.structs.replace(late, workers=members, removed_us=removed_WI)


def _narrowed(view: View, rows: list[int], late: Lateness, expected: float | None) -> Candidate | None:
    """Build the candidate of the frame that holds most of the excess; of the whole phase where no frame does.

    Nothing where a whole job is late and one worker's own function holds most of it: that is accused by itself.
    """
    whole_R = view.fleet.critical_us[rows][:, list(late.workers)].mean(axis=1)
    counted_R = counted_share(view, rows, late, whole_R)
    time_R = whole_R * counted_R
    excess_R = np.maximum(whole_R - reference_of_rows(view, rows, late), 0.0) * counted_R
    focus = find_focus(view.fleet.keys, rows, excess_R, time_R)
    if focus is None:
        return None
    if focus.is_specific:
        own = _same_reference(view, list(focus.functions), late, expected)
        if own is not None:
            return _accuse_or_awaited(view, focus.functions, focus, own)
        if late.agreement is None and not _is_common(view, focus, late):
            return None
    return _accuse_or_awaited(view, tuple(rows), focus, late)


def counted_share(view: View, rows: list[int], late: Lateness, whole_R: Floats) -> Floats:
    """Return the part of each row's time in iterations that count, where others hold much; else all of it. [R]."""
    members = np.asarray(late.workers, dtype=np.intp)
    if whole_R.sum() <= _MOSTLY_COUNTED * late.mean_us or view.whole is view.fleet:
        return np.ones(whole_R.shape)
    some = members[:: -(-members.size // _MOST_READ)]
    means_R = (view.fleet.series([row], some).mean() if time else 0.0 for row, time in zip(rows, whole_R, strict=True))
    counted_R = np.fromiter(means_R, dtype=np.float64, count=len(rows)) / np.maximum(whole_R, 1e-9)
    return np.asarray(np.clip(counted_R, 0.0, 1.0))


def _is_common(view: View, focus: Focus, late: Lateness) -> bool:
    """True if most of the accused spend about as much time under a frame; one of them alone is not the whole job."""
    own_W = view.fleet.critical_us[list(focus.functions)][:, list(late.workers)].sum(axis=0)
    return bool((own_W >= own_W.mean() / 2).mean() >= JOB_WIDE)


def _same_reference(view: View, functions: list[int], late: Lateness, expected: float | None) -> Lateness | None:
    found = judge_group(view, functions, expected if late.reference == "expectation" else None)
    return next((own for own in found if own.reference == late.reference), None)


def _accuse_or_awaited(view: View, functions: tuple[int, ...], focus: Focus, late: Lateness) -> Candidate:
    """Accuse a function, or the workers that most others wait for in it, where waiting is all they do."""
    found = accuse_python(view, functions, focus, late)
    awaited = _awaited(view, functions, late)
    if not awaited:
        return found
    return _of_awaited(view, found, awaited) or msgspec.structs.replace(found, doubt=_MAY_ONLY_WAIT)


def _awaited(view: View, functions: tuple[int, ...], late: Lateness) -> list[int]:
    """List the workers that most others wait for in Python, as in a read of a socket; none if the others work there.

    They take no longer in these functions, while they got longer in others by about as much.
    """
    busy_before_W = view.busy_before().mean(axis=1)
    others = sorted(set(np.flatnonzero(~np.isnan(busy_before_W)).tolist()) - set(late.workers))
    if late.reference != "baseline" or late.agreement is not None or not others:
        return []
    if float(use_of_core(view, functions, "baseline")[list(late.workers)].mean()) >= WAITS:
        return []
    busier_W = view.fleet.busy_us.mean(axis=1) - busy_before_W
    grown_W = busier_W - measure(view, functions).time_us.mean(axis=1) + view.before(list(functions)).mean(axis=1)
    return others if float(grown_W[others].min()) >= MOST * (late.mean_us - late.reference_us) else []


def _of_awaited(view: View, waits: Candidate, awaited: list[int]) -> Candidate | None:
    """Accuse the own function in which awaited workers are longer by most of the others' wait; None without one."""
    rows = python_rows(view)
    time_R = view.fleet.critical_us[rows][:, awaited].mean(axis=1)
    before_R = np.nan_to_num(view.suspects.before_us[rows])[:, awaited].mean(axis=1)
    focus = find_focus(view.fleet.keys, rows, time_R - before_R, time_R)
    if focus is None or not (focus.is_own and focus.is_specific):
        return None
    if float(use_of_core(view, focus.functions, "baseline")[awaited].mean()) < WAITS:
        return None  # they may wait for the others just as well
    spent, late_W = measure(view, focus.functions), np.isin(np.arange(view.workers), awaited)
    excess = excess_over_baseline(spent.time_us, np.nan_to_num(view.before(list(focus.functions))))
    longer_us, strength = float(excess.excess_us[awaited].mean()), float(np.median(excess.strength[awaited]))
    if longer_us < MOST * waits.excess_us or strength < LEAST_STRENGTH:
        return None
    late = Lateness(
        reference="baseline",
        workers=tuple(awaited),
        removed_us=time_above(spent.steady_us, excess.reference_us, late_W),
        mean_us=float(excess.mean_us[awaited].mean()),
        reference_us=float(excess.reference_us[awaited].mean()),
        strength=strength,
        agreement=min(waits.excess_us / longer_us, 1.0),
    )
    found = accuse_python(view, focus.functions, focus, late)
    text = (
        f"The others spend {format_ms(waits.excess_us)} more in {waits.focus.label} than before, and use little of a "
        "core there: they wait, and not in a collective."
    )
    gain = min(waits.excess_us, longer_us) / max(view.iteration_us, 1e-9)
    return msgspec.structs.replace(found, gain=gain, evidence=(*found.evidence, text))


def accuse_python(
    view: View, functions: tuple[int, ...], focus: Focus, late: Lateness, *, with_operators: bool = False
) -> Candidate:
    """Accuse a function of Python, and say what it does.

    Args:
        view: The window.
        functions: Rows whose time it is (indices into the fleet's keys).
        focus: The function.
        late: The accused, their reference and their excess.
        with_operators: The function is meant with the operators that it calls.
    """
    done = doing(view, focus.functions or functions, late.workers, with_operators=with_operators)
    inside = frame_in_threads(view, late.workers, late.reference)
    beside = () if inside is None else _beside(view, inside, late)
    if inside is not None and _waits_for_threads(view, focus.functions or functions, late) >= _MOSTLY_THREADS:
        focus, done = inside, doing(view, inside.functions, late.workers)
    cause = python_cause(done, is_input=False)
    evidence = (*_unequally(view, functions, late), *_leaf(view, focus, done), *describe(done), *beside)
    candidate = accuse(late, cause, "python", focus, functions, view.settings.min_gain, evidence)
    plain = _WAITS if done.busy_when_allowed < WAITS else ""
    return msgspec.structs.replace(candidate, next_step=_NEXT_STEPS.get(done.activity, plain))


def _unequally(view: View, functions: tuple[int, ...], late: Lateness) -> tuple[str, ...]:
    """Name the accused with the most and the least time, where these differ much: their mean is nobody's."""
    if len(late.workers) < 2:
        return ()
    time_W = view.fleet.critical_us[list(functions)][:, list(late.workers)].sum(axis=0)
    most, least = int(time_W.argmax()), int(time_W.argmin())
    if time_W[most] <= 0 or time_W[most] < _UNEQUAL * time_W[least]:
        return ()
    ranks = [view.fleet.ranks[late.workers[at]] for at in (most, least)]
    here, there = format_ms(float(time_W[most])), format_ms(float(time_W[least]))
    return (f"Not on all alike: {here} on worker {ranks[0]}, {there} on worker {ranks[1]}.",)


def _waits_for_threads(view: View, functions: tuple[int, ...], late: Lateness) -> float:
    """Return the share of the time of rows in which the training thread waits for another one, 0-1."""
    time_R = view.fleet.critical_us[list(functions)][:, list(late.workers)].sum(axis=1)
    waits_R = [activity_of(view.fleet.keys[row].stack) == "thread" for row in functions]
    return float(time_R[waits_R].sum() / max(float(time_R.sum()), 1e-9))


def _beside(view: View, inside: Focus, late: Lateness) -> tuple[str, ...]:
    """Name the function that another thread or process of the accused is busy in meanwhile, if it is much."""
    busy_us = float(view.fleet.total_us[list(inside.functions)][:, list(late.workers)].sum(axis=0).mean())
    if busy_us < _BUSY_BESIDE * view.iteration_us:
        return ()
    where = where_it_runs(view, inside.functions).capitalize()
    return (f"{where} is in {inside.label} for {format_ms(busy_us)} of each iteration.",)


def _leaf(view: View, focus: Focus, done: Doing) -> tuple[str, ...]:
    """Name the frame in which the function's heaviest stack ends, and the meaning of its activity, if known."""
    leaf = library_frame(view, focus)
    text = (f"Its heaviest stack ends in {leaf}.",) if leaf else ()
    return (*text, _MEANINGS[done.activity]) if done.activity in _MEANINGS else text


def _explains_slowdown(view: View, rows: list[int], time_us: Floats) -> Iterator[Candidate]:
    """Accuse one own function of all workers that is about as large as the slowdown, without a baseline window.

    Its own time counts, or with that of the operators it calls, of which only the sum over the window is known.

    A function that takes less than most of the window's growth leaves as much doubt. A worker for which the others wait
    by most of it, and which takes far longer in the function than they do, is accused alone.
    """
    if not view.is_slow or view.slowdown_us <= 0:
        return
    time_R = time_us[rows].mean(axis=1)
    focus = find_focus(view.fleet.keys, rows, time_R, time_R)
    if focus is None or not focus.is_own:
        return
    spent = measure(view, focus.functions)
    time_WI, steady_WI = spent.time_us, spent.steady_us
    mean_W, error_W = time_us[list(focus.functions)].sum(axis=0), standard_error(time_WI)
    with_operators, shown_us = time_us is view.fleet.total_us, view.iteration_us - (view.stated_baseline_us or 0.0)
    grown_us = shown_us if view.is_slower_than_told else view.slowdown_us
    if with_operators:
        grown_us = min(grown_us, shown_us)
        steady_WI = np.repeat(mean_W[:, None], view.iterations, axis=1)
        error_W = standard_error(view.fleet.iteration_us)
    first, usual_us = int(view.deficit_us.argmax()), float(np.median(mean_W))
    is_of_one = mean_W[first] - usual_us >= _OF_ONE * usual_us
    if is_of_one and view.deficit_us[first] >= MOST * view.slowdown_us:
        return
    explained = _EXPLAINS_CROWDED if view.is_crowded.all() else MOST
    least = max(explained * grown_us, _LEAST_SHARE * view.iteration_us)
    strength = float(np.median(mean_W / np.maximum(error_W, 1e-9)))
    along_us = _along_stages(view, mean_W)
    is_everywhere = mean_W.min() >= _LEAST_ON_EACH * view.iteration_us
    if not is_everywhere or not least <= along_us <= grown_us / MOST or strength < LEAST_STRENGTH:
        return
    usual = max(float(mean_W.mean()) - grown_us, 0.0)
    late = Lateness(
        reference="slowdown",
        workers=tuple(range(view.workers)),
        removed_us=np.maximum(steady_WI - usual, 0.0),
        mean_us=float(mean_W.mean()),
        reference_us=usual,
        strength=strength,
    )
    found = accuse_python(view, focus.functions, focus, late, with_operators=with_operators)
    most_us = max(view.slowdown_us, view.iteration_us - (view.baseline_us or view.iteration_us))
    yield msgspec.structs.replace(found, doubt=min(along_us / (MOST * most_us), 1.0))


def _along_stages(view: View, mean_W: Floats) -> float:
    """Sum the least time in a function over the stages of a pipeline; without stages, return the least of all."""
    places = set(view.stages)
    if None in places:
        return float(mean_W.min())
    place_W = np.asarray(view.stages, dtype=np.intp)
    return float(sum(mean_W[place_W == place].min() for place in places))
