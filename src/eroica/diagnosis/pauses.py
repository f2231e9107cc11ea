"""Pauses in the job's own Python that come every so many iterations, whatever they are for.

A function that takes half a second in every tenth iteration is lost in means over the iterations that count, for the
slowest are left out of them. Here it is looked for in all: the function that holds most of what some worker spends
above its own usual, then the occasions on which it does. They must be long beside an iteration, must make iterations as
much longer, and must be most of what holds their workers up: pauses by a crowded host fall anywhere. What everybody
does is judged against the baseline window: an optimizer that steps every fourth iteration always did.

Silent on what comes once in a window, and on what comes as seldom as an evaluation.

Array suffixes: W workers, I iterations, R rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.activities import activity_of
from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.frames import Focus, find_focus
from eroica.diagnosis.lateness import LEAST_AGREEMENT, LEAST_STRENGTH
from eroica.diagnosis.limits import MOST
from eroica.diagnosis.occasions import WOULD_SHOW, Occasions, agreement_of, candidate_of, find_occasions, may_be_older
from eroica.diagnosis.reading import describe, doing, python_cause
from eroica.diagnosis.view import View
from eroica.localize.excess import standard_error
from eroica.model.lost import noise_factor
from eroica.model.pattern import BESIDE_INPUT
from eroica.summarize.phases import is_engine_frame

Floats = NDArray[np.float64]
_PHASES = frozenset(BESIDE_INPUT)
#: Fewer iterations do not tell a rhythm.
_FEWEST_ITERATIONS = 10
#: A pause takes at least this share of the usual iteration: a stack sample stands for about that much.
_LEAST_PAUSE = 0.3
#: Two may be chance, unless each is longer than an iteration.
_FEWEST_OCCASIONS = 3
_FEWEST_LONG = 2
#: What is in more of the iterations shows in their means.
_MOST_ITERATIONS = 0.5
#: What comes more seldom is an evaluation, or what the job does by design.
_SELDOM = 50
#: A row that holds less than this share of the least gain is not looked at.
_LEAST_ROW = 0.25
#: A longer hold-up is of another kind (an evaluation): it counts no more than this many pauses.
_AS_LONG = 1.5
#: What all do takes some longer than their peers from this share of it on.
_LONGER = 0.2
#: Functions looked at, the heaviest first.
_MOST_FUNCTIONS = 3


def find_pauses(view: View) -> list[Candidate]:
    """Accuse own functions that take long every so many iterations, at a cost of at least `min_gain`."""
    if view.is_trace or view.whole.iteration_us.shape[1] < _FEWEST_ITERATIONS:
        return []
    rows = _worth_reading(view)
    found: list[Candidate] = []
    for _ in range(_MOST_FUNCTIONS):
        focus = _heaviest(view, rows)
        if focus is None:
            break
        found += _judge(view, focus)
        rows = [row for row in rows if row not in focus.functions]
    return found


def _worth_reading(view: View) -> list[int]:
    """List Python rows outside input that no other rule owns and that hold enough time on some worker."""
    fleet = view.fleet
    least = _LEAST_ROW * view.settings.min_gain * view.whole.mean_iteration_us
    rows = view.rows(kinds=frozenset({"python"}), phases=_PHASES)
    heavy = [row for row in rows if float(fleet.critical_us[row].max()) >= least]
    stacks = [(row, fleet.keys[row].stack) for row in heavy]
    return [
        row
        for row, stack in stacks
        if stack and not is_engine_frame(stack[-1]) and activity_of(stack) not in ("save", "log")
    ]


def _heaviest(view: View, rows: Sequence[int]) -> Focus | None:
    """Find the own function that holds most of what one worker spends above its usual; None if there is none."""
    if not rows:
        return None
    mean_RW, usual_RW = np.zeros((len(rows), view.workers)), np.zeros((len(rows), view.workers))
    for place, row in enumerate(rows):
        series_WI = view.whole.series([row])
        mean_RW[place], usual_RW[place] = series_WI.mean(axis=1), np.median(series_WI, axis=1)
    above_RW = np.maximum(mean_RW - usual_RW, 0.0)
    worker = int(above_RW.sum(axis=0).argmax())
    focus = find_focus(view.fleet.keys, rows, above_RW[:, worker], mean_RW[:, worker])
    return focus if focus is not None and focus.is_own and focus.is_specific else None


def _judge(view: View, focus: Focus) -> Iterator[Candidate]:
    found = find_occasions(view, focus.functions)
    if found is None or not _is_rhythm(found):
        return
    if found.longest_us.mean() < view.settings.min_gain * found.fleet.mean_iteration_us:
        return
    if found.scope != "all" and may_be_older(view, found):
        return
    if not _is_new(view, found):
        yield from _longer_than_others(view, focus, found)
        return
    agreement = agreement_of(found)
    explained = _explains(view, found)
    if explained < MOST or (agreement is not None and agreement < LEAST_AGREEMENT):
        return
    done = doing(view, found.rows, found.accused)
    named = msgspec.structs.replace(focus, share=min(explained, 1.0))
    what = (python_cause(done, is_input=False), "")
    yield _beyond_before(view, found, candidate_of(view, what, found, named, agreement, describe(done)))


def _longer_than_others(view: View, focus: Focus, found: Occasions) -> Iterator[Candidate]:
    """Accuse workers that take longer than their peers, who wait for them, in what everybody has always done."""
    time_WO = found.time_us[:, found.hit]
    usual_WO = found.fleet.usual(time_WO.T).T
    beyond_WO = np.nan_to_num(time_WO - usual_WO)
    more_W, usual_W = beyond_WO.mean(axis=1), np.nan_to_num(usual_WO).mean(axis=1)
    error_W = noise_factor(beyond_WO.shape[1] - 1) * standard_error(beyond_WO)
    late_W = (more_W > 0) & (more_W >= np.maximum(_LONGER * usual_W, LEAST_STRENGTH * error_W))
    if not late_W.any() or late_W.all() or found.count < _FEWEST_OCCASIONS:
        return
    beyond_WI = np.zeros_like(found.time_us)
    beyond_WI[:, found.hit] = np.where(late_W[:, None], np.maximum(beyond_WO, 0.0), 0.0)
    workers = tuple(int(worker) for worker in np.flatnonzero(late_W))
    longer = msgspec.structs.replace(found, time_us=beyond_WI, scope="some", workers=workers, beyond_peers=True)
    agreement, done = agreement_of(longer), doing(view, longer.rows, longer.accused)
    if agreement is not None and agreement >= LEAST_AGREEMENT:
        what = (python_cause(done, is_input=False), "")
        accused = candidate_of(view, what, longer, msgspec.structs.replace(focus, share=1.0), agreement, describe(done))
        mean_us = float(found.time_us[longer.accused].mean())
        beyond = accused.mean_us / max(mean_us, 1e-9)
        yield msgspec.structs.replace(
            accused,
            removed_us=accused.removed_us * beyond,
            mean_us=mean_us,
            reference="peers",
            reference_us=mean_us - accused.mean_us,
        )


def _is_rhythm(found: Occasions) -> bool:
    """True if occasions are too many for chance, more frequent than evaluations, and long beside a usual iteration."""
    usual = float(np.median(found.fleet.iteration_us))
    fewest = _FEWEST_LONG if found.in_iteration_us >= usual else _FEWEST_OCCASIONS
    often = fewest <= found.count and found.interval < _SELDOM and float(found.hit.mean()) <= _MOST_ITERATIONS
    return often and found.in_iteration_us >= _LEAST_PAUSE * usual


def _is_new(view: View, found: Occasions) -> bool:
    """True if others wait for the occasions, or most workers spend longer in them than in the baseline window.

    That window must be long enough to have seen them, unless the job has got slower by about as much since.
    """
    if found.scope != "all":
        return True
    past = view.suspects.baseline
    if past is None:
        return False
    more_us = float(np.median(found.time_us.mean(axis=1) - _before_us(view, found)))
    if more_us < view.settings.min_gain * found.fleet.mean_iteration_us:
        return False
    would_show = past.iteration_us.shape[1] >= WOULD_SHOW * found.interval
    return would_show or (view.is_slow and more_us >= MOST * view.slowdown_us)


def _before_us(view: View, found: Occasions) -> Floats:
    """Return the time of an occasion's rows in the baseline window. float64 [W]."""
    return np.asarray(np.nan_to_num(view.suspects.before_us[list(found.rows)]).sum(axis=0))


