"""Select the causes among candidates: those whose removal makes iterations shorter."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec
import numpy as np

from eroica.diagnosis.accumulation import find_exchange_per_pass
from eroica.diagnosis.affinity import find_narrow_affinity
from eroica.diagnosis.arbiter import MOST_DOUBTED, Cause, drop, is_believed, is_told_by, select_causes
from eroica.diagnosis.blocking import find_blocking
from eroica.diagnosis.callers import name_callers
from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.communication import find_slow_communication
from eroica.diagnosis.compute import find_compute
from eroica.diagnosis.confidence import believed_strength
from eroica.diagnosis.denormals import find_denormals
from eroica.diagnosis.fragmented import find_fragmented
from eroica.diagnosis.fragmented_messages import find_cut_up
from eroica.diagnosis.gains import MINOR, growth_of
from eroica.diagnosis.garbage import find_collections
from eroica.diagnosis.host import find_host_bound
from eroica.diagnosis.inside import put_operators_inside
from eroica.diagnosis.latecomers import find_latecomers
from eroica.diagnosis.launching import find_slow_launching
from eroica.diagnosis.link import find_slow_links
from eroica.diagnosis.loading import find_slow_loading
from eroica.diagnosis.lock import find_lock_contention
from eroica.diagnosis.memory import find_memory_storms
from eroica.diagnosis.micro_batches import find_fewer_micro_batches
from eroica.diagnosis.neighbors import attribute_to_neighbors, find_sibling_processes, is_concealing
from eroica.diagnosis.oversubscription import blame_loading, find_oversubscription
from eroica.diagnosis.paths import find_group_transfers
from eroica.diagnosis.pauses import find_pauses
from eroica.diagnosis.python_code import find_python
from eroica.diagnosis.reading import INPUT_CAUSES
from eroica.diagnosis.recomputation import find_recomputation
from eroica.diagnosis.rotating import find_rotating
from eroica.diagnosis.routing_imbalance import tell_routed
from eroica.diagnosis.rows import waits_rather
from eroica.diagnosis.saturated import find_saturated_loading
from eroica.diagnosis.seldom import find_seldom
from eroica.diagnosis.setup import attribute_to_setup, find_misconfiguration
from eroica.diagnosis.single_operators import find_slow_operators
from eroica.diagnosis.smaller_pieces import find_smaller_pieces
from eroica.diagnosis.stages import find_long_stages
from eroica.diagnosis.synchronization import find_synchronization
from eroica.diagnosis.uneven import find_uneven_work
from eroica.diagnosis.unexplained import find_unexplained
from eroica.diagnosis.view import View
from eroica.diagnosis.without_core import find_without_core

#: Causes of some workers that hold less than this share of what the others wait for these do not explain it.
_ACCOUNTS = 0.5
#: What fails for few iterations alone is worth a doubt from this share of the standard errors and of the iteration on,
#: in iterations that leave doubt.
_DOUBTED = 1 / 3
_LEAST_DOUBTED_GAIN = 0.06
_RULES = (
    find_slow_loading,
    find_blocking,
    find_lock_contention,
    find_python,
    find_recomputation,
    find_smaller_pieces,
    find_collections,
    find_rotating,
    find_pauses,
    find_seldom,
    find_compute,
    find_denormals,
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


def find_causes(view: View) -> list[Cause]:
    """Find all causes of a window in order of falling gain; empty if nothing costs enough."""
    causes = select_causes(view, _of_all_rules(view))
    if view.is_trace:
        causes = _with_lateness(view, causes)
    explained = {worker for cause in causes for worker in cause.candidate.workers}
    if not any(cause.candidate.scope == "some" for cause in causes):
        late = find_without_core(view, explained) or find_unexplained(view, explained)
        causes += select_causes(view, with_culprits(view, late))
    plain = [cause for cause in causes if not is_concealing(cause.candidate)]
    # where cores are short, some function is always slower, too
    if not plain or sum(cause.gain for cause in plain) < MINOR * growth_of(view)[0]:
        beside = select_causes(view, find_sibling_processes(view) or find_misconfiguration(view))
        kept = [one for one in causes if not beside or waits_rather(view, one.candidate)]
        drop(view, causes, kept, "it accounts for little of the slowdown, and what runs beside the job for more")
        causes = [*beside, *kept]
    if all(cause.candidate.cause in INPUT_CAUSES for cause in causes):
        widest = _widest(causes, select_causes(view, find_saturated_loading(view)))
        drop(view, causes, widest, "the limit that the loaders of all set is wider, and gains more")
        causes = widest
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
    return sorted(found, key=lambda one: one.weight, reverse=True)


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
    own_us = float(np.nan_to_num(hidden_W - view.fleet.usual(hidden_W))[workers].mean())
    gain = min(most, cause.gain + max(own_us, 0.0) / max(view.iteration_us, 1e-9))
    return msgspec.structs.replace(cause, gain=gain)


def _widest(causes: list[Cause], limit: list[Cause]) -> list[Cause]:
    """Return the limit that loaders set if causes are none, or narrower and smaller in gain; else the causes."""
    wider = any(one.candidate.scope == "all" for one in limit) and all(one.candidate.scope == "some" for one in causes)
    dearer = sum(cause.gain for cause in limit) > sum(cause.gain for cause in causes)
    return limit if limit and (not causes or (wider and dearer)) else causes


def _of_all_rules(view: View) -> list[Candidate]:
    """Collect the candidates of all rules."""
    suspected = put_operators_inside(view, [candidate for rule in _RULES for candidate in rule(view)])
    candidates = tell_routed(view, name_callers(view, with_culprits(view, suspected)))
    crowd = [one for one in (*find_oversubscription(view), *find_narrow_affinity(view)) if is_believed(view, one)][:1]
    by_few = blame_loading(view, crowd[0], [one for one in candidates if is_believed(view, one)]) if crowd else []
    return by_few or [*crowd, *candidates]


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
    known = [cause.candidate for cause in causes]
    return select_causes(fine, [one for one in common if not _is_told(one, known)])


def with_culprits(view: View, candidates: Sequence[Candidate]) -> list[Candidate]:
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
    known = [cause.candidate for cause in causes]
    large = [one for one in found if one.gain >= least and not _is_told(one.candidate, known)]
    return max(large, key=lambda one: one.weight, default=None)


def weigh_weak(view: View) -> None:
    """Note in an undetermined window what its rules see, with what it would gain, and how sure that is."""
    lenient = View(view.suspects, view.context, view.settings, strictness=_DOUBTED)
    for cause in select_causes(lenient, [candidate for rule in _RULES for candidate in rule(lenient)]):
        strength = believed_strength(view, cause.candidate)
        view.refuse(cause.candidate, f"{strength:.1f} standard errors may be an accident", cause.gain)


def _remarks(view: View, causes: Sequence[Cause]) -> list[Cause]:
    """List uneven work that costs nothing by itself, beside causes that do, unless one of them says it already."""
    known = {cause.candidate.cause for cause in causes}
    found = find_uneven_work(view) if known else []
    return [Cause(candidate=remark, gain=0.0) for remark in found if remark.cause not in known]


def _is_told(candidate: Candidate, known: Sequence[Candidate]) -> bool:
    return any(is_told_by(candidate, other) for other in known)
