"""List the causes that were considered for a window: named or not, why, and what speaks for and against each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from eroica.diagnosis.block import Block
from eroica.diagnosis.frames import MOST
from eroica.diagnosis.outliers import LEAST_AGREEMENT
from eroica.diagnosis.selection import Cause, Weighed
from eroica.diagnosis.view import View
from eroica.localize.excess import SURE
from eroica.localize.rule import SuspectRow, flag_functions
from eroica.model.shares import percent
from eroica.model.verdict import NAMED, Hypothesis

#: A verdict keeps so many.
_MOST = 12
_REFERENCES = {
    "peers": "compared with its peers",
    "baseline": "compared with the job's own {}",
    "expectation": "compared with what is expected only",
    "slowdown": "compared with how much slower the job got only",
}


def list_hypotheses(view: View, causes: Sequence[Cause], weighed: Sequence[Weighed]) -> tuple[Hypothesis, ...]:
    """Return what was considered: the causes named, then others by falling gain."""
    found: dict[tuple[Any, ...], Hypothesis] = {}
    for cause in causes:
        found[_identity(cause)] = _hypothesis(view, cause, NAMED)
    for one in sorted(weighed, key=lambda one: -one.cause.gain):
        found.setdefault(_identity(one.cause), _hypothesis(view, one.cause, one.decision))
    return tuple(found.values())[:_MOST]


def _identity(cause: Cause) -> tuple[Any, ...]:
    return cause.cause, cause.block.scope, cause.block.workers, cause.block.focus.label


def _hypothesis(view: View, cause: Cause, decision: str) -> Hypothesis:
    signs = list(_signs(view, cause))
    return Hypothesis(
        cause=cause.cause,
        function=cause.block.focus.label,
        workers=tuple(view.fleet.ranks[worker] for worker in cause.block.workers),
        scope=cause.block.scope,
        gain=round(cause.gain, 4),
        decision=decision,
        met=tuple(text for word, text in signs if word == "met"),
        missing=tuple(text for word, text in signs if word == "missing"),
        unknown=tuple(text for word, text in signs if word == "unknown"),
    )


def _signs(view: View, cause: Cause) -> Iterator[tuple[str, str]]:
    """Yield the signs that every cause needs: a sure excess, others that wait for it, a function, a reference."""
    block = cause.block
    sure = f"{min(block.strength, 999):.1f} standard errors above that over {view.iterations} iterations"
    yield ("met" if block.strength >= SURE else "missing"), sure
    is_weak = block.reference in ("expectation", "slowdown")
    yield ("unknown" if is_weak else "met"), _REFERENCES[block.reference].format(view.past_window)
    if block.agreement is not None:
        seen = f"the others wait for {percent(block.agreement)} of it"
        yield ("met" if block.agreement >= LEAST_AGREEMENT else "missing"), seen
    if block.focus.functions:
        yield (
            ("met" if block.focus.share >= MOST else "missing"),
            f"the function holds {percent(block.focus.share)} of it",
        )
    else:
        yield "missing", "no function accounts for it"
    row = flagged_row(view, block)
    if row is not None:
        yield "met", describe_row(row)
    if cause.cause == "unknown":
        yield "unknown", "which kind of cause it is"


def flagged_row(view: View, block: Block) -> SuspectRow | None:
    """Find the candidate's row that the rule flags most clearly; None if it flags none on most of the accused."""
    accused = {view.fleet.ranks[worker] for worker in block.workers}
    found = [
        row
        for row in flag_functions(view.suspects, (*block.rows, *block.focus.functions), view.settings)
        if not accused or len(accused.intersection(row.workers)) >= len(accused) / 2
    ]
    return max(found, key=lambda row: (row.beta * row.distance, row.key), default=None)


def describe_row(row: SuspectRow) -> str:
    """Describe in one clause what the rule flags, and in which of its two halves."""
    where = f"{row.key.name}, on the critical path for {percent(row.beta)} of the window"
    if row.why == "expectation":
        return f"equation 11 flags {where}: {percent(row.distance)} more than its kind should be"
    return f"equation 11 flags {where}: its pattern differs from {percent(row.distance)} of its peers'"
