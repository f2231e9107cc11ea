"""Compare two runs function by function.

    patterns ─▶ matching (which function is which) ─▶ table (the same functions and units)
             ─▶ changes (beyond noise, and why) ─▶ word, sentence, doubts

Workers are compared with themselves by global rank, or roles with roles. Waiting in collectives never counts as a
regression: it follows from something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import comb
from typing import Any

import msgspec
import numpy as np

from eroica import __version__
from eroica.compare.changes import Change, Deltas, all_operators, describe, find_changes, predicate, subtract
from eroica.compare.matching import match_functions, unseen_device, without_unlike
from eroica.compare.table import align
from eroica.errors import InputError
from eroica.localize.fleet import Fleet, build_fleet
from eroica.model.comparison import Comparison, ComparisonWord, FunctionChange, Side
from eroica.model.pattern import WorkerPattern
from eroica.model.shares import percent
from eroica.model.verdict import IterationTimes
from eroica.model.words import change as relative
from eroica.model.words import clean, milliseconds, plural, worker_list
from eroica.settings import Settings

__all__ = ["Run", "compare"]

#: Standard errors at which the confidence of a change is a half.
_HALF_STRENGTH = 2.5
_HIGHEST = 0.99
#: Iterations that tell a change from noise.
_FEWEST_ITERATIONS = 2
#: Least standard errors of a changed iteration, and of a function that decides although iterations do not show it.
_ITERATION_ERRORS, _CLEAR_ERRORS = 3.5, 4.0
#: Probability below which chance does not sort all iterations of one run before all of the other's.
_SORTED_BY_CHANCE = 0.02
#: Iterations that changed by less than so many standard errors, or multiples of the least gain, may have by chance.
_SUSPICIOUS_ERRORS, _SMALL = 2.0, 2.0
#: Multiple of the least gain from which iterations are never called equal; noise, as a part of the iteration, from
#: which runs that differ are not.
_NEVER_EQUAL, _BLIND = 3.0, 0.5
_SLOWER = frozenset({"slower", "more-work", "outside-contention", "new"})
#: Setup facts that may differ between the runs, and their names.
_SETTINGS = {
    "device": "the device",
    "torch": "torch",
    "CUDA driver": "the CUDA driver",
    "CUDA runtime": "the CUDA runtime",
    "HIP driver": "the HIP driver",
    "HIP runtime": "the HIP runtime",
}


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a comparison; `damage`: why its recording is not whole, "" if it is."""

    name: str
    patterns: Sequence[WorkerPattern]
    job: str = ""
    notes: tuple[str, ...] = ()
    damage: str = ""


def compare(before: Run, after: Run, settings: Settings = Settings()) -> Comparison:  # noqa: B008 (frozen)
    """Compare two runs; "undetermined" if a side has too few iterations, or they share no function.

    Raises:
        InputError: One side has no pattern at all.
    """
    for run in (before, after):
        if not run.patterns:
            raise InputError(f"{run.name}: no worker's pattern to compare")
    *alike, unlike_note = without_unlike(before.patterns, after.patterns)
    fleets = build_fleet(alike[0], settings), build_fleet(alike[1], settings)
    notes = _differing(fleets)
    summary = f"{notes[0][0].upper()}{'; '.join(notes)[1:]}. " if notes else ""
    word: ComparisonWord = "undetermined"
    too_little = _too_few(fleets)
    found: dict[str, Any] = {}
    if not too_little:
        pairs = match_functions(fleets[0].keys, fleets[1].keys)
        first, second, ranks, units_note = align(*fleets, [*pairs, all_operators(pairs)])
        deltas = subtract(first, second, pairs)
        judged = _Judged(deltas, find_changes(deltas, settings), ranks, settings)
        too_little = unseen_device(before.patterns, after.patterns) or judged.too_little()
        damage = [f"{which}: {run.damage}" for which, run in (("before", before), ("after", after)) if run.damage]
        if damage and not too_little and judged.word == "equal":
            too_little = f"nothing changed in what is left, but {damage[0]}"
        word = "undetermined" if too_little else judged.word
        summary += "" if too_little else judged.summary(word)
        more = [unlike_note, units_note, judged.blind_note() if word == "equal" else ""]
        notes += [*filter(None, more), *_notes(deltas, by_rank=not units_note)]
        changes = tuple(judged.row(order, change) for order, change in enumerate(judged.changes, start=1))
        found = {"changes": changes, "explained": judged.explained()}
    sides = [_side(run, fleet) for run, fleet in zip((before, after), fleets, strict=True)]
    return Comparison(
        eroica_version=__version__,
        comparison=word,
        summary=f"{summary}Too little to tell: {too_little}." if too_little else summary,
        before=sides[0],
        after=sides[1],
        iteration=IterationTimes(baseline_ms=sides[0].iteration_ms, current_ms=sides[1].iteration_ms),
        notes=tuple(notes),
        **found,
    )


