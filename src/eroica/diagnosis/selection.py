"""Select the causes among candidates: those whose removal makes iterations shorter."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.accumulation import find_exchange_per_pass
from eroica.diagnosis.affinity import find_narrow_affinity
from eroica.diagnosis.blocking import find_blocking
from eroica.diagnosis.callers import name_callers
from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.catalog import CATALOG
from eroica.diagnosis.communication import find_slow_communication
from eroica.diagnosis.compute import find_compute
from eroica.diagnosis.confidence import believed_strength
from eroica.diagnosis.fragmented import find_fragmented
from eroica.diagnosis.fragmented_messages import find_cut_up
from eroica.diagnosis.garbage import find_collections
from eroica.diagnosis.host import find_host_bound
from eroica.diagnosis.inside import put_operators_inside
from eroica.diagnosis.latecomers import find_latecomers
from eroica.diagnosis.lateness import LEAST_STRENGTH
from eroica.diagnosis.launching import find_slow_launching
from eroica.diagnosis.link import find_slow_links
from eroica.diagnosis.loading import find_slow_loading
from eroica.diagnosis.lock import find_lock_contention
from eroica.diagnosis.memory import find_memory_storms
from eroica.diagnosis.micro_batches import find_fewer_micro_batches
from eroica.diagnosis.neighbors import attribute_to_neighbors, find_sibling_processes, is_concealing
from eroica.diagnosis.oversubscription import blame_loading, find_oversubscription, looks_like
from eroica.diagnosis.paths import find_group_transfers
from eroica.diagnosis.pauses import find_pauses
from eroica.diagnosis.pre_existing import without_older
from eroica.diagnosis.python_code import find_python
from eroica.diagnosis.reading import INPUT_CAUSES
from eroica.diagnosis.rotating import find_rotating
from eroica.diagnosis.routing_imbalance import tell_routed
from eroica.diagnosis.rows import waits_rather
from eroica.diagnosis.saturated import find_saturated_loading
from eroica.diagnosis.seldom import find_seldom
from eroica.diagnosis.setup import attribute_to_setup, find_misconfiguration
from eroica.diagnosis.simulate import share_gains, simulated_gain
from eroica.diagnosis.single_operators import find_slow_operators
from eroica.diagnosis.smaller_pieces import find_smaller_pieces
from eroica.diagnosis.specific import is_same_kind, prefer_specific
from eroica.diagnosis.stages import find_long_stages
from eroica.diagnosis.synchronization import find_synchronization
from eroica.diagnosis.uneven import find_uneven_work
from eroica.diagnosis.unexplained import find_unexplained
from eroica.diagnosis.view import View
from eroica.diagnosis.without_core import find_without_core
from eroica.localize.excess import median_of_others
from eroica.model.shares import percent

Floats = NDArray[np.float64]
#: A general cause must cost twice as much as a specific one to stand before it.
_GENERAL = 0.5
#: Causes of some workers that hold less than this share of what the others wait for these do not explain it.
_ACCOUNTS = 0.5
#: What accounts for less than this share of a slowdown leaves room for what takes the cores of everybody.
_MINOR = 0.3
#: On busy cores some function takes up to 5 % of the iteration more in one baseline window than in another.
_LEAST_CHANGE = 0.08
#: And takes up to 3.5 % more on one worker than on another.
_LEAST_DIFFERENCE = 0.05
#: Standard errors that a cause in a recording must be worth once the small number of iterations is allowed for.
_LEAST_BELIEVED = 2.5
_LEAST_BELIEVED_ONCE = 1.5
#: What fails for few iterations alone is worth a doubt from this share of the standard errors and of the iteration on,
#: in iterations that leave doubt.
_DOUBTED = 1 / 3
_LEAST_DOUBTED_GAIN = 0.06
MOST_DOUBTED = 9
#: One that costs this share of the other costs about as much.
_NEARLY = 0.8
#: What lateness in turn is called where queues of batches run dry, now this worker's and now that one's.
_IN_TURN = INPUT_CAUSES | {"unknown"}
_RULES = (
    find_slow_loading,
    find_blocking,
    find_lock_contention,
    find_python,
    find_smaller_pieces,
    find_collections,
    find_rotating,
    find_pauses,
    find_seldom,
    find_compute,
    find_slow_operators,
    find_memory_storms,
    find_synchronization,
    find_fragmented,
    find_cut_up,
    find_exchange_per_pass,
    find_fewer_micro_batches,
    find_slow_links,
    find_group_transfers,
    find_slow_communication,
    find_host_bound,
    find_slow_launching,
    find_long_stages,
)


class Cause(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A candidate that counts.

    Attributes:
        candidate: The cause.
        gain: Gain of its removal, as a fraction of the iteration, 0-1.
        is_growth: The gain is by how much the iteration has grown, not what the window run again shows.
    """

    candidate: Candidate
    gain: float
    is_growth: bool = False


