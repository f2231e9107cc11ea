"""The patterns of all workers side by side, on the iterations they all captured.

Shapes: W workers (in order of global rank), F functions, I iterations that count. All times are microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from math import floor

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.engine import HERE, Engine
from eroica.errors import InputError
from eroica.localize.entries import Entries, gather_entries
from eroica.localize.excess import Excess, excess_over_peers, find_measure, median_of_others
from eroica.localize.matching import Carriers
from eroica.localize.replay import Replay
from eroica.localize.roles import assign_roles
from eroica.model.pattern import CollectiveRecord, FunctionKey, WorkerPattern
from eroica.model.rows import RowTable
from eroica.model.series import decode_alike, decode_series, decode_together
from eroica.model.words import worker_list
from eroica.settings import Settings

Floats = NDArray[np.float64]
#: One series per worker, as one array where they have the same length.
Series = NDArray[np.float32] | list[NDArray[np.float32]]
#: From so many iterations on the slowest few may be left out.
_FEW_ITERATIONS = 10
#: Sums of series over all workers that are kept: 16 MB each at 100,000 workers and 20 iterations.
_MOST_KEPT_SERIES = 2
#: Share of the workers that must tell what devices do for functions; samplers fail on some.
_MOST_TOLD = 0.6


class Fleet(Entries, frozen=True, kw_only=True, eq=False, dict=True):
    """All workers of one window as arrays; lives in memory only (what is kept on disk are the patterns).

    Attributes, beside those of `Entries`:
        patterns: What the arrays were made of, in order of global rank.
        roles: Role of each worker. intp [W].
        columns: Iterations that count, as offsets from each worker's first captured one. intp [W, I].
        iteration_us: Duration of each iteration. float64 [W, I].
        wait_us: Critical collective time in each iteration. float64 [W, I].
        replay: The window, to be run again with less in it; None where it cannot be, or was not prepared.
    """

    patterns: tuple[WorkerPattern, ...]
    roles: NDArray[np.intp]
    columns: NDArray[np.intp]
    iteration_us: Floats
    wait_us: Floats
    replay: Replay | None = None

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Global rank of each worker."""
        return tuple(pattern.worker.global_rank for pattern in self.patterns)

    @cached_property
    def places(self) -> dict[FunctionKey, int]:
        """Row of each function."""
        return {key: place for place, key in enumerate(self.keys)}

    @property
    def busy_us(self) -> Floats:
        """Iteration without critical collective time. float64 [W, I]."""
        return np.maximum(self.iteration_us - self.wait_us, 0.0)

    @cached_property
    def mean_iteration_us(self) -> float:
        """Mean over workers and iterations that count."""
        return float(self.iteration_us.mean()) if self.iteration_us.size else 0.0

    @cached_property
    def measure(self) -> NDArray[np.bool_]:
        """Workers that tell what is usual in their role: not the late ones, where these are most. bool [W]."""
        return find_measure(self.wait_us, self.roles)

    def usual(self, values: Floats) -> Floats:
        """Take for each worker the median over its role's others that tell what is usual. [..., W]; NaN without any."""
        return median_of_others(values, self.roles, self.measure)

    def above_usual(self, time_WI: Floats) -> Excess:
        """Measure the time of workers above what is usual in their role. See `excess_over_peers`."""
        return excess_over_peers(time_WI, self.roles, self.measure)

    @cached_property
    def has_accelerator(self) -> bool:
        """Any worker saw device kernels."""
        return any(pattern.has_accelerator for pattern in self.patterns)

    @cached_property
    def is_recorded(self) -> bool:
        """The patterns were read from traces that another tool recorded: there is nothing beside the traces."""
        return any(pattern.found_by for pattern in self.patterns)

    @cached_property
    def known_ranks(self) -> frozenset[int]:
        """Global ranks of all workers."""
        return frozenset(self.ranks)

    @cached_property
    def carriers(self) -> Carriers:
        """Library and device that carry the collectives of each group."""
        return Carriers(self.patterns)

    @cached_property
    def knows_launchers(self) -> bool:
        """Rows of Python tell on most workers what a device does for them."""
        return self.has_accelerator and bool((self.device_us > 0).any(axis=0).mean() >= _MOST_TOLD)

    def series(self, functions: Sequence[int], workers: NDArray[np.intp] | None = None) -> Floats:
        """Critical time of some functions together, iteration by iteration.

        Args:
            functions: Indices into `keys`.
            workers: Indices of the workers asked for; None means all. intp [A].

        Returns:
            Microseconds. float64 [W, I], or [A, I]; rows without a series of their own count as their mean in every
            iteration.
        """
        if workers is None:
            return self._series_of_all(tuple(functions)).copy()
        return self._summed(functions, workers)

    def _series_of_all(self, functions: tuple[int, ...]) -> Floats:
        """Sum series as `series` does, and keep the last two answers: several rules ask for the same functions."""
        kept: dict[tuple[int, ...], Floats] = self.__dict__.setdefault("_kept_series", {})
        if functions not in kept:
            while len(kept) >= _MOST_KEPT_SERIES:
                del kept[next(iter(kept))]
            kept[functions] = self._summed(functions, np.arange(len(self.patterns)))
        return kept[functions]

    def _summed(self, functions: Sequence[int], asked: NDArray[np.intp]) -> Floats:
        total = np.zeros((asked.size, self.columns.shape[1]))
        for function in functions:
            used = np.flatnonzero(self.critical_us[function, asked] > 0)
            if used.size:
                total[used] += self._series_of(function, asked[used])
        return total

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """Ends of all rows' series, one worker after another."""
        return np.concatenate([np.empty(0, np.int64), *(table.ends for table in self.tables)])

    @cached_property
    def _starts(self) -> NDArray[np.intp]:
        """Where each worker's begin in `_ends`. [W]."""
        return np.cumsum([0, *(len(table) for table in self.tables)])[:-1]

    def _series_of(self, function: int, workers: NDArray[np.intp]) -> Floats:
        """Critical time of one function on workers that have it. float64 [A, I]."""
        place = self.place[function, workers]
        ends, at = self._ends, self._starts[workers] + place
        begins = np.where(place > 0, ends[at - 1], 0).tolist()
        bounds = zip(workers.tolist(), begins, ends[at].tolist(), strict=True)
        encoded = [self.tables[worker].series[begin:end] for worker, begin, end in bounds]
        known = [at for at, data in enumerate(encoded) if data]
        if len(known) < len(encoded):
            spread = np.repeat(self.critical_us[function, workers][:, None], self.columns.shape[1], axis=1)
            if known:
                spread[known] = self._series_of(function, workers[known])
            return spread
        together = decode_together(encoded, np.float32)
        columns = self.columns[workers]
        if together is not None and columns.size and int(columns.max()) < together.shape[1]:
            return np.take_along_axis(together, columns, axis=1).astype(np.float64)
        means = self.critical_us[function, workers]
        return np.stack([_one_series(data, own, mean) for data, own, mean in zip(encoded, columns, means, strict=True)])


