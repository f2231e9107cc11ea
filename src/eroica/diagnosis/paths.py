"""Slow transfers of some process groups: a fallback to a slower path, a bad link, or slow paths between hosts.

Array suffixes: W workers, I iterations. Times are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.bad_links import find_bad_links, find_slow_paths
from eroica.diagnosis.candidate import Candidate, Reference
from eroica.diagnosis.detours import find_detours
from eroica.diagnosis.fallback import find_fallback
from eroica.diagnosis.frames import whole_rows
from eroica.diagnosis.lateness import LEAST_AGREEMENT, LEAST_STRENGTH
from eroica.diagnosis.slow_groups import Culprit, SlowGroups, among, find_slow_groups, hosts_of, without_old
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms
from eroica.localize.excess import mean_error

Floats = NDArray[np.float64]


def find_group_transfers(view: View) -> list[Candidate]:
    """Accuse groups slower than like ones, or than in the baseline window, for which others are seen to wait."""
    slow = (without_old(view, found) for found in find_slow_groups(view))
    beside_others = ((found, culprit) for found in slow for culprit in _culprits(view, found))
    judged = [_candidate(view, found, culprit, "peers") for found, culprit in beside_others]
    known = {one.cause for one in judged if one is not None}
    since = (pair for pair in find_detours(view) if pair[1].cause not in known)
    judged += [_candidate(view, found, culprit, "baseline") for found, culprit in since]
    return [one for one in judged if one is not None]


def _culprits(view: View, found: SlowGroups) -> Iterator[Culprit]:
    """Find the culprits of slow groups by their members' use of their paths: the most specific reading counts."""
    for reading in (find_fallback, find_bad_links, find_slow_paths):
        culprit = reading(view, found) if found.slow else None
        if culprit is not None:
            yield culprit
            explained = {one.group for one in culprit.groups}
            found = among(found, [one for one in found.slow if one.group not in explained])


def _candidate(view: View, found: SlowGroups, culprit: Culprit, reference: Reference) -> Candidate | None:
    part = among(found, culprit.groups)
    removed_WI = _removed(view, part)
    excess_I = removed_WI[list(part.members)].mean(axis=0)
    strength = float(excess_I.mean()) / max(float(mean_error(excess_I[None])[0]), 1e-9)
    agreement = _agreement(view, part, float(excess_I.mean()))
    if strength < LEAST_STRENGTH * view.strictness or (agreement is not None and agreement < LEAST_AGREEMENT):
        return None
    waits = "all others wait" if agreement is not None else "all wait for that"
    rows = tuple(sorted({row for one in found.family.groups for row in one.rows}))
    focus = whole_rows(found.family.name, rows)
    return Candidate(
        cause=culprit.cause,
        scope="all" if len(culprit.workers) == view.workers else "some",
        workers=culprit.workers,
        functions=rows,
        focus=focus,
        kind="collective",
        removed_us=removed_WI,
        mean_us=part.slow_us,
        reference_us=float(part.fast_us.mean()),
        reference=reference,
        strength=strength,
        agreement=None if agreement is None else min(agreement, 1.0),
        least_gain=view.settings.min_gain,
        evidence=culprit.evidence,
        hosts=hosts_of(view, culprit.workers),
        sentence=f"{culprit.subject}; {waits} in each {format_ms(view.iteration_us)} iteration.",
        resource=culprit.resource,
        gain=path_gain(view, removed_WI),
        doubt=culprit.doubt * found.belief,
    )


def _removed(view: View, found: SlowGroups) -> Floats:
    """Return the time that transfers of slow groups take beyond those of the fast ones. float64 [W, I]."""
    removed_WI = np.zeros_like(view.fleet.iteration_us)
    for one in found.slow:
        removed_WI[list(one.members)] = np.maximum(one.transfer_us - found.fast_us, 0.0)
    return removed_WI


def _agreement(view: View, found: SlowGroups, excess_us: float) -> float | None:
    """Return by how much less slow groups wait for others than the others do, as a share of their excess.

    None where all workers are in slow groups.
    """
    waited_W = view.suspects.arrivals.waited_us.mean(axis=1)
    own = np.isin(np.arange(view.workers), found.members)
    if excess_us <= 0:
        return 0.0
    if own.all():
        return None
    return float((np.median(waited_W[~own]) - np.median(waited_W[own])) / excess_us)


def path_gain(view: View, removed_WI: Floats) -> float:
    """Compute the gain of shorter transfers, as a fraction of the iteration.

    A worker's path through an iteration is all of it but the waiting for others; the longest path is the iteration. Two
    causes on different workers hide each other, so this gains the larger of what it gains alone and what it adds when
    everybody else is no later than the median.
    """
    path_WI = np.maximum(view.fleet.iteration_us - view.suspects.arrivals.waited_us, 0.0)
    left_WI = np.maximum(path_WI - removed_WI, 0.0)
    touched = removed_WI.any(axis=1)
    usual_I = np.median(path_WI, axis=0)
    alone_I = path_WI.max(axis=0) - left_WI.max(axis=0)
    after_I = path_WI[touched].max(axis=0) - np.maximum(left_WI[touched].max(axis=0), usual_I)
    saved_us = max(float(alone_I.mean()), float(np.maximum(after_I, 0.0).mean()))
    return saved_us / max(view.iteration_us, 1e-9)