def _too_few(fleets: tuple[Fleet, Fleet]) -> str:
    """Return which run has too few iterations to tell a change from noise; "" if none has."""
    counts = [fleet.iteration_us.shape[1] for fleet in fleets]
    if min(counts) >= _FEWEST_ITERATIONS:
        return ""
    which = ("the first run", "the second run")[counts.index(min(counts))]
    words = "one iteration" if min(counts) == 1 else "no iteration that all its workers share"
    return f"{which} has {words}, which does not tell a change from noise"


def _side(run: Run, fleet: Fleet) -> Side:
    count = int(fleet.iteration_us.shape[1])
    mean_ms = round(fleet.mean_iteration_us / 1e3, 3) if count else 0.0
    return Side(
        name=run.name, job=run.job, workers=fleet.ranks, iterations=count, iteration_ms=mean_ms, notes=run.notes
    )


def _differing(fleets: tuple[Fleet, Fleet]) -> list[str]:
    """Return devices, versions and sizes that differ, a clause each."""
    found = []
    for name, title in _SETTINGS.items():
        sides = [sorted({p.setup[name] for p in fleet.patterns if p.setup.get(name)}) for fleet in fleets]
        if all(sides) and sides[0] != sides[1]:
            before, after = (clean(", ".join(side), 80) for side in sides)
            found.append(f"{title} differs: {before} before, {after} after")
    worlds = [max(p.worker.world_size for p in fleet.patterns) for fleet in fleets]
    if worlds[0] != worlds[1] and min(worlds) > 0:
        found.append(f"the number of workers differs: {worlds[0]} before, {worlds[1]} after")
    return found