def _one_series(data: bytes, columns: NDArray[np.intp], mean_us: float) -> Floats:
    """A row's series on the iterations that count; its mean where it has none. float64 [I]."""
    series = decode_series(data, np.float32)
    if not columns.size or series.size <= int(columns[-1]):
        return np.full(columns.shape, mean_us)
    return np.asarray(series[columns], dtype=np.float64)


def build_fleet(patterns: Sequence[WorkerPattern], settings: Settings) -> Fleet:
    """Lay the patterns of one window side by side.

    Workers are ordered by rank (the last pattern of a rank counts); iterations are those every worker captured, less
    the slowest `one_off_fraction` of them (an evaluation, a checkpoint) where there are at least ten.

    Args:
        patterns: At least one.
        settings: `one_off_fraction` and `roles` are read.
    """
    ordered = tuple(sorted({p.worker.global_rank: p for p in patterns}.values(), key=lambda p: p.worker.global_rank))
    iteration, wait, columns = _aligned(ordered, settings.one_off_fraction)
    return Fleet(
        patterns=ordered,
        roles=assign_roles(ordered, settings.roles),
        columns=columns,
        iteration_us=iteration,
        wait_us=wait,
        **msgspec.structs.asdict(gather_entries(ordered)),
    )


def with_all_iterations(fleet: Fleet) -> Fleet:
    """Return the fleet on all iterations that its workers share, the slowest included; no pattern is read again."""
    first = max(pattern.first_iteration for pattern in fleet.patterns)
    if fleet.columns.shape[1] == min(pattern.last_iteration for pattern in fleet.patterns) - first:
        return fleet
    iteration, wait, columns = _aligned(fleet.patterns, 0.0)
    return msgspec.structs.replace(fleet, iteration_us=iteration, wait_us=wait, columns=columns, replay=None)


def _aligned(patterns: Sequence[WorkerPattern], one_off: float) -> tuple[Floats, Floats, NDArray[np.intp]]:
    """Iteration and wait times [W, I] on the common iterations that count, and their offsets [W, I]."""
    offset_W, common, times, waits = shared_iterations(patterns)
    iteration, wait = cut_out(times, offset_W, common), cut_out(waits, offset_W, common)
    kept = _kept(iteration, one_off)
    columns = offset_W[:, None] + np.arange(common, dtype=np.intp)
    return iteration[:, kept], np.minimum(wait, iteration)[:, kept], columns[:, kept]


