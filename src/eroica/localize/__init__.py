"""Lay the patterns of all workers side by side: what each does, what is usual, and who waits for whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.errors import InputError
from eroica.localize.arrivals import Arrivals, read_arrivals
from eroica.localize.fleet import Fleet, build_fleet
from eroica.localize.folding import Reading, all_alike, fold_rare_stacks
from eroica.localize.roles import tell_groups_apart
from eroica.model.pattern import FunctionKey, WorkerPattern
from eroica.settings import Settings

__all__ = ["Arrivals", "Fleet", "Moved", "Suspects", "localize"]

Floats = NDArray[np.float64]


class Moved(NamedTuple):
    """One function of Python, by the innermost frame, that others call than in the baseline window.

    When a caller changes, all that it calls gets new stacks, and would look new though it takes what it took.

    Attributes:
        now: Rows of this window that the other one has not.
        then: Rows of the other one that this window has not.
    """

    now: tuple[int, ...]
    then: tuple[int, ...]


class Suspects(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Result of `localize`; lives in memory only.

    Attributes:
        fleet: The window.
        baseline: The job's healthy window, None if there was none to use.
        before_us: Critical time per iteration in the baseline window, on the fleet's functions and workers; NaN where a
            worker has no baseline. float64 [F, W].
        peers_us: What is usual in the role (`Fleet.usual`). float64 [F, W]; NaN for a worker alone in it.
        moved: Functions with other callers than in the baseline window.
        arrivals: Who waits for whom.
        notes: What limits all this.
    """

    fleet: Fleet
    baseline: Fleet | None
    before_us: Floats
    peers_us: Floats
    moved: tuple[Moved, ...]
    arrivals: Arrivals
    notes: tuple[str, ...] = ()

    def then(self, measure: Callable[[Fleet], Floats]) -> Floats:
        """Return a measurement of each of these workers in the baseline window.

        Args:
            measure: From a window to a value for each of its workers.

        Returns:
            NaN without a baseline window, and for workers that were not in it. float64 [W].
        """
        past = self.baseline
        return np.full(len(self.fleet.ranks), np.nan) if past is None else of_workers(self.fleet, past, measure(past))

    def rows_then(self, rows: Sequence[int], measure: Callable[[Fleet, list[int]], Floats]) -> Floats:
        """Return a measurement of some functions on each of these workers in the baseline window.

        Args:
            rows: The functions (indices into the fleet's keys). R of them.
            measure: From a window and its rows to a value for each row and worker of that window.

        Returns:
            0 for functions that the baseline window lacks, NaN for workers that were not in it. float64 [R, W].
        """
        return _rows_then(self.fleet, self.baseline, rows, measure)


def localize(
    patterns: Sequence[WorkerPattern],
    baseline: Sequence[WorkerPattern],
    settings: Settings,
    reading: Reading = all_alike,
) -> Suspects:
    """Compare the workers of one window with their peers and with their own healthy past.

    Args:
        patterns: One per worker that reported this window.
        baseline: The same of the job's baseline window; may be empty.
        settings: `one_off_fraction` and `roles` are read.
        reading: What rules read in a call stack: rare ones are not counted with callers in which they read otherwise.

    Returns:
        Suspects; deterministic for equal input.

    Raises:
        InputError: There is no pattern at all, or the workers share no iteration.

    Source:
        EROICA, section 4.3.
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
    arrivals = read_arrivals(fleet)
    return Suspects(
        fleet=msgspec.structs.replace(fleet, replay=arrivals.replay),
        baseline=past,
        before_us=align_baseline(fleet, past, moved),
        peers_us=fleet.usual(fleet.critical_us),
        moved=moved,
        arrivals=arrivals,
        notes=tuple(_notes(folded, is_foreign=past is None and bool(baseline))),
    )


def of_workers(fleet: Fleet, past: Fleet, values: Floats) -> Floats:
    """Arrange values of a past window's workers as this one's; NaN for workers not in it. float64 [..., W]."""
    if fleet.ranks == past.ranks:
        return values
    columns = {rank: column for column, rank in enumerate(past.ranks)}
    at_W = np.asarray([columns.get(rank, -1) for rank in fleet.ranks], dtype=np.intp)
    return np.where(at_W >= 0, values[..., at_W], np.nan)


def _rows_then(
    fleet: Fleet, past: Fleet | None, rows: Sequence[int], measure: Callable[[Fleet, list[int]], Floats]
) -> Floats:
    if past is None:
        return np.full((len(rows), len(fleet.ranks)), np.nan)
    found_RV = np.zeros((len(rows), len(past.ranks)))
    known = [at for at, row in enumerate(rows) if fleet.keys[row] in past.places]
    if known:
        found_RV[known] = measure(past, [past.places[fleet.keys[rows[at]]] for at in known])
    return of_workers(fleet, past, found_RV)


def _notes(folded: int, is_foreign: bool) -> Iterator[str]:
    if is_foreign:
        yield "the baseline window shares no worker with this one"
    if folded:
        yield f"{folded} rare call stacks with little time in them are counted with their callers"


def find_moved(fleet: Fleet, past: Fleet) -> tuple[Moved, ...]:
    """Functions on the training thread whose callers are others than in the past window."""
    new, gone = _by_leaf(fleet, set(past.keys)), _by_leaf(past, set(fleet.keys))
    return tuple(Moved(tuple(new[leaf]), tuple(gone[leaf])) for leaf in new if leaf in gone)


def _by_leaf(fleet: Fleet, known: set[FunctionKey]) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = defaultdict(list)
    for at, key in enumerate(fleet.keys):
        if key.kind == "python" and key.thread == "training" and key.stack and key not in known:
            rows[key.stack[-1]].append(at)
    return rows


def align_baseline(fleet: Fleet, baseline: Fleet | None, moved: Sequence[Moved]) -> Floats:
    """Baseline times on the fleet's functions and workers.

    Args:
        fleet: The window.
        baseline: The healthy one.
        moved: Functions whose callers have changed: what they took under the earlier ones is divided among their
            present rows, in proportion to their present times.

    Returns:
        Microseconds per iteration. float64 [F, W]; 0 where the worker did not run the function then, NaN where it has
        no baseline.
    """
    if baseline is None:
        return np.broadcast_to(np.nan, fleet.critical_us.shape)
    before = _rows_then(fleet, baseline, range(len(fleet.keys)), lambda past, at: past.critical_us[at])
    for one in moved:
        now_RW = fleet.critical_us[list(one.now)]
        total_W = now_RW.sum(axis=0)
        share_RW = np.divide(now_RW, total_W, out=np.zeros(now_RW.shape), where=total_W > 0)
        before[list(one.now)] = share_RW * of_workers(fleet, baseline, baseline.critical_us[list(one.then)].sum(axis=0))
    return before
