"""Find where the user's code calls operators that are a cause by themselves, or makes the garbage that is collected.

A storm of copies and one operator that is slow keep their names and their advice, but somebody has to find the line: of
most of what they take longer the sampled stacks know who called it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from eroica.diagnosis.arbiter import Cause
from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.under_operators import Caller, find_caller, host_us, inside_us, phases_called_in, usual_of
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms
from eroica.trace.schema import ALLOCATIONS

#: Copies that return when they are done.
_HOST_WAITS = ("Pageable",)
_COLLECTIONS = "garbage-collection"


def tell_callers(view: View, causes: Sequence[Cause]) -> list[Cause]:
    """Add to causes that are operators by themselves the function that calls most of them.

    Recorded traces do not tell. Where nobody knows who launched what a device runs, stacks still tell what the host
    waits for: allocations, and copies from and to memory that is not pinned.
    """
    if view.is_trace:
        return list(causes)
    return [msgspec.structs.replace(cause, candidate=_with_caller(view, cause.candidate)) for cause in causes]


def _with_caller(view: View, work: Candidate) -> Candidate:
    measure = host_us if work.cause == _COLLECTIONS else inside_us
    usual = usual_of(view, work.reference, measure) if _is_by_itself(work) and _is_seen(view, work) else None
    caller = find_caller(view, work.workers, usual) if usual is not None else None
    if caller is None or not caller.accounts_for(work.excess_us) or not _is_beside(view, work, caller):
        return work
    label, usually = caller.focus.label, "before" if work.reference == "baseline" else "on the peers"
    times = f"{format_ms(caller.own_us)}; {usually} {format_ms(caller.other_us)}."
    text = f"Operators that {label} calls take {times}"
    if work.cause == _COLLECTIONS:
        more = f"{format_ms(caller.excess_us)} more than {usually}"
        text = f"Most of it happens while {label} runs, and so allocates: {more}."
    elif view.fleet.knows_launchers:
        text = f"What {label} launches takes the device {times}"
    elif view.fleet.has_accelerator:
        text = f"The host is in {label}, the device at work meanwhile, for {times}"
    focus = msgspec.structs.replace(work.focus, stack=caller.focus.stack)
    return msgspec.structs.replace(work, focus=focus, caller=label, evidence=(*work.evidence, text))


def _is_beside(view: View, work: Candidate, caller: Caller) -> bool:
    """True if the operators run in a part of the iteration in which the function is called, or that is not known."""
    if work.cause == _COLLECTIONS:
        return True
    phases = {view.fleet.keys[row].phase for row in work.functions}
    is_unknown = view.fleet.has_accelerator and phases == {"other"}
    return is_unknown or not phases_called_in(view, caller).isdisjoint(phases)


def _is_seen(view: View, work: Candidate) -> bool:
    """True if the host stands still while the named operation runs, so that its stacks tell who called it."""
    if view.knows_callers or work.cause == _COLLECTIONS:
        return True
    return work.focus.name.startswith(ALLOCATIONS) or any(word in work.focus.name for word in _HOST_WAITS)


def _is_by_itself(work: Candidate) -> bool:
    """True if operators, or collections, stand for a cause and no stack tells who called them."""
    is_operator = work.is_one_operator or work.cause == "memory-operation-storm"
    is_operator |= work.cause == _COLLECTIONS or (work.cause == "unknown" and work.kind == "compute")
    return is_operator and bool(work.workers) and not work.focus.stack
