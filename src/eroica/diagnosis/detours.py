"""Groups that take longer than in the job's baseline window, and use more of a slower path than in it.

What `fallback` sees beside like groups: a single group, or all of them, can only be compared with what it was itself.

Array suffixes: W workers, I iterations.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.communication import collectives
from eroica.diagnosis.fallback import MORE, SLOWER_PATHS, says_path
from eroica.diagnosis.slow_groups import (
    LEAST_SAMPLES,
    LONGER,
    LONGER_ONCE,
    OFTEN,
    Culprit,
    SlowGroups,
    name_collective,
    name_hosts,
    use_of,
)
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms, name_workers
from eroica.localize.families import Family, GroupPaths, GroupTransfer, likeness_of_groups, paths_of, read_transfers
from eroica.localize.fleet import Fleet
from eroica.model.shares import percent

Floats = NDArray[np.float64]
#: Doubt where nothing tells that not more was exchanged than then.
_UNSIZED = 0.7


class Detour(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Use of a slower path by the members of a group, now and when the job was healthy.

    Attributes:
        now: The transfer.
        then_mu: Use then, NaN where it was not sampled. float64 [M].
        then_us: Time of the same transfer then, per iteration.
        workers: Members (indices) that use more of the path now.
        is_sized: The amount that was exchanged is recorded.
    """

    now: GroupPaths
    then_mu: Floats
    then_us: float
    workers: tuple[int, ...]
    is_sized: bool = True


def find_detours(view: View) -> Iterator[tuple[SlowGroups, Culprit]]:
    """Find groups slower than in the baseline window, with members that move more over a path that they kept off it.

    Equally many executions of equal size, and nobody comes late: what is longer is the transfer. All groups of one kind
    and size together.
    """
    past = view.suspects.baseline
    if view.is_trace or past is None:
        return
    suspected = set(_groups_with_more(view, past))
    if not suspected:
        return
    now, then = read_transfers(view.fleet, suspected), read_transfers(past, suspected)
    like = likeness_of_groups(view.fleet.patterns)
    found: dict[tuple[object, ...], list[Detour]] = {}
    for (group, kind), (transfer, amount) in now.items():
        before, usual = then.get((group, kind), (None, amount))
        detour = _detour(view, past, transfer, before) if before is not None and amount.is_like(usual) else None
        if detour is not None:
            detour = msgspec.structs.replace(detour, is_sized=min(amount.elements, usual.elements) > 0)
            found.setdefault((*like.get(group, (group, 0)), kind), []).append(detour)
    for key, detours in found.items():
        yield _told(view, (str(key[0]), str(key[2])), detours)


def _groups_with_more(view: View, past: Fleet) -> Iterator[str]:
    """List groups in whose collectives a worker uses clearly more of a slower path than in the baseline window."""
    for row in collectives(view):
        before = view.rows_before([row])
        if not before:
            continue
        then_W = view.then(partial(_use, row=before[0]))
        for worker in np.flatnonzero(_is_more(view, _use(view.fleet, row), then_W)).tolist():
            yield from (record.group for record in view.fleet.patterns[worker].collectives)


def _use(fleet: Fleet, row: int) -> Floats:
    """Return the use of a slower path by each worker in one collective, NaN where not sampled. float64 [W]."""
    slower = [number for number, name in enumerate(fleet.resources) if name in SLOWER_PATHS]
    told_W = (fleet.place[row] >= 0) & (fleet.samples[row] >= LEAST_SAMPLES) & np.isin(fleet.resource[row], slower)
    return np.where(told_W, fleet.pattern[row, :, 1], np.nan)


def _is_more(view: View, now: Floats, then: Floats) -> NDArray[np.bool_]:
    least = np.maximum(MORE * then, then + view.settings.utilization_floor)
    return np.asarray(now >= least)  # False where either was not sampled


