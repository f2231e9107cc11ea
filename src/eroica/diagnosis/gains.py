"""Settle the gain of a cause where the job's own past tells it better than the window run again.

A window run again without somebody's excess knows nothing of what hangs on it: stages of a pipeline that wait for each
other in turn, memory that has to be written back, threads that find their cores cold. A job that got slower since its
baseline window, and in which one cause accounts for most of that, says itself what the cause costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from eroica.diagnosis.arbiter import Cause, drop
from eroica.diagnosis.limits import MOST
from eroica.diagnosis.speed import held_share
from eroica.diagnosis.view import View
from eroica.model.shares import percent
from eroica.model.window import SLOWER

#: Who lacks cores lacks them for what is no work of its own, too: threads that send, receive and load, and those that
#: wake up late. Busy times show about half of that.
_OF_CORES = frozenset({"cpu-contention", "sibling-process", "misconfiguration"})
_ACCOUNTS_FOR_CORES = 0.35
#: Causes of whole processes: one that is stopped or throttled for a share of the time loses that, whatever it does.
_OF_PROCESSES = frozenset({"compute-slow", "misconfiguration"})
#: And it must account for this share of what all causes gain together.
_LEADS = 0.8
#: What accounts for less than this share of a slowdown leaves room for something else.
MINOR = 0.3
#: Causes that gain less than this share of the growth together leave something else to be found...
HALF = 0.5
#: ...which is worth a word from this share of the iteration on: so much baseline windows on busy cores differ by.
LEAST_LEFT = 0.08


def settle_gains(view: View, causes: Sequence[Cause]) -> list[Cause]:
    """Give the first cause the growth of the iteration as its gain, less what the others gain, if that is more.

    What somebody expects of an iteration is no measurement: a gain that a rule knows stands against it.

    Args:
        view: The window.
        causes: In order of falling gain.
    """
    inside, growth = growth_of(view)
    if not causes or inside <= 0:
        return list(causes)
    first, found = causes[0], causes[0].candidate
    excess = max(found.excess_us - found.older_us, 0.0) / max(view.iteration_us, 1e-9)
    held_W = held_share(view.fleet)[list(found.workers)]
    held = float(held_W.mean()) if held_W.size and found.cause in _OF_PROCESSES else 0.0
    seen = max(first.gain, min(max(excess, held), inside))
    left = inside - seen if seen >= MOST * inside else inside
    causes = [first, *_within(view, causes[1:], left)]
    others = sum(cause.gain for cause in causes[1:])
    rivals = sum(cause.gain for cause in causes[1:] if not _is_longer_everywhere(cause))
    rest, is_known = growth - others, found.gain is not None and view.context.window.purpose not in SLOWER
    is_known |= found.reference == "stages"  # what has always been so has not grown
    accounts = _ACCOUNTS_FOR_CORES if found.cause in _OF_CORES else MOST
    is_minor = seen < max(accounts * inside, MINOR * growth)
    if is_known or first.gain >= rest or is_minor or first.gain < _LEADS * (first.gain + rivals):
        return list(causes)
    why = f"{first.why}; iterations have grown by {percent(rest)} beyond the others, most of which it accounts for"
    return [msgspec.structs.replace(first, gain=rest, is_growth=True, why=why), *causes[1:]]


class Remainder(NamedTuple):
    """Time that causes explain of the growth of iterations, and that growth; microseconds per iteration."""

    explained_us: float
    grown_us: float


def find_remainder(view: View, causes: Sequence[Cause]) -> Remainder | None:
    """Find what causes leave unexplained of the time lost; None where that is noise, and half or most is explained.

    Args:
        view: The window.
        causes: With their settled gains.
    """
    inside, _ = growth_of(view)
    explained_us = explained_of(view, causes)
    explained, grown_us, loss = explained_us / max(view.iteration_us, 1e-9), inside * view.iteration_us, view.loss
    is_rest = loss is not None and loss.rest(explained_us) > 0
    if not causes or (not is_rest and (explained >= HALF * inside or inside - explained < LEAST_LEFT)):
        return None
    return Remainder(explained_us, max(grown_us, loss.now - loss.before if loss is not None else 0.0))


def explained_of(view: View, causes: Sequence[Cause]) -> float:
    """Return what all causes together account for: their gains, or the added time of those of all workers; us."""
    return sum(max(cause.gain * view.iteration_us, _takes_us(cause)) for cause in causes)


def _takes_us(cause: Cause) -> float:
    """Return the time that a cause of all workers adds, microseconds; against an expectation, all of its time."""
    found = cause.candidate
    if found.reference == "expectation":
        return found.mean_us
    return max(found.excess_us - found.older_us, 0.0) if found.agreement is None else 0.0


def doubt_small_causes(view: View, causes: Sequence[Cause]) -> list[Cause]:
    """Lower the confidence in causes that together leave most of a slowdown unexplained.

    A candidate compared with the slowdown itself has that doubt already.
    """
    remainder = find_remainder(view, causes)
    if remainder is None:
        return list(causes)
    belief = min(HALF + remainder.explained_us / remainder.grown_us, 1.0)
    doubted = [msgspec.structs.replace(one.candidate, doubt=one.candidate.doubt * belief) for one in causes]
    return [
        one if one.candidate.reference == "slowdown" else msgspec.structs.replace(one, candidate=found)
        for one, found in zip(causes, doubted, strict=True)
    ]


def _within(view: View, causes: Sequence[Cause], left: float) -> list[Cause]:
    """Bound the gain of collectives that are longer on everybody by what the first cause leaves of the growth.

    They may be longer because of it; what is left may be nothing worth a cause.
    """
    bounded = [
        msgspec.structs.replace(one, gain=min(one.gain, left)) if _is_longer_everywhere(one) else one for one in causes
    ]
    kept = [one for one in bounded if not _is_longer_everywhere(one) or one.gain >= one.candidate.least_gain]
    drop(view, bounded, kept, "the first cause leaves too little of what iterations have grown by")
    return kept


def _is_longer_everywhere(cause: Cause) -> bool:
    return cause.candidate.kind == "collective" and cause.candidate.is_general


def growth_of(view: View) -> tuple[float, float]:
    """Return the growth of the iteration as a share of itself, where somebody finds the job slow; else 0.

    Returns:
        Inside windows, from the healthy one to this one; and, where this one shows it, as the job itself saw it outside
        of windows, which make iterations longer: from its best stretch to when this window was asked for.
    """
    before = view.baseline_us
    if view.is_trace or not view.is_slow or not before or view.iteration_us <= 0:
        return 0.0, 0.0
    inside = max(1 - before / view.iteration_us, 0.0)
    current_s = view.context.window.current_iteration_s
    told = view.slowdown_us / (current_s * 1e6) if current_s and view.shows_slowdown else inside
    return inside, told
