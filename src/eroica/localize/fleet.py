"""The patterns of all workers side by side, on the iterations they all captured.

Shapes: W workers (in order of global rank), F functions, I iterations that count. All times are microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import floor

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.localize.roles import assign_roles
from eroica.model.pattern import FunctionKey, FunctionPattern, WorkerPattern
from eroica.settings import Settings
from eroica.summarize.series import decode_series

Floats = NDArray[np.float64]
#: From so many iterations on the slowest few may be left out.
_FEW_ITERATIONS = 10


class Fleet(msgspec.Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """All workers of one window as arrays; lives in memory only (what is kept on disk are the patterns).

    Attributes:
        patterns: What the arrays were made of, in order of global rank.
        roles: Role of each worker. intp [W].
        columns: Iterations that count, as offsets from each worker's first captured one. intp [W, I].
        iteration_us: Duration of each iteration. float64 [W, I].
        wait_us: Critical collective time in each iteration. float64 [W, I].
        keys: The functions, union over all workers.
        rows: Row of each function on each worker, by key.
        critical_us: Critical time per iteration, whole window. float64 [F, W], 0 where a worker lacks the function.
        error_us: Standard error of it where it comes from samples. float64 [F, W].
        total_us: Time over all executions per iteration. float64 [F, W].
        count: Executions per iteration. float64 [F, W].
        pattern: (β, μ, σ), eq. 1-5. float64 [F, W, 3]; zeros where a worker lacks the function, NaN for μ and σ where
            no sample hit it.
    """

    patterns: tuple[WorkerPattern, ...]
    roles: NDArray[np.intp]
    columns: NDArray[np.intp]
    iteration_us: Floats
    wait_us: Floats
    keys: tuple[FunctionKey, ...]
    rows: tuple[Mapping[FunctionKey, FunctionPattern], ...]
    critical_us: Floats
    error_us: Floats
    total_us: Floats
    count: Floats
    pattern: Floats

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Global rank of each worker."""
        return tuple(pattern.worker.global_rank for pattern in self.patterns)

    @property
    def busy_us(self) -> Floats:
        """Iteration without critical collective time. float64 [W, I]."""
        return np.maximum(self.iteration_us - self.wait_us, 0.0)

    @property
    def mean_iteration_us(self) -> float:
        """Mean over workers and iterations that count."""
        return float(self.iteration_us.mean()) if self.iteration_us.size else 0.0

    @property
    def has_accelerator(self) -> bool:
        """Any worker saw device kernels."""
        return any(pattern.has_accelerator for pattern in self.patterns)

    def series(self, functions: Sequence[int]) -> Floats:
        """Critical time of some functions together, iteration by iteration.

        Args:
            functions: Indices into `keys`.

        Returns:
            Microseconds. float64 [W, I]; rows without a series of their own count as their mean in every iteration.
        """
        total = np.zeros_like(self.iteration_us)
        for index in functions:
            for worker, rows in enumerate(self.rows):
                row = rows.get(self.keys[index])
                if row is not None and row.critical_s > 0:
                    total[worker] += self._one_series(worker, row, self.critical_us[index, worker])
        return total

    def _one_series(self, worker: int, row: FunctionPattern, mean_us: float) -> Floats | float:
        if not row.per_iteration_us:
            return mean_us
        series = decode_series(row.per_iteration_us, np.float32)
        columns = self.columns[worker]
        if series.size <= int(columns[-1]):
            return mean_us
        return np.asarray(series[columns], dtype=np.float64)


def build_fleet(patterns: Sequence[WorkerPattern], settings: Settings) -> Fleet:
    """Lay the patterns of one window side by side.

    Workers are ordered by rank (the last pattern of a rank counts); iterations are those every worker captured, less
    the slowest `one_off_fraction` of them (an evaluation, a checkpoint) where there are at least ten.

    Args:
        patterns: At least one.
        settings: `one_off_fraction` is read.
    """
    ordered = tuple(sorted({p.worker.global_rank: p for p in patterns}.values(), key=lambda p: p.worker.global_rank))
    iteration, wait, columns = _aligned(ordered, settings.one_off_fraction)
    rows = tuple({row.key: row for row in pattern.functions} for pattern in ordered)
    keys = tuple(sorted({key for worker_rows in rows for key in worker_rows}))
    tables = _tables(ordered, rows, keys)
    return Fleet(
        patterns=ordered,
        roles=assign_roles(ordered),
        columns=columns,
        iteration_us=iteration,
        wait_us=wait,
        keys=keys,
        rows=rows,
        **tables,
    )


def _aligned(patterns: Sequence[WorkerPattern], one_off: float) -> tuple[Floats, Floats, NDArray[np.intp]]:
    """Iteration and wait times [W, I] on the common iterations that count, and their offsets [W, I]."""
    times = [_decoded(pattern) for pattern in patterns]
    first = max(pattern.first_iteration for pattern in patterns)
    last = min(pattern.first_iteration + own[0].size for pattern, own in zip(patterns, times, strict=True))
    offsets = np.asarray([first - pattern.first_iteration for pattern in patterns], dtype=np.intp)
    columns = offsets[:, None] + np.arange(max(last - first, 0), dtype=np.intp)
    iteration = np.stack([own[0][cols] for own, cols in zip(times, columns, strict=True)])
    wait = np.stack([own[1][cols] for own, cols in zip(times, columns, strict=True)])
    kept = _kept(iteration, one_off)
    return iteration[:, kept], np.minimum(wait, iteration)[:, kept], columns[:, kept]


def _decoded(pattern: WorkerPattern) -> tuple[Floats, Floats]:
    iteration = decode_series(pattern.iteration_us, np.float32).astype(np.float64)
    wait = decode_series(pattern.wait_us, np.float32).astype(np.float64) if pattern.wait_us else np.zeros(0)
    if wait.size != iteration.size:
        wait = np.zeros_like(iteration)
    return iteration, wait


def _kept(iteration: Floats, one_off: float) -> NDArray[np.intp]:
    """Columns that count, in order. intp [I]."""
    count = iteration.shape[1]
    dropped = floor(count * one_off) if count >= _FEW_ITERATIONS else 0
    slowest = np.argsort(iteration.max(axis=0), kind="stable")[count - dropped :] if dropped else np.zeros(0, np.intp)
    return np.setdiff1d(np.arange(count, dtype=np.intp), slowest)


def _tables(
    patterns: Sequence[WorkerPattern],
    rows: Sequence[Mapping[FunctionKey, FunctionPattern]],
    keys: Sequence[FunctionKey],
) -> dict[str, Floats]:
    index = {key: position for position, key in enumerate(keys)}
    shape = (len(keys), len(patterns))
    tables = {name: np.zeros(shape) for name in ("critical_us", "error_us", "total_us", "count")}
    shapes = np.zeros((*shape, 3))
    for worker, (pattern, worker_rows) in enumerate(zip(patterns, rows, strict=True)):
        iterations = max(pattern.last_iteration - pattern.first_iteration, 1)
        per_iteration = 1e6 / iterations
        for key, row in worker_rows.items():
            at = index[key], worker
            tables["critical_us"][at] = row.critical_s * per_iteration
            tables["error_us"][at] = row.beta_error * pattern.duration_s * per_iteration
            tables["total_us"][at] = row.total_s * per_iteration
            tables["count"][at] = row.count / iterations
            shapes[at] = (row.beta, row.mu, row.sigma) if row.resource_samples else (row.beta, np.nan, np.nan)
    return {**tables, "pattern": shapes}
