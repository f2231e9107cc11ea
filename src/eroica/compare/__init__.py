"""Compare two runs function by function.

    patterns ─▶ matching (which function is which) ─▶ table (the same functions and units)
             ─▶ changes (beyond noise, and why) ─▶ conclusion (word, sentence, doubts)

Workers are compared with themselves by global rank, or roles with roles. Waiting in collectives never counts as a
regression: it follows from something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from eroica import __version__
from eroica.compare.changes import Change, Deltas, explain, find_changes, measure, subtract
from eroica.compare.conclusion import (
    FEWEST_ITERATIONS,
    Told,
    blind_note,
    choose_word,
    describe,
    explained_share,
    find_doubt,
    summarize,
)
from eroica.compare.matching import match_functions, unseen_device, without_unlike
from eroica.compare.table import Table, align, mean_iteration
from eroica.errors import InputError
from eroica.localize.fleet import Fleet, build_fleet
from eroica.model.comparison import ChangeReason, Comparison, FunctionChange, Side
from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import IterationTimes
from eroica.model.words import clean
from eroica.settings import Settings

__all__ = ["Run", "compare"]

_HALF_STRENGTH = 2.5
_HIGHEST = 0.99
#: Part of a changed iteration below which smaller changes are told as well.
_WELL_EXPLAINED = 0.5


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
    *alike, unlike_note = without_unlike(before.patterns, after.patterns)
    before, after = (
        msgspec.structs.replace(run, patterns=own) for run, own in zip((before, after), alike, strict=True)
    )
    fleets = _fleet(before, settings), _fleet(after, settings)
    pairs = match_functions(fleets[0].keys, fleets[1].keys)
    first, second, ranks, units_note = align(*fleets, pairs)
    deltas = subtract(first, second, pairs)
    told = _tell(deltas, find_changes(deltas, settings), ranks, settings)
    share = explained_share(deltas, told, settings)
    if share is not None and share < _WELL_EXPLAINED:
        told = _tell(deltas, find_changes(deltas, settings, detailed=True), ranks, settings)
        share = explained_share(deltas, told, settings)
    too_little = unseen_device(before.patterns, after.patterns) or _too_little(deltas)
    too_little = too_little or find_doubt(deltas, told, settings)
    word = choose_word(deltas, told, too_little, settings)
    damage = next((f"{which}: {run.damage}" for which, run in (("before", before), ("after", after)) if run.damage), "")
    if word == "equal" and damage:
        too_little = f"nothing changed in what is left, but {damage}"
        word = "undetermined"
    return Comparison(
        eroica_version=__version__,
        comparison=word,
        summary=_with_setting(summarize(deltas, told, word, too_little, settings), fleets),
        before=_side(before, first),
        after=_side(after, second),
        iteration=IterationTimes(
            baseline_ms=round(first.iteration_us / 1e3, 3), current_ms=round(second.iteration_us / 1e3, 3)
        ),
        changes=tuple(_row(order, row, deltas, settings) for order, row in enumerate(told, start=1)),
        explained=share,
        notes=(
            *_setting(fleets),
            *filter(None, [unlike_note, units_note, blind_note(deltas, settings) if word == "equal" else ""]),
            *_notes(deltas, by_rank=not units_note),
        ),
    )


#: Setup facts that may differ between the runs, and their names.
_SETTINGS = {
    "device": "the device",
    "torch": "torch",
    "CUDA driver": "the CUDA driver",
    "CUDA runtime": "the CUDA runtime",
    "HIP driver": "the HIP driver",
    "HIP runtime": "the HIP runtime",
}


def _setting(fleets: tuple[Fleet, Fleet]) -> list[str]:
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


def _with_setting(summary: str, fleets: tuple[Fleet, Fleet]) -> str:
    """Return the sentence behind the setup facts that differ."""
    found = _setting(fleets)
    if not found:
        return summary
    text = "; ".join(found)
    return f"{text[0].upper()}{text[1:]}. {summary}"


def _fleet(run: Run, settings: Settings) -> Fleet:
    if not run.patterns:
        raise InputError(f"{run.name}: no worker's pattern to compare")
    return build_fleet(run.patterns, settings)


def _side(run: Run, table: Table) -> Side:
    fleet = table.fleet
    return Side(
        name=run.name,
        job=run.job,
        workers=fleet.ranks,
        iterations=int(fleet.iteration_us.shape[1]),
        iteration_ms=round(mean_iteration(fleet) / 1e3, 3),
        notes=run.notes,
    )


def _tell(
    deltas: Deltas, changes: Sequence[Change], ranks: Sequence[tuple[int, ...]], settings: Settings
) -> list[Told]:
    """Return changes with reasons, the largest first, waits last."""
    waits = _waits(deltas)
    rows = [_told(change, deltas, ranks, waits) for change in _with_collectives(changes, deltas, waits)]
    return sorted(rows, key=lambda row: (row.reason == "waiting", -abs(row.change_ms), row.name))


def _with_collectives(changes: Sequence[Change], deltas: Deltas, waits_U: Sequence[bool]) -> list[Change]:
    """Add collectives whose own time grew as the operators' did to the change of all operators."""
    told = list(changes)
    for alike in [change for change in changes if change.alike and change.change_us.mean() > 0]:
        most = 2.0 * (measure(alike, deltas).length_ratio - 1.0)
        belonging = [
            change
            for change in told
            if deltas.pairs[change.functions[0]].key.kind == "collective"
            and set(change.units) <= set(alike.units)
            and change.change_us.mean() > 0
            and not _mostly_waits(change, waits_U)
            and measure(change, deltas).length_ratio - 1.0 <= most
        ]
        together = alike
        for change in belonging:
            together = _added(together, change)
        told = [together, *(change for change in told if change is not alike and change not in belonging)]
    return told