def _detour(view: View, past: Fleet, transfer: GroupTransfer, before: GroupTransfer) -> Detour | None:
    """Find a group's detour; None where it is not longer again and again, or no member uses more of a slower path."""
    then_us = before.mean_us
    more_us = transfer.mean_us - then_us
    often = float((transfer.transfer_us >= LONGER_ONCE * then_us).mean())
    if more_us < max((LONGER - 1) * then_us, view.settings.min_gain * view.iteration_us) or often < OFTEN:
        return None
    now, then = paths_of(view.fleet, transfer, LEAST_SAMPLES), paths_of(past, before, LEAST_SAMPLES)
    if now.resource not in SLOWER_PATHS or then.resource != now.resource:
        return None
    use = dict(zip((past.ranks[worker] for worker in then.members), then.mu.tolist(), strict=True))
    then_M = np.asarray([use.get(view.fleet.ranks[worker], np.nan) for worker in now.members])
    more_M = _is_more(view, now.mu, then_M)
    workers = tuple(worker for worker, is_more in zip(now.members, more_M, strict=True) if is_more)
    return Detour(now=now, then_mu=then_M, then_us=then_us, workers=workers) if workers else None


def _told(view: View, which: tuple[str, str], detours: list[Detour]) -> tuple[SlowGroups, Culprit]:
    """Build the slow groups beside their baseline times, and the accused."""
    groups = tuple(one.now for one in detours)
    names = [view.fleet.keys[row].name for one in groups for row in one.rows]
    family = Family(
        description=which[0],
        size=max(len(one.members) for one in groups),
        kind=which[1],
        name=max(sorted(set(names)), key=names.count),
        groups=groups,
    )
    then_us = float(np.mean([one.then_us for one in detours]))
    found = SlowGroups(family=family, slow=groups, usual=(), fast_us=np.full(view.iterations, then_us))
    workers = tuple(sorted({worker for one in detours for worker in one.workers}))
    own, then = (
        np.concatenate([use[np.isin(one.now.members, workers)] for one, use in pairs])
        for pairs in ([(one, one.now.mu) for one in detours], [(one, one.then_mu) for one in detours])
    )
    path = groups[0].resource
    use = float(np.nanmean(own)), float(np.nanmean(then))
    return found, Culprit(
        cause="link-fallback",
        groups=groups,
        workers=workers,
        subject=_subject(view, found, workers, path, use),
        evidence=tuple(_evidence(view, detours, workers)),
        resource=use_of(path, own, then),
        doubt=1.0 if all(one.is_sized for one in detours) else _UNSIZED,
    )


def _subject(view: View, found: SlowGroups, workers: tuple[int, ...], path: str, use: tuple[float, float]) -> str:
    who = name_workers([view.fleet.ranks[worker] for worker in workers], capital=True)
    return (
        f"{who} ({name_hosts(view, workers)}) {says_path(workers, path)} that used to stay off it "
        f"({percent(use[0])} of it used, {percent(use[1])} {view.back_then}), and {name_collective(found)} "
        f"takes {format_ms(found.slow_us)} instead of {format_ms(float(found.fast_us.mean()))}"
    )


def _evidence(view: View, detours: list[Detour], workers: tuple[int, ...]) -> Iterator[str]:
    members = {worker for one in detours for worker in one.now.members}
    sized = "of equal size" if all(one.is_sized for one in detours) else "(their sizes are not recorded)"
    yield (
        f"Compared with the {view.past_window}: equally many executions {sized} in {len(detours)} "
        f"group{'s' if len(detours) > 1 else ''} of {len(members)} workers, to which nobody comes late."
    )
    others = [
        (float(now), float(then))
        for one in detours
        for worker, now, then in zip(one.now.members, one.now.mu, one.then_mu, strict=True)
        if worker not in workers and not np.isnan(now) and not np.isnan(then)
    ]
    if others:
        now, then = np.mean(others, axis=0)
        yield f"The other members use {percent(now)} of theirs, {percent(then)} then."