def _beyond_before(view: View, found: Occasions, candidate: Candidate) -> Candidate:
    """Take from a candidate what everybody did before, too: that is not gained."""
    if found.scope != "all":
        return candidate
    before_us = float(_before_us(view, found).mean())
    if before_us <= 0:
        return candidate
    kept = max(candidate.mean_us - before_us, 0.0) / max(candidate.mean_us, 1e-9)
    return msgspec.structs.replace(
        candidate,
        gain=(candidate.gain or 0.0) * kept,
        removed_us=candidate.removed_us * kept,
        reference="baseline",
        reference_us=before_us,
    )


def _explains(view: View, found: Occasions) -> float:
    """Return the share of what holds the accused up, beyond their usual, in the function; 0 if it lengthens nothing.

    Saving, logging and collections are set aside: they have rules of their own.
    """
    fleet, each = found.fleet, found.in_iteration_us
    aside = [at for at, key in enumerate(fleet.keys) if key.kind == "gc" or activity_of(key.stack) in ("save", "log")]
    busy_WI = np.maximum(fleet.busy_us - fleet.series(aside), 0.0)[found.accused]
    above_WI = busy_WI - np.median(busy_WI, axis=1, keepdims=True)
    own_WI = found.time_us[found.accused]
    takes_part_WI = own_WI >= each / 2
    longer = float(above_WI[takes_part_WI].sum()) / max(float(own_WI[takes_part_WI].sum()), 1e-9)
    if longer < MOST:
        return 0.0
    held_WI = np.where(above_WI >= each / 2, np.minimum(above_WI, _AS_LONG * each), 0.0)
    return float(np.minimum(own_WI, held_WI).sum()) / max(float(held_WI.sum()), 1e-9)