def find_causes(view: View) -> list[Cause]:
    """Find all causes of a window in order of falling gain; empty if nothing costs enough."""
    causes = select_causes(view, _of_all_rules(view))
    if view.is_trace:
        causes = _with_lateness(view, causes)
    explained = {worker for cause in causes for worker in cause.candidate.workers}
    if not any(cause.candidate.scope == "some" for cause in causes):
        late = find_without_core(view, explained) or find_unexplained(view, explained)
        causes += select_causes(view, _with_culprits(view, late))
    plain = [cause for cause in causes if not is_concealing(cause.candidate)]
    if not plain or _are_minor(view, plain):
        beside = select_causes(view, find_sibling_processes(view) or find_misconfiguration(view))
        causes = [*beside, *(one for one in causes if not beside or waits_rather(view, one.candidate))]
    if all(cause.candidate.cause in INPUT_CAUSES for cause in causes):
        causes = _widest(causes, select_causes(view, find_saturated_loading(view)))
    return [*causes, *(_remarks(view, causes) if view.is_trace else _smaller(view, causes))]


def _with_lateness(view: View, causes: Sequence[Cause]) -> list[Cause]:
    """Add to a recording's causes what others wait for: on workers that nothing accuses, and beyond their causes.

    A host's function that its device hides holds a worker up for longer than it is on the critical path. What accounts
    for less than half of the waiting is not what the worker is late by.
    """
    found = list(causes)
    for late in select_causes(view, find_latecomers(view)):
        accused = set(late.candidate.workers)
        same = [one for one in found if one.candidate.scope == "some" and accused & set(one.candidate.workers)]
        raised = [_with_hidden(view, one, late) for one in same]
        if sum(one.gain for one in raised) < _ACCOUNTS * late.gain:
            for one in same:
                view.refuse(one.candidate, "the others wait far longer for these workers than that takes", one.gain)
            raised = [_as_known(view, late)]
        found = [one for one in found if one not in same] + raised
    return sorted(found, key=_weight, reverse=True)


def _as_known(view: View, late: Cause) -> Cause:
    """Replace a latecomer of unknown cause by a weighed cause of the same function: rerun, that may show no gain."""
    found = late.candidate
    for one in view.weighed if found.cause == "unknown" else ():
        known = one.candidate
        if known.workers == found.workers and set(known.functions) & set(found.functions) and known.cause != "unknown":
            return Cause(candidate=known, gain=late.gain)
    return late


def _with_hidden(view: View, cause: Cause, late: Cause) -> Cause:
    """Raise the gain of a host's function by its time beside the device, as far as others wait for that."""
    found, most = cause.candidate, late.gain
    if cause.gain >= most:
        return cause
    if set(found.functions) & set(late.candidate.functions):  # what keeps the late by either reading
        return msgspec.structs.replace(cause, gain=most)
    if found.kind != "python" or not found.functions:
        return cause
    rows, workers = list(found.functions), list(found.workers)
    hidden_W = np.maximum(view.fleet.total_us - view.fleet.critical_us, 0.0)[rows].sum(axis=0)
    own_us = float(np.nan_to_num(hidden_W - median_of_others(hidden_W, view.fleet.roles))[workers].mean())
    gain = min(most, cause.gain + max(own_us, 0.0) / max(view.iteration_us, 1e-9))
    return msgspec.structs.replace(cause, gain=gain)


