"""List the causes that were considered for a window: named or not, why, and what speaks for and against each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from eroica.diagnosis.arbiter import Cause
from eroica.diagnosis.behavior import describe_row, flagged_row, is_read_by_rule
from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.confidence import believed_strength
from eroica.diagnosis.holders import find_holders
from eroica.diagnosis.lateness import LEAST_AGREEMENT, LEAST_STRENGTH
from eroica.diagnosis.limits import MOST
from eroica.diagnosis.view import View
from eroica.model.shares import percent
from eroica.model.verdict import NAMED, Hypothesis

#: A verdict keeps so many.
_MOST = 12
_REFERENCES = {
    "peers": "compared with its peers",
    "baseline": "compared with the job's own {}",
    "expectation": "compared with what is expected only",
    "slowdown": "compared with the slowdown only: there is no {}",
    "stages": "compared with other pipeline stages",
}


def list_hypotheses(view: View, causes: Sequence[Cause], is_open: bool) -> tuple[Hypothesis, ...]:
    """List what was considered: the causes named, then others by gain; at last, in an undetermined verdict, holders."""
    found: dict[tuple[Any, ...], Hypothesis] = {}
    for cause in causes:
        found[_identity(cause.candidate)] = _hypothesis(view, cause.candidate, cause.gain, NAMED, cause.why)
    for one in sorted(view.weighed, key=lambda one: -(one.gain or 0.0)):
        found.setdefault(_identity(one.candidate), _hypothesis(view, one.candidate, one.gain, one.decision))
    return (*tuple(found.values())[:_MOST], *(find_holders(view) if is_open else ()))


def _identity(candidate: Candidate) -> tuple[Any, ...]:
    return candidate.cause, candidate.scope, candidate.workers, candidate.focus.label


def _hypothesis(view: View, candidate: Candidate, gain: float | None, decision: str, why: str = "") -> Hypothesis:
    signs = list(_signs(view, candidate))
    return Hypothesis(
        cause=candidate.cause,
        function=candidate.focus.label,
        workers=tuple(view.fleet.ranks[worker] for worker in candidate.workers),
        scope=candidate.scope,
        gain=None if gain is None else round(gain, 4),
        decision=decision,
        why=why,
        met=tuple(text for word, text in signs if word == "met"),
        missing=tuple(text for word, text in signs if word == "missing"),
        unknown=tuple(text for word, text in signs if word == "unknown"),
    )


def _signs(view: View, candidate: Candidate) -> Iterator[tuple[str, str]]:
    """List the signs that every cause needs: a sure excess, others that wait for it, a function, a reference."""
    strength = believed_strength(view, candidate)
    sure = f"{min(strength, 999):.1f} standard errors above that over {view.iterations} iterations"
    yield ("met" if strength >= LEAST_STRENGTH else "missing"), sure
    weak = candidate.reference in ("expectation", "slowdown")
    yield ("unknown" if weak else "met"), _REFERENCES[candidate.reference].format(view.past_window)
    if candidate.scope == "some":
        yield _waiting(candidate)
    if candidate.focus.functions:
        holds = f"the function holds {percent(candidate.coverage)} of it"
        yield ("met" if candidate.coverage >= MOST else "missing"), holds
    else:
        yield "missing", "no function accounts for it"
    row = flagged_row(view, candidate)
    if row is not None:
        yield "met", describe_row(row)
    elif is_read_by_rule(view, candidate):
        yield "missing", "equation 11 flags none of its functions"
    if candidate.doubt < 1:
        yield "unknown", "whether the named ones work or wait there themselves"
    if candidate.may_be_recording:
        yield "unknown", "whether the recording itself brings it about"
    if candidate.corroboration > 0:
        yield "met", f"other measurements agree ({candidate.corroboration:.1f} standard errors)"
    if candidate.cause == "unknown":
        yield "unknown", "which kind of cause it is"


def _waiting(candidate: Candidate) -> tuple[str, str]:
    if candidate.agreement is None or np.isnan(candidate.agreement):
        return "unknown", "whether the others wait for it"
    hidden = ", or would if they were not late by other work" if candidate.is_hidden else ""
    seen = f"the others wait for {percent(candidate.agreement)} of it{hidden}"
    return ("met" if candidate.agreement >= LEAST_AGREEMENT else "missing"), seen