def _mostly_waits(change: Change, waits_U: Sequence[bool]) -> bool:
    return 2 * sum(waits_U[unit] for unit in change.units) >= len(change.units)


def _added(broad: Change, change: Change) -> Change:
    extra = dict(zip(change.units, change.change_us.tolist(), strict=True))
    return msgspec.structs.replace(
        broad,
        functions=(*broad.functions, *change.functions),
        change_us=broad.change_us + np.asarray([extra.get(unit, 0.0) for unit in broad.units]),
    )


def _told(change: Change, deltas: Deltas, ranks: Sequence[tuple[int, ...]], waits_U: Sequence[bool]) -> Told:
    figures = measure(change, deltas)
    reason: ChangeReason = explain(change, figures, deltas)
    kind = deltas.pairs[change.functions[0]].key.kind
    if kind == "collective" and _mostly_waits(change, waits_U):
        reason = "waiting"
    return Told(
        change=change,
        figures=figures,
        reason=reason,
        name=_name(change, deltas),
        workers=tuple(sorted({rank for unit in change.units for rank in ranks[unit]})),
        apart=not np.isnan(deltas.after.transfer_us - deltas.before.transfer_us)[list(change.units)].any(),
    )


def _waits(deltas: Deltas) -> list[bool]:
    """Return the units whose change in critical collective time is mostly waiting, or may be."""
    collectives = np.asarray([pair.key.kind == "collective" for pair in deltas.pairs], dtype=np.bool_)
    total_U = deltas.change_us[collectives].sum(axis=0)
    own_U = deltas.after.transfer_us - deltas.before.transfer_us
    error_U = np.hypot(deltas.before.transfer_error_us, deltas.after.transfer_error_us)
    is_own_U = (own_U * np.sign(total_U) >= np.abs(total_U) / 2) & (np.abs(own_U) >= 3.0 * error_U)
    return [not own for own in is_own_U.tolist()]


