"""Take from candidates what the job spent when it was healthy already: that has not made it slower since.

A worker that has always had more to do than its peers (metrics on the first rank, a server of parameters), or logging
that has always taken its share, stands out in every window. Where somebody asks why a job has become slower, that is no
answer, and a wrong one where the right one is not found.
"""

from __future__ import annotations

import msgspec
import numpy as np

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.limits import MOST
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms
from eroica.model.window import SLOWER

#: Of what something costs, at least this share must have come since, if it is not most of the growth.
_MOSTLY_NEW = 0.5
#: And this share of the iteration: what busy workers do differs by nearly as much from window to window.
_LEAST_NEW = 0.05
#: The rows must hold this share of what is accused: of idle time no row tells whether it was there before.
_HOLDS = 0.5
#: What these are compared with says nothing of before.
_OF_THIS_WINDOW = frozenset({"peers", "expectation"})


def is_older(view: View, now_us: float, then_us: float) -> bool:
    """True if a job got slower since its baseline window and a cost (`now_us`, `then_us`) explains little of that."""
    before_us = view.baseline_us
    if view.context.window.purpose not in SLOWER or view.suspects.baseline is None or not before_us:
        return False
    grown_us = view.pace_us - before_us
    return grown_us >= view.settings.slowdown * before_us and now_us - then_us < MOST * grown_us


def without_older(view: View, found: Candidate) -> Candidate | None:
    """Take from a candidate what the job spent before it got slower; None if what is new of it is little.

    Waiting is another worker's time, and rotating candidates have rules that compare how they rotated.
    """
    waits = found.kind == "collective" and found.scope != "all"
    if found.reference not in _OF_THIS_WINDOW or found.scope == "rotating" or waits or not found.functions:
        return found
    if view.suspects.baseline is None or not found.workers:
        return found
    rows, members = list(found.functions), list(found.workers)
    if not np.isin(view.fleet.ranks, view.suspects.baseline.ranks).all():
        return found
    now_W = view.fleet.critical_us[rows].sum(axis=0)
    then_W = np.nan_to_num(view.suspects.before_us[rows]).sum(axis=0)
    if found.reference == "peers":
        now_W, then_W = (one - np.nan_to_num(view.fleet.usual(one)) for one in (now_W, then_W))
    now_us, then_us = float(now_W[members].mean()), float(then_W[members].mean())
    more_us, tells = now_us - then_us, now_us >= _HOLDS * found.excess_us
    if not (tells and more_us < _MOSTLY_NEW * now_us and is_older(view, now_us, then_us)):
        return found
    older_us = _older(found, now_us, then_us)
    if older_us <= 0:
        return found
    if more_us < max(found.least_gain, _LEAST_NEW) * view.iteration_us:
        return None
    share = 1 - older_us / found.excess_us
    text = f"{format_ms(older_us)} of it per iteration is older: it was there {view.back_then}."
    return msgspec.structs.replace(
        found,
        older_us=older_us,
        removed_us=found.removed_us * share,
        held_W=None if found.held_W is None else found.held_W * share,
        gain=None if found.gain is None else found.gain * share,
        evidence=(*found.evidence, text),
    )


def _older(found: Candidate, now_us: float, then_us: float) -> float:
    """Return the part of an excess that is older, microseconds: an expectation may allow what was there already."""
    if found.reference == "expectation":
        return min(max(then_us - found.reference_us, 0.0), found.excess_us)
    return found.excess_us * max(then_us, 0.0) / max(now_us, 1e-9)
