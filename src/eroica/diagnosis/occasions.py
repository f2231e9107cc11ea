"""Occasions, work that comes every so many iterations: its iterations, its workers, its duration and its cost.

The slowest iterations, which are left out elsewhere as one-offs, are what it is about, so all captured ones count.

Array suffixes: W workers, I iterations (all captured ones that everybody has), O occasions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.frames import Focus
from eroica.diagnosis.limits import MOST
from eroica.diagnosis.reading import library_frame
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms, name_workers
from eroica.localize.fleet import Fleet
from eroica.model.shares import percent
from eroica.model.window import SLOWER

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
#: An iteration with this share of the longest one's time is an occasion; samples that fell beside it are not.
_OCCASION = 0.2
#: In a window of so many iterations, one occasion may be the only one in hundreds.
_FEW_ITERATIONS = 4
#: A worker takes part in an occasion with half of its longest time, and is accused if it does so in most of them.
_PART = 0.5
#: With occasions in this share of the iterations it happens in (nearly) each of them.
_ALWAYS = 0.8
#: Standard errors that one occasion is worth at most: they may have met the window by chance.
_PER_OCCASION = 3.0
_KNOWN = 20.0
#: A baseline window of so many times the interval has seen what comes so often.
WOULD_SHOW = 1.2


class Occasions(msgspec.Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """Occasions: iterations in which some rows took long, and the workers on which they did.

    Attributes:
        fleet: The window with all iterations.
        rows: Rows (indices) that show the occasions.
        time_us: Time of these rows. float64 [W, I].
        hit: Iterations with an occasion. bool [I].
        count: Runs of such iterations; of what is always there, the iterations.
        scope: Of some workers, of all, or rotating.
        workers: Workers (indices) that take part; empty if that rotates.
        beyond_peers: Everybody takes part, and `time_us` is the excess of these over their peers.
        stated_interval: Iterations from one occasion to the next, where the window is not what tells; else 0.
    """

    fleet: Fleet
    rows: tuple[int, ...]
    time_us: Floats
    hit: Flags
    count: int
    scope: Literal["some", "all", "rotating"]
    workers: tuple[int, ...]
    beyond_peers: bool = False
    stated_interval: float = 0.0

    @cached_property
    def accused(self) -> list[int]:
        """Workers whose time counts."""
        return list(self.workers) or list(range(len(self.fleet.ranks)))

    @cached_property
    def is_other(self) -> Flags:
        """Workers that are not accused. bool [W]."""
        other_W = np.ones(len(self.fleet.ranks), dtype=np.bool_)
        other_W[self.accused] = False
        return other_W

    @cached_property
    def near(self) -> Flags:
        """Iterations with an occasion and those right after: a worker late at an end is waited for then. bool [I]."""
        return np.asarray(self.hit | np.append(False, self.hit[:-1]), dtype=np.bool_)

    @cached_property
    def longest_us(self) -> Floats:
        """Time on the accused worker that takes longest. float64 [I]."""
        return np.asarray(self.time_us[self.accused].max(axis=0))

    @property
    def each_us(self) -> float:
        """Time of an occasion: on the worker that takes longest, mean."""
        return float(self.longest_us[self.hit].sum()) / max(self.count, 1)

    @property
    def in_iteration_us(self) -> float:
        """Time of an occasion in one iteration: it may last for several."""
        return float(self.longest_us[self.hit].mean())

    @property
    def is_constant(self) -> bool:
        """True if (nearly) every iteration is an occasion."""
        return float(self.hit.mean()) >= _ALWAYS

    @property
    def interval(self) -> float:
        """Iterations from one occasion to the next."""
        return self.stated_interval or self.hit.size / max(self.count, 1)


def find_occasions(view: View, rows: tuple[int, ...]) -> Occasions | None:
    """Find when some rows took long; None if never, or once in a window of several iterations."""
    fleet = view.whole
    time_WI = fleet.series(rows)
    longest_I = time_WI.max(axis=0)
    if not longest_I.max(initial=0.0):
        return None
    hit = longest_I >= _OCCASION * longest_I.max()
    always = float(hit.mean()) >= _ALWAYS
    count = int(hit.sum()) if always else runs_of(hit)
    if count < 2 and hit.size >= _FEW_ITERATIONS:
        return None
    scope, workers = whose(time_WI[:, hit])
    return Occasions(fleet=fleet, rows=rows, time_us=time_WI, hit=hit, count=count, scope=scope, workers=workers)


def may_be_older(view: View, found: Occasions) -> bool:
    """True if occasions may have come as seldom in the baseline window, which was too short to show them.

    Where a job has got slower, unless it costs most of that, or iterations without it are as long as then.
    """
    past = view.suspects.baseline
    if past is None or view.context.window.purpose not in SLOWER or found.stated_interval:
        return False
    would_show = past.iteration_us.shape[1] >= WOULD_SHOW * found.interval
    beyond_us = float(np.maximum(found.longest_us - np.median(found.longest_us), 0.0).mean())
    cost_us = float(found.longest_us.mean()) if found.is_constant else beyond_us
    usual_us, before_us = (float(np.median(one.iteration_us)) for one in (found.fleet, past))
    has_usual_grown = usual_us - before_us >= (1 - MOST) * view.slowdown_us
    return not would_show and has_usual_grown and cost_us < MOST * view.slowdown_us


def runs_of(hit_I: Flags) -> int:
    """Count runs of iterations that follow each other."""
    return int(np.count_nonzero(hit_I & ~np.append(False, hit_I[:-1])))


def whose(time_WO: Floats) -> tuple[Literal["some", "all", "rotating"], tuple[int, ...]]:
    """Return the scope and the workers that take part: all, some each time, or another one each time."""
    takes_part_W = (time_WO >= _PART * time_WO.max(axis=0)).mean(axis=1)
    total_W = time_WO.sum(axis=1)
    late_W = (takes_part_W >= _PART) | (total_W >= _PART * total_W.max())
    if takes_part_W.max() < _PART and time_WO.shape[1] > 2:
        return "rotating", ()
    return ("all" if late_W.all() else "some"), tuple(int(worker) for worker in np.flatnonzero(late_W))


def agreement_of(found: Occasions) -> float | None:
    """Return the share of the accused time that the others wait for, in these iterations and the ones after them.

    A worker that saves behind its optimizer step is waited for in the next iteration's collectives.
    """
    if found.scope == "all":
        return None
    wait_WI, time_WI = found.fleet.wait_us[:, found.near], found.time_us[:, found.near]
    if found.scope == "rotating":
        more = wait_WI.max(axis=0) - wait_WI.min(axis=0)
        return float(np.clip(more.sum() / max(float(time_WI.max(axis=0).sum()), 1e-9), 0.0, 1.0))
    wait_W = wait_WI.sum(axis=1)
    deficit_W = np.nan_to_num(found.fleet.usual(wait_W) - wait_W)
    beyond_W = np.maximum(deficit_W, wait_W[found.is_other].mean() - wait_W)
    share_W = beyond_W[found.accused] / np.maximum(time_WI[found.accused].sum(axis=1), 1e-9)
    return float(np.clip(share_W, 0.0, 1.0).min())


def candidate_of(
    view: View, what: tuple[str, str], found: Occasions, focus: Focus, agreement: float | None, more: Sequence[str] = ()
) -> Candidate:
    """Build the candidate that accuses the workers that took part.

    Args:
        view: The window.
        what: Cause, and what is done in words ("logging"; may be empty).
        found: The occasions.
        focus: The function to name.
        agreement: Share that the others wait for, as `agreement_of` tells.
        more: Evidence beyond that of the occasions.
    """
    lost_us = float(found.longest_us.mean())
    gain = lost_us / max(found.fleet.mean_iteration_us, 1e-9) * (1.0 if agreement is None else min(agreement, 1.0))
    return Candidate(
        cause=what[0],
        scope=found.scope,
        workers=found.workers,
        functions=found.rows,
        focus=focus,
        kind="python",
        removed_us=np.where(found.is_other[:, None], 0.0, view.fleet.series(found.rows)),
        mean_us=float(found.time_us[found.accused].mean()),
        reference_us=0.0,
        reference="expectation",
        strength=_strength(found),
        coverage=focus.share,
        agreement=agreement,
        least_gain=view.settings.min_gain,
        evidence=(*_evidence(view, found, focus, what[1]), *more),
        gain=min(gain, 1.0),
        sentence=_sentence(view, found, focus, what[1]),
    )


def _strength(found: Occasions) -> float:
    """Estimate the strength of the time spent: by the samples that hit it, and by the number of occasions."""
    rows, accused = list(found.rows), found.accused
    error = float(np.sqrt((found.fleet.error_us[rows][:, accused] ** 2).sum(axis=0)).mean())
    mean = float(found.fleet.critical_us[rows][:, accused].sum(axis=0).mean())
    by_samples = mean / error if error > 0 else _KNOWN
    return min(by_samples, _PER_OCCASION * float(np.sqrt(found.count)), _KNOWN)


def _sentence(view: View, found: Occasions, focus: Focus, what: str) -> str:
    each = format_ms(found.each_us)
    how_often = (
        f"of each {format_ms(view.iteration_us)} iteration" if found.is_constant else f"{_every(found)}, each time"
    )
    who, waits = "One worker after another", "; all others wait for it"
    if found.scope != "rotating":
        ranks = [view.fleet.ranks[worker] for worker in found.workers]
        one = len(ranks) == 1
        who = (
            name_workers(ranks, capital=True)
            if found.scope == "some"
            else "The worker"
            if one
            else f"All {len(ranks)} workers"
        )
        others = view.workers - len(ranks)
        whom = "it" if one else "them"
        waits = f"; the other {f'{others} workers wait' if others > 1 else 'worker waits'} for {whom}" if others else ""
    ending = "s" if found.scope == "rotating" or len(found.workers) == 1 else ""
    each = f"{each} more than the peers" if found.beyond_peers else each
    return f"{who} spend{ending} {each} {how_often}, in {focus.label}{f' {what}' if what else ''}{waits}."


def _every(found: Occasions) -> str:
    return f"about every {found.interval:.0f} iterations"


def _evidence(view: View, found: Occasions, focus: Focus, what: str) -> Iterator[str]:
    iterations = found.hit.size
    lost = float(found.longest_us.sum())
    share = lost / max(float(found.fleet.iteration_us.mean(axis=0).sum()), 1e-9)
    each, whither = format_ms(found.each_us), what or focus.label
    if found.beyond_peers:
        each, whither = f"{each} more than the peers", "what is longer there"
    often = "Once" if found.count == 1 else f"{found.count} times"
    yield (
        f"{often} in the {iterations} captured iterations, {each} each: {percent(share)} of the window "
        f"goes into {whither}."
    )
    leaf = library_frame(view, focus)
    if leaf:
        yield f"Its heaviest stack ends in {leaf}."
    if found.scope == "some":
        wait_WI = found.fleet.wait_us[:, found.near]
        theirs, own = (wait_WI[side].mean() for side in (found.is_other, ~found.is_other))
        who = name_workers([view.fleet.ranks[worker] for worker in found.workers])
        yield (
            f"In and right after these iterations the others spend {format_ms(float(theirs))} per iteration in "
            f"collectives, {who} {format_ms(float(own))}."
        )
    if not found.is_constant and not found.beyond_peers:
        kept = ~found.hit
        with_it, without = (float(found.fleet.iteration_us[:, side].mean()) for side in (found.hit, kept))
        yield f"An iteration takes {format_ms(with_it)} with it and {format_ms(without)} without."