class _Judged:
    """The changes of two runs, and what they say of the iterations.

    Attributes:
        changes: The largest first, waits last.
        direction: 1 if iterations got longer beyond noise and the least gain, -1 if shorter, else 0.
    """

    def __init__(
        self, deltas: Deltas, changes: Sequence[Change], ranks: Sequence[tuple[int, ...]], settings: Settings
    ) -> None:
        self.deltas, self.changes, self.ranks, self.settings = deltas, changes, ranks, settings
        self.before_us, self.after_us = deltas.before.iteration_us, deltas.after.iteration_us
        self.error_us = float(np.hypot(deltas.before.iteration_error_us, deltas.after.iteration_error_us))
        self.least_us = settings.min_gain * self.before_us
        change = self.after_us - self.before_us
        is_clear = abs(change) >= _ITERATION_ERRORS * self.error_us or self._are_apart()
        self.direction = int(np.sign(change)) if is_clear and abs(change) >= self.least_us else 0
        self.own = [one for one in changes if one.reason != "waiting"]
        clear = [one for one in self.own if one.strength >= _CLEAR_ERRORS]
        self.worse = [one for one in clear if self._is_slower(one)]
        self.better = [one for one in clear if one.change_ms < 0 and self._busy_change(one) <= -self.least_us]

    def _are_apart(self) -> bool:
        """Return whether all iterations of one run are longer than all of the other, and hardly by chance."""
        before_I, after_I = (side.fleet.iteration_us.mean(axis=0) for side in (self.deltas.before, self.deltas.after))
        is_sorted = before_I.max() < after_I.min() or after_I.max() < before_I.min()
        return bool(is_sorted) and comb(before_I.size + after_I.size, before_I.size) * _SORTED_BY_CHANCE >= 1

    def _is_slower(self, change: Change) -> bool:
        """Return whether a function got slower, and its workers are busy for longer."""
        return change.reason in _SLOWER and change.change_ms > 0 and self._busy_change(change) >= self.least_us

    def _busy_change(self, change: Change) -> float:
        """Return by how much the units are busy for longer, without waiting; mean over them, microseconds."""
        units, before, after = list(change.units), self.deltas.before, self.deltas.after
        busy_us, transfer_us = after.busy_us - before.busy_us, after.transfer_us - before.transfer_us
        return float((np.nan_to_num(busy_us[units]) + np.nan_to_num(transfer_us[units])).mean())

    @property
    def word(self) -> ComparisonWord:
        """The word of the comparison, if there is enough to tell."""
        if self.direction > 0 or self.worse:
            return "regression"
        return "improvement" if self.direction < 0 or self.better else "equal"

    # --- doubts: CI relies on "equal" ---

    def too_little(self) -> str:
        """Return why the runs cannot be compared, or not be called equal; "" if they can."""
        if not any(pair.before and pair.after for pair in self.deltas.pairs):
            return "the two runs have no function in common"
        if self.direction or self.worse or (self.better and self.after_us <= self.before_us):
            return ""
        counts = [side.fleet.iteration_us.shape[1] for side in (self.deltas.before, self.deltas.after)]
        few = f"{' and '.join(map(str, dict.fromkeys(counts)))} iterations; record more of each run"
        if self._may_differ():
            text = self._iterations_take()
            return f"{text[0].lower()}{text[1:]}, which lies within the noise of {few}"
        unsure = next((change for change in self.own if self._is_slower(change)), None)
        if unsure is None:
            return ""
        name = f"{clean(unsure.name, 80)} on {worker_list(self._ranks(unsure))}"
        return f"{milliseconds(unsure.change_ms)} more in {name} are hardly beyond the noise of {few}"

    def _may_differ(self) -> bool:
        """Return whether iterations look longer or shorter, and not plainly by chance."""
        change = abs(self.after_us - self.before_us)
        if self.before_us <= 0 or change < self.least_us or self.error_us <= 0:
            return False
        is_chance = change < max(_SUSPICIOUS_ERRORS * self.error_us, _SMALL * self.least_us)
        is_small = change < _NEVER_EQUAL * self.least_us and _ITERATION_ERRORS * self.error_us < _BLIND * self.before_us
        return not (is_chance and is_small)

    def blind_note(self) -> str:
        """Return the change that equal runs would not have shown; "" if it is small."""
        least = _ITERATION_ERRORS * self.error_us / max(self.before_us, 1e-9)
        if least <= _NEVER_EQUAL * self.settings.min_gain:
            return ""
        return f"in the noise of these iterations a change by less than {percent(least)} is not seen"

    # --- sentences and rows ---

    def _iterations_take(self) -> str:
        sides = f"{milliseconds(self.after_us / 1e3)} instead of {milliseconds(self.before_us / 1e3)}"
        return f"Iterations take {sides} ({relative(self.before_us, self.after_us)})"

    def summary(self, word: ComparisonWord) -> str:
        """Return the sentence of the comparison."""
        if self.direction:
            wanted = [change for change in self.own if change.change_ms * self.direction > 0]
            return f"{self._iterations_take()}: {self._main(wanted) if wanted else self._only_waiting()}."
        before, after = milliseconds(self.before_us / 1e3), milliseconds(self.after_us / 1e3)
        same = f"Iterations are as long as before ({before} and {after})"
        if abs(self.after_us - self.before_us) >= self.least_us:
            same = f"{self._iterations_take()}, which is within their noise"
        if word != "equal":
            return f"{same}, but {self._main(self.worse if word == 'regression' else self.better)}."
        if not self.own:
            least = percent(self.settings.min_gain)
            return f"{same}, and no function changed beyond noise by {least} of that or more."
        evens_out = bool((np.abs(self._summed()) < self.least_us).all())
        so = "what changed evens out" if evens_out else "what changed does not show in them"
        return f"{same}; {so}: {self._main(self.own)}."

    def _main(self, changes: Sequence[Change]) -> str:
        more = f"; {plural(len(changes) - 1, 'other change')} below" if len(changes) > 1 else ""
        first = changes[0]
        return f"{clean(first.name, 80)} {predicate(first)} on {worker_list(self._ranks(first))}{more}"

    def _only_waiting(self) -> str:
        """Return the clause for an iteration that no function explains."""
        waits = [one for one in self.changes if one.reason == "waiting" and one.change_ms * self.direction > 0]
        if not waits:
            return "no single function explains it"
        if all(map(self._is_apart, waits)):
            return "workers wait differently for each other"
        return f"{self._main(waits)}; whether it waits or the transfer changed takes the other workers' patterns"

    def _is_apart(self, change: Change) -> bool:
        """Return whether waiting was separated from the transfer itself."""
        transfer_us = self.deltas.after.transfer_us - self.deltas.before.transfer_us
        return not np.isnan(transfer_us[list(change.units)]).any()

    def _ranks(self, change: Change) -> tuple[int, ...]:
        return tuple(sorted({rank for unit in change.units for rank in self.ranks[unit]}))

    def _summed(self) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """Return the changes of each unit together, waits left out, microseconds. float64 [U]."""
        sums_U = np.zeros(self.deltas.change_us.shape[1])
        for change in self.own:
            sums_U[list(change.units)] += change.change_us
        return sums_U

    def explained(self) -> float | None:
        """Return the share of the iteration's change that changes explain, on the worker with the most."""
        if not self.direction:
            return None
        shares_U = self._summed() / (self.after_us - self.before_us)
        return round(float(np.clip(shares_U, 0.0, 1.0).max(initial=0.0)), 3) + 0.0

    def row(self, order: int, change: Change) -> FunctionChange:
        """Return a change for the record."""
        alone, mu = len(change.functions) == 1, [None if one is None else round(one, 4) for one in change.mu]
        share = 1e3 * change.change_ms / max(self.before_us, 1e-9)
        near = 1 - 0.5 * float(np.exp(-abs(share) / max(self.settings.min_gain, 1e-9)))  # less near the least gain
        sure = change.strength**2 / (change.strength**2 + _HALF_STRENGTH**2)
        return FunctionChange(
            order=order,
            name=change.name,
            kind=change.key.kind,
            phase=change.key.phase if alone else "other",
            stack=change.key.stack if alone else (),
            workers=self._ranks(change),
            reason=change.reason,
            change_ms=round(change.change_ms, 4),
            before_ms=round(change.time_ms[0], 4),
            after_ms=round(change.time_ms[1], 4),
            share=round(share, 4),
            count_before=round(change.count[0], 3),
            count_after=round(change.count[1], 3),
            mean_before_ms=round(change.length_ms[0], 5),
            mean_after_ms=round(change.length_ms[1], 5),
            utilization_before=mu[0],
            utilization_after=mu[1],
            confidence=round(float(np.clip(sure * near, 0.01, _HIGHEST)), 3),
            text=describe(change, self._is_apart(change)),
            functions=len(change.functions),
        )


def _notes(deltas: Deltas, by_rank: bool) -> Iterator[str]:
    """Yield notes on what differs between the runs, and on what is missing."""
    fleets = deltas.before.fleet, deltas.after.fleet
    devices = [sorted({p.worker.device.partition(":")[0] for p in fleet.patterns}) for fleet in fleets]
    if devices[0] != devices[1]:
        yield f"different devices: {', '.join(devices[0])} before, {', '.join(devices[1])} after"
    gone = set(fleets[0].ranks) ^ set(fleets[1].ranks)
    if gone and by_rank:
        yield f"{len(gone)} worker{' is' if len(gone) == 1 else 's are'} in one of the runs only"
    for fleet, which in zip(fleets, ("first", "second"), strict=True):
        dropped = sum(p.dropped_critical_s for p in fleet.patterns) / max(
            sum(p.duration_s for p in fleet.patterns), 1e-9
        )
        if dropped > 0.02:
            yield f"{100 * dropped:.0f} % of the {which} run lies in functions too small to have been kept"
    if not any(~np.isnan(side.mu[side.total_us > 0]).all() for side in (deltas.before, deltas.after)):
        yield "no utilization was sampled: slower hardware cannot be told from other processes on the device"