def _are_minor(view: View, causes: Sequence[Cause]) -> bool:
    """True if a job is slower than in its baseline window, or than expected, by far more than the causes gain.

    Where cores are short, some function is always slower, too.
    """
    before_us = view.baseline_us
    if not view.is_slow or not before_us:
        return False
    return sum(cause.gain for cause in causes) < _MINOR * (1 - before_us / max(view.iteration_us, 1e-9))


def _widest(causes: list[Cause], limit: list[Cause]) -> list[Cause]:
    """Return the limit that loaders set if causes are none, or narrower and smaller in gain; else the causes."""
    wider = any(one.candidate.scope == "all" for one in limit) and all(one.candidate.scope == "some" for one in causes)
    dearer = sum(cause.gain for cause in limit) > sum(cause.gain for cause in causes)
    return limit if limit and (not causes or (wider and dearer)) else causes


def _of_all_rules(view: View) -> list[Candidate]:
    """Collect the candidates of all rules; where workers lack cores for a known reason, without what looks like it."""
    suspected = put_operators_inside(view, [candidate for rule in _RULES for candidate in rule(view)])
    candidates = tell_routed(view, name_callers(view, _with_culprits(view, suspected)))
    short = [one for one in (*find_oversubscription(view), *find_narrow_affinity(view)) if _is_believed(view, one)][:1]
    others = [one for one in candidates if not any(looks_like(one, other) for other in short)]
    for one in candidates:
        if one not in others:
            view.refuse(one, f"it follows from {_title(short[0].cause)}")
    by_few = blame_loading(view, short[0], [one for one in others if _is_believed(view, one)]) if short else []
    return by_few or [*short, *others]


def _smaller(view: View, causes: Sequence[Cause]) -> list[Cause]:
    """Add causes that cost less than `min_gain`: on all workers beyond what is expected, by the paper's 1 %.

    With an accelerator only: on busy cores one per cent is noise. By itself it makes no job slow.
    """
    if not causes or not view.fleet.has_accelerator:
        return []
    settings = dataclasses.replace(view.settings, min_gain=min(view.settings.beta_gate, view.settings.min_gain))
    fine = View(view.suspects, view.context, settings)
    candidates = [candidate for rule in (find_slow_loading, find_python) for candidate in rule(fine)]
    common = [each for each in candidates if each.scope == "all" and each.reference == "expectation"]
    found = select_causes(fine, prefer_specific(common, [cause.candidate for cause in causes]))
    return [cause for cause in found if not any(_says_the_same(cause, other) for other in causes)]