def shared_iterations(patterns: Sequence[WorkerPattern]) -> tuple[NDArray[np.intp], int, Series, Series]:
    """Find the iterations that each worker shares with all other workers.

    Returns:
        How many captured iterations of each worker lie before those, intp [W]; how many all share; durations of all
        captured ones, and critical time in communication, zeros where it was not told. float32, one per worker.
    """
    first = max(pattern.first_iteration for pattern in patterns)
    offset_W = np.asarray([first - pattern.first_iteration for pattern in patterns], dtype=np.intp)
    times = decode_alike([pattern.iteration_us for pattern in patterns], np.float32)
    waits = decode_alike([pattern.wait_us for pattern in patterns], np.float32)
    common = min(len(own) - offset for own, offset in zip(times, offset_W.tolist(), strict=True))
    if not (isinstance(times, np.ndarray) and isinstance(waits, np.ndarray) and times.shape == waits.shape):
        waits = [
            wait if wait.size == own.size else np.zeros(own.size, np.float32)
            for wait, own in zip(waits, times, strict=True)
        ]
    return offset_W, max(common, 0), times, waits


def cut_out(series: Series, offset_W: NDArray[np.intp], count: int) -> Floats:
    """Cut `count` values out of each series, from the series' own offset on. float64 [W, count]."""
    if isinstance(series, np.ndarray):
        return np.take_along_axis(series, offset_W[:, None] + np.arange(count), axis=1).astype(np.float64)
    cut = [own[offset : offset + count] for own, offset in zip(series, offset_W.tolist(), strict=True)]
    return np.stack(cut).astype(np.float64)


def _kept(iteration: Floats, one_off: float) -> NDArray[np.intp]:
    """Columns that count, in order. intp [I]."""
    count = iteration.shape[1]
    dropped = floor(count * one_off) if count >= _FEW_ITERATIONS else 0
    slowest = np.argsort(iteration.max(axis=0), kind="stable")[count - dropped :] if dropped else np.zeros(0, np.intp)
    return np.setdiff1d(np.arange(count, dtype=np.intp), slowest)


# --- check patterns from disk or from strangers, and leave out, with a note, those that cannot be laid side by side ---


_EXECUTION = {"sequence": np.int64, "iteration": np.int32, "duration_us": np.float32, "critical_us": np.float32}
#: Patterns that are looked through in one step.
_TOGETHER = 256
_OPTIONAL = {"elements": np.int64, "peers": np.int32, "end_us": np.float64}


def leave_out_damaged(
    patterns: Sequence[WorkerPattern], engine: Engine = HERE
) -> tuple[tuple[WorkerPattern, ...], tuple[str, ...]]:
    """Patterns whose series can be decoded, are possible and fit together.

    Args:
        patterns: Any.
        engine: Where they are looked through.

    Returns:
        These, and a note on the others, if there are any.
    """
    some = (patterns[start : start + _TOGETHER] for start in range(0, len(patterns), _TOGETHER))
    flags = chain.from_iterable(engine.map(are_whole, some))
    kept = tuple(pattern for pattern, is_kept in zip(patterns, flags, strict=True) if is_kept)
    whole = {id(pattern) for pattern in kept}
    damaged = [pattern.worker.global_rank for pattern in patterns if id(pattern) not in whole]
    return kept, (f"patterns with damaged series were left out: {worker_list(damaged)}",) if damaged else ()


def are_whole(patterns: Sequence[WorkerPattern]) -> list[bool]:
    """Return whether every series of each pattern can be decoded."""
    return list(map(is_whole, patterns))


def is_whole(pattern: WorkerPattern) -> bool:
    """Every series of it is one."""
    try:
        times = [decode_series(data, np.float32) for data in (pattern.iteration_us, pattern.wait_us)]
        rows = RowTable.of(pattern.functions)
        times += [decode_series(rows.series_of(at), np.float32) for at in range(len(rows))]
        fitting = all(map(_fits_together, pattern.collectives))
    except InputError:
        return False
    return fitting and all(bool((np.isfinite(series) & (series >= 0)).all()) for series in times)


def _fits_together(record: CollectiveRecord) -> bool:
    columns = [decode_series(getattr(record, name), kind) for name, kind in _EXECUTION.items()]
    optional = [decode_series(getattr(record, name), kind) for name, kind in _OPTIONAL.items()]
    size = columns[0].size
    if any(column.size != size for column in columns) or any(column.size not in (0, size) for column in optional):
        return False
    return all(bool((np.isfinite(column) & (column >= 0)).all()) for column in columns[2:])