def _name(change: Change, deltas: Deltas) -> str:
    if not change.alike:
        return deltas.pairs[change.functions[0]].key.name
    own = sum(deltas.pairs[function].is_operator for function in change.functions)
    which = "all" if own >= 0.9 * sum(pair.is_operator for pair in deltas.pairs) else "most"
    return f"{which} operators{' and collectives' if own < len(change.functions) else ''}"


def _row(order: int, row: Told, deltas: Deltas, settings: Settings) -> FunctionChange:
    key = deltas.pairs[row.change.functions[0]].key
    figures = row.figures
    return FunctionChange(
        order=order,
        name=row.name,
        kind=key.kind,
        phase="other" if row.change.alike else key.phase,
        stack=() if row.change.alike else key.stack,
        workers=row.workers,
        reason=row.reason,
        change_ms=round(row.change_ms, 4),
        before_ms=round(figures.time_ms[0], 4),
        after_ms=round(figures.time_ms[1], 4),
        share=round(1e3 * row.change_ms / max(deltas.before.iteration_us, 1e-9), 4),
        count_before=round(figures.count[0], 3),
        count_after=round(figures.count[1], 3),
        mean_before_ms=round(figures.length_ms[0], 5),
        mean_after_ms=round(figures.length_ms[1], 5),
        utilization_before=_rounded(figures.mu[0]),
        utilization_after=_rounded(figures.mu[1]),
        confidence=_confidence(row, deltas, settings),
        text=describe(row, key),
        functions=len(row.change.functions),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _confidence(row: Told, deltas: Deltas, settings: Settings) -> float:
    """Return the confidence: half at 2.5 standard errors, and less near the least gain."""
    effect = row.change.strength**2 / (row.change.strength**2 + _HALF_STRENGTH**2)
    share = abs(row.change_ms) * 1e3 / max(deltas.before.iteration_us, 1e-9)
    size = 1 - 0.5 * float(np.exp(-share / max(settings.min_gain, 1e-9)))
    return round(float(np.clip(effect * size, 0.01, _HIGHEST)), 3)


def _too_little(deltas: Deltas) -> str:
    """Return why the runs cannot be compared, "" if they can."""
    iterations = [side.fleet.iteration_us.shape[1] for side in (deltas.before, deltas.after)]
    if min(iterations) < FEWEST_ITERATIONS:
        which = ["the first run", "the second run"][iterations.index(min(iterations))]
        words = "one iteration" if min(iterations) == 1 else "no iteration that all its workers share"
        return f"{which} has {words}, which does not tell a change from noise"
    if not any(pair.before and pair.after for pair in deltas.pairs):
        return "the two runs have no function in common"
    return ""


def _notes(deltas: Deltas, by_rank: bool) -> Iterator[str]:
    """Yield notes on what differs between the runs, and on what is missing."""
    fleets = deltas.before.fleet, deltas.after.fleet
    devices = [sorted({p.worker.device.partition(":")[0] for p in fleet.patterns}) for fleet in fleets]
    if devices[0] != devices[1]:
        yield f"different devices: {', '.join(devices[0])} before, {', '.join(devices[1])} after"
    if fleets[0].has_accelerator != fleets[1].has_accelerator:
        yield f"only the {'second' if fleets[1].has_accelerator else 'first'} run shows device kernels"
    gone = set(fleets[0].ranks) ^ set(fleets[1].ranks)
    if gone and by_rank and set(fleets[0].ranks) & set(fleets[1].ranks):
        yield f"{len(gone)} worker{' is' if len(gone) == 1 else 's are'} in one of the runs only"
    for fleet, which in zip(fleets, ("first", "second"), strict=True):
        dropped = sum(p.dropped_critical_s for p in fleet.patterns) / max(
            sum(p.duration_s for p in fleet.patterns), 1e-9
        )
        if dropped > 0.02:
            yield f"{100 * dropped:.0f} % of the {which} run lies in functions too small to have been kept"
    if not any(~np.isnan(side.mu[side.total_us > 0]).all() for side in (deltas.before, deltas.after)):
        yield "no utilization was sampled: slower hardware cannot be told from other processes on the device"