def _with_culprits(view: View, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Name in candidates the setting, or the process beside the job, that accounts for them."""
    return attribute_to_setup(view, attribute_to_neighbors(view, candidates))  # measured culprits before settings


def find_doubted(view: View, causes: Sequence[Cause]) -> Cause | None:
    """Find the costliest candidate of a window without causes, if iterations are too few to tell it from noise.

    In a running job's window with causes, it must seem to cost more than those together.
    """
    is_asked = not causes if view.is_trace else view.context.window.purpose != "baseline"
    if view.iterations > MOST_DOUBTED or not is_asked:
        return None
    suspects = view.suspects
    if view.is_pipeline:  # with some sends unmatched, a pipeline run again may show no gain
        suspects = msgspec.structs.replace(suspects, fleet=msgspec.structs.replace(view.fleet, replay=None))
    lenient = View(suspects, view.context, view.settings, strictness=_DOUBTED)
    candidates = [candidate for rule in _RULES for candidate in rule(lenient)]
    found = select_causes(lenient, [*candidates, *find_latecomers(lenient)])
    least = max(_LEAST_DOUBTED_GAIN, 2 * view.settings.min_gain, sum(cause.gain for cause in causes))
    large = [one for one in found if one.gain >= least and not any(_says_the_same(one, two) for two in causes)]
    return max(large, key=_weight, default=None)


def weigh_weak(view: View) -> None:
    """Note in a window without a cause what its rules see that is too weak to be named, with what it would gain."""
    lenient = View(view.suspects, view.context, view.settings, strictness=_DOUBTED)
    for cause in select_causes(lenient, [candidate for rule in _RULES for candidate in rule(lenient)]):
        strength = believed_strength(view, cause.candidate)
        view.refuse(cause.candidate, f"{strength:.1f} standard errors may be an accident", cause.gain)


def _remarks(view: View, causes: Sequence[Cause]) -> list[Cause]:
    """List uneven work that costs nothing by itself, beside causes that do, unless one of them says it already."""
    known = {cause.candidate.cause for cause in causes}
    found = find_uneven_work(view) if known else []
    return [Cause(candidate=remark, gain=0.0) for remark in found if remark.cause not in known]


def select_causes(view: View, candidates: Sequence[Candidate]) -> list[Cause]:
    """Select causes by their gains, without those that cost too little or only repeat a larger one.

    Taken by falling gain; each must still gain `min_gain` once all taken before it are removed.
    """
    believed = list(_believed(view, candidates))
    candidates = prefer_specific(believed)
    for candidate in believed:
        if candidate not in candidates:
            view.refuse(candidate, "a more specific cause tells the same time", candidate.gain)
    measured = [Cause(candidate=own, gain=own.gain) for own in candidates if own.gain is not None]
    inside = [candidate for candidate in candidates if candidate.kind != "collective" and candidate.gain is None]
    slow_WI = _slow_transfers(measured)
    known = [cause.candidate.removed_us for cause in measured if _is_work(view, cause)]
    gains = share_gains(view.fleet, [*(one.removed_us for one in inside), *known], slow_WI)[: len(inside)]
    causes = [Cause(candidate=candidate, gain=gain) for candidate, gain in zip(inside, gains, strict=True)]
    wandering = [one for one in causes if any(_is_in_turn(one, two) or _wanders(one, two) for two in causes)]
    for cause in wandering:
        view.refuse(cause.candidate, "another cause tells in which order it comes", cause.gain)
    causes = [one for one in causes if one not in wandering]
    chosen = list(_taken(view, sorted(causes, key=_weight, reverse=True), slow_WI, known))
    measured += _communication(view, candidates)
    chosen += _once(view, [cause for cause in measured if _costs_enough(view, cause)])
    return sorted(chosen, key=_weight, reverse=True)


def _is_work(view: View, cause: Cause) -> bool:
    """True if a cause with a gain of its own is a worker's work, which hides what is shorter on others."""
    return cause.candidate.kind != "collective" and cause.gain >= _least_gain(view, cause.candidate)


def _believed(view: View, candidates: Sequence[Candidate]) -> Iterator[Candidate]:
    """Keep candidates that are no accident, less what was there when the job was healthy."""
    for candidate in candidates:
        if not _is_believed(view, candidate):
            view.refuse(candidate, f"{view.iterations} iterations are too few to be sure of it")
            continue
        left = without_older(view, candidate)
        if left is None:
            view.refuse(candidate, "it was so when the job was healthy, too")
        else:
            yield left


def _costs_enough(view: View, cause: Cause) -> bool:
    least = _least_gain(view, cause.candidate)
    if cause.gain >= least:
        return True
    view.refuse(cause.candidate, f"it gains less than the {percent(least)} from which it counts", cause.gain)
    return False


def _title(slug: str) -> str:
    return CATALOG[slug].title.lower()


def _once(view: View, causes: Sequence[Cause]) -> list[Cause]:
    """Drop causes that repeat one that gains more, or comes before them."""
    kept: list[Cause] = []
    for cause in sorted(causes, key=_weight, reverse=True):
        if not _is_told(view, cause, kept):
            kept.append(cause)
    return kept


def _is_told(view: View, cause: Cause, kept: Sequence[Cause]) -> bool:
    same = next((other for other in kept if _says_the_same(cause, other)), None)
    if same is not None:
        view.refuse(cause.candidate, f"{same.candidate.focus.label} tells the same time", cause.gain)
    return same is not None


def _slow_transfers(measured: Sequence[Cause]) -> Floats | None:
    """Return the excess of transfers of slow process groups; None if all gain too little. float64 [W, I]."""
    slow = [one.candidate for one in measured if one.candidate.kind == "collective"]
    worth = [one.removed_us for one in slow if (one.gain or 0.0) >= one.least_gain]
    return np.max(worth, axis=0) if worth else None


def _is_believed(view: View, candidate: Candidate) -> bool:
    """True if a window holds enough iterations to believe a candidate; in longer ones the rules see to that."""
    if view.strictness < 1 or (not view.is_trace and view.iterations > MOST_DOUBTED):
        return True
    least = LEAST_STRENGTH if candidate.is_latecomer else _LEAST_BELIEVED  # only waiting speaks for it
    return believed_strength(view, candidate) >= (least if view.iterations > 1 else _LEAST_BELIEVED_ONCE)


def _least_gain(view: View, candidate: Candidate) -> float:
    """Return the gain from which a candidate counts: in a job on CPUs that nobody finds slow it must stand out more."""
    if view.is_slow or view.is_trace or view.fleet.has_accelerator:
        return candidate.least_gain
    if candidate.reference == "baseline":
        return max(candidate.least_gain, _LEAST_CHANGE)
    is_function = candidate.reference == "peers" and candidate.kind == "python"
    return max(candidate.least_gain, _LEAST_DIFFERENCE) if is_function else candidate.least_gain


def _weight(cause: Cause) -> float:
    """Return the gain, half of it for what is slower everywhere."""
    return cause.gain * (_GENERAL if cause.candidate.is_general else 1.0)


def _taken(view: View, ranked: Sequence[Cause], slow_WI: Floats | None, known: Sequence[Floats]) -> Iterator[Cause]:
    """Keep causes that still gain enough once all taken before them are removed.

    Args:
        view: The window.
        ranked: By falling weight.
        slow_WI: Excess of transfers of slow process groups. float64 [W, I].
        known: Time of causes whose gain is known otherwise: what it hides counts, though it is no rival. [W, I] each.
    """
    removed = np.zeros_like(view.fleet.iteration_us)
    hidden = sum(known, np.zeros_like(view.fleet.iteration_us))
    uncovered = simulated_gain(view.fleet, hidden, slow_WI) if known else 0.0
    taken: list[Cause] = []
    gained = 0.0 if slow_WI is None else simulated_gain(view.fleet, removed, slow_WI)
    for cause in ranked:
        if not _costs_enough(view, cause) or _is_told(view, cause, taken):
            continue
        together = simulated_gain(view.fleet, removed + cause.candidate.removed_us, slow_WI)
        beside = simulated_gain(view.fleet, hidden + cause.candidate.removed_us, slow_WI) - uncovered if known else 0.0
        if taken and max(together - gained, beside) < view.settings.min_gain:
            view.refuse(cause.candidate, "beside the causes that are named it gains nothing more", together - gained)
            continue
        removed, gained = removed + cause.candidate.removed_us, together
        taken.append(cause)
        yield cause


def _says_the_same(cause: Cause, other: Cause) -> bool:
    """True if two causes share rows, on workers that overlap; rotating ones are now on these, now on those."""
    one, two = cause.candidate, other.candidate
    same_rows = bool(set(one.functions) & set(two.functions))
    overlap = bool(set(one.workers) & set(two.workers)) or "rotating" in (one.scope, two.scope)
    return is_same_kind(one.cause, two.cause) and same_rows and overlap


def _is_in_turn(cause: Cause, other: Cause) -> bool:
    """True if a cause is lateness in turn, while the loaders of all set the pace and cost about as much or more."""
    one, two = cause.candidate, other.candidate
    turns = one.scope == "rotating" and one.cause in _IN_TURN
    return turns and two.scope == "all" and two.cause in INPUT_CAUSES and other.gain >= _GENERAL * cause.gain


def _wanders(cause: Cause, other: Cause) -> bool:
    """True if a cause of all workers is also known to rotate over them, at about the same cost."""
    one, two = cause.candidate, other.candidate
    in_turn = one.scope == "all" and two.scope == "rotating" and one.cause not in INPUT_CAUSES
    return in_turn and _says_the_same(cause, other) and other.gain >= _NEARLY * cause.gain


def _communication(view: View, candidates: Sequence[Candidate]) -> Iterator[Cause]:
    """List causes in collectives with their full gain, once: a link that stands out explains the time better."""
    mine = [candidate for candidate in candidates if candidate.kind == "collective" and candidate.gain is None]
    for candidate in mine:
        if candidate.hosts or not any(other.hosts for other in mine):
            yield Cause(candidate=candidate, gain=float(candidate.removed_us.mean() / max(view.iteration_us, 1e-9)))
