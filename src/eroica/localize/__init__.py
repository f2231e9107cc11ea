"""Turn the patterns of all workers into suspects: abnormal functions by worker, and waiting with its culprits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.engine import HERE, Engine
from eroica.errors import InputError
from eroica.localize.arrivals import Arrivals, read_arrivals
from eroica.localize.families import LikeRows, join_like
from eroica.localize.fleet import Fleet, build_fleet
from eroica.localize.folding import Reading, all_alike, fold_rare_stacks
from eroica.localize.moved_functions import Moved, find_moved, time_then
from eroica.localize.roles import tell_groups_apart
from eroica.localize.rule import Behavior, Flagged, flag_functions
from eroica.localize.suspects import SuspectRow, Suspects
from eroica.model.pattern import WorkerPattern
from eroica.settings import Settings

__all__ = ["Arrivals", "Fleet", "SuspectRow", "Suspects", "localize"]

Floats = NDArray[np.float64]


def localize(
    patterns: Sequence[WorkerPattern],
    baseline: Sequence[WorkerPattern],
    settings: Settings,
    reading: Reading = all_alike,
    engine: Engine = HERE,
) -> Suspects:
    """Compare the workers of one window with expectation, with their peers and with their own healthy past.

    Args:
        patterns: One per worker that reported this window.
        baseline: The same of the job's baseline window; may be empty.
        settings: Gates and floors of localization.
        reading: What rules read in a call stack: rare ones are not counted with callers in which they read otherwise.
        engine: Where steps of many parts run; it changes no bit of the result.

    Returns:
        Suspects; deterministic for equal input.

    Raises:
        InputError: There is no pattern at all, or the workers share no iteration.

    Source:
        EROICA, section 4.3; the deviations stand at each equation's function.
    """
    if not patterns:
        raise InputError("no worker handed over a pattern for this window; look into the workers' notes")
    patterns, baseline = tell_groups_apart(patterns, baseline)
    patterns, baseline, folded = fold_rare_stacks(patterns, baseline, reading=reading)
    fleet = build_fleet(patterns, settings)
    if fleet.iteration_us.shape[1] == 0:
        raise InputError("the workers captured no iteration in common")
    past = build_fleet(baseline, settings) if baseline else None
    if past is not None and (not past.iteration_us.shape[1] or set(past.ranks).isdisjoint(fleet.ranks)):
        past = None
    moved = find_moved(fleet, past) if past is not None else ()
    before = align_baseline(fleet, past, moved)
    peers = fleet.usual(fleet.critical_us)
    arrivals = read_arrivals(fleet, engine)
    return Suspects(
        fleet=msgspec.structs.replace(fleet, replay=arrivals.replay),
        baseline=past,
        before_us=before,
        peers_us=peers,
        moved=moved,
        abnormal=find_abnormal(fleet, peers, before, settings),
        arrivals=arrivals,
        notes=tuple(_notes(folded, is_foreign=past is None and bool(baseline))),
    )


def _notes(folded: int, is_foreign: bool) -> Iterator[str]:
    if is_foreign:
        yield "the baseline window shares no worker with this one"
    if folded:
        yield f"{folded} rare call stacks with little time in them are counted with their callers"


def align_baseline(fleet: Fleet, baseline: Fleet | None, moved: Sequence[Moved]) -> Floats:
    """Baseline times on the fleet's functions and workers.

    Args:
        fleet: The window.
        baseline: The healthy one.
        moved: Functions whose callers have changed; they are compared with what they took under the earlier ones.

    Returns:
        Microseconds per iteration. float64 [F, W]; 0 where the worker did not run the function then, NaN where it has
        no baseline.
    """
    if baseline is None:
        return np.broadcast_to(np.nan, fleet.critical_us.shape)
    before = np.full(fleet.critical_us.shape, np.nan)
    columns = {rank: column for column, rank in enumerate(baseline.ranks)}
    places = {key: place for place, key in enumerate(baseline.keys)}
    rows = np.asarray([places.get(key, -1) for key in fleet.keys], dtype=np.intp)
    for worker, rank in enumerate(fleet.ranks):
        if rank in columns:
            before[:, worker] = np.where(rows >= 0, baseline.critical_us[rows, columns[rank]], 0.0)
    workers = np.array([worker for worker, rank in enumerate(fleet.ranks) if rank in columns], dtype=np.intp)
    order = np.array([columns[rank] for rank in fleet.ranks if rank in columns], dtype=np.intp)
    for one in moved:
        before[np.ix_(np.asarray(one.now, np.intp), workers)] = time_then(fleet, baseline, one, workers, order)
    return before


def find_abnormal(fleet: Fleet, peers_us: Floats, before_us: Floats, settings: Settings) -> tuple[SuspectRow, ...]:
    """Functions and workers that eq. 11 flags (`localize.rule`), in order of falling excess.

    Collectives of like process groups count as one function.
    """
    joined = join_like(fleet, peers_us, before_us)
    behavior = Behavior(
        keys=joined.keys,
        pattern=joined.pattern,
        critical_us=joined.critical_us,
        peers_us=joined.peers_us,
        before_us=joined.before_us,
        roles=fleet.roles,
        mean_iteration_us=fleet.mean_iteration_us,
        has_accelerator=fleet.has_accelerator,
    )
    flagged = flag_functions(
        behavior, lambda function, workers: _own_noise(fleet, joined.rows[function], workers), settings
    )
    rows = [_row(fleet, joined, found) for found in flagged]
    return tuple(sorted(rows, key=lambda row: (-np.nan_to_num(row.excess_us), -row.beta, row.key)))


def _own_noise(fleet: Fleet, functions: tuple[int, ...], workers: NDArray[np.intp]) -> Floats:
    """Standard error of some workers' time in a function, which may have several rows. float64 [A]."""
    series = fleet.series(functions, workers)
    spread = series.std(axis=1) / np.sqrt(max(series.shape[1], 1))
    return np.asarray(
        np.maximum(spread, np.sqrt((fleet.error_us[np.ix_(np.asarray(functions), workers)] ** 2).sum(axis=0)))
    )


def _row(fleet: Fleet, joined: LikeRows, found: Flagged) -> SuspectRow:
    return SuspectRow(
        key=joined.keys[found.function],
        workers=tuple(fleet.ranks[worker] for worker in found.workers),
        why=found.why,
        beta=float(joined.pattern[found.function, found.workers, 0].mean()),
        distance=float(found.distance.max()),
        excess_us=float(found.excess_us.mean()),
    )
