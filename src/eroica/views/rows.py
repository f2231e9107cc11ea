"""(β, μ, σ) of all workers by function, as arrays: what the cloud and the heat map are drawn from.

Shapes: W workers, F functions, R rows of all workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import FunctionKey, WorkerPattern
from eroica.model.rows import NUMBERS, RowTable

#: Functions that get a column; at ten thousand workers more would take gigabytes, and nobody could look at them.
MOST_FUNCTIONS = 400
_SHOWN = ("beta", "mu", "sigma", "critical_s", "total_s", "count")


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Functions of all workers, the one with the largest mean β first.

    Attributes:
        keys: Of each function; groups of collectives that are called alike on all workers ("mesh_dp") are one function.
        beta_WF: Share of the window on the critical path, 0-1; 0 where a worker does not run it. float32 [W, F].
        mu_WF: Mean use of its resource meanwhile, 0-1; weighted by β where rows were joined. float32 [W, F].
        sigma_WF: Spread of it, 0-1. float32 [W, F].
        runs_WF: The worker has such a row. bool [W, F].
        critical_s_WF: Seconds on the critical path. float32 [W, F].
        total_s_WF: Seconds over all executions. float32 [W, F].
        count_WF: Executions. float32 [W, F].
        resources: Of each function, the channel most of its workers name, "" if none.
        left_out: Functions without a column.
    """

    keys: tuple[FunctionKey, ...]
    beta_WF: NDArray[np.float32]
    mu_WF: NDArray[np.float32]
    sigma_WF: NDArray[np.float32]
    runs_WF: NDArray[np.bool_]
    critical_s_WF: NDArray[np.float32]
    total_s_WF: NDArray[np.float32]
    count_WF: NDArray[np.float32]
    resources: tuple[str, ...]
    left_out: int = 0

    def matching(self, name: str, stack: Sequence[str]) -> NDArray[np.intp]:
        """Columns of the function that a finding names: those under its frame, or of its name. intp, heaviest first."""
        root = _root(name, tuple(stack))
        found = [at for at, key in enumerate(self.keys) if root and key.stack[: len(root)] == root]
        return np.array(found or [at for at, key in enumerate(self.keys) if key.name == name], dtype=np.intp)

    def joined(self, columns: NDArray[np.intp]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """β and μ of several functions as if they were one: β adds up, μ is weighted by it. float64 [W] each."""
        beta_W = self.beta_WF[:, columns].sum(axis=1, dtype=np.float64)
        weighted_W = (self.beta_WF[:, columns] * self.mu_WF[:, columns]).sum(axis=1, dtype=np.float64)
        return beta_W, np.divide(weighted_W, beta_W, out=np.zeros_like(beta_W), where=beta_W > 0)

    def likeness(self, worker: int) -> NDArray[np.float64]:
        """Share of functions that each worker has in common with one of them (by place), 0-1. float64 [W]."""
        own = self.runs_WF[worker]
        either = (self.runs_WF | own).sum(axis=1)
        both = (self.runs_WF & own).sum(axis=1)
        shares: NDArray[np.float64] = np.divide(both, either, out=np.ones(len(either)), where=either > 0)
        return shares


def _root(name: str, stack: tuple[str, ...]) -> tuple[str, ...]:
    """The part of a stack from outermost to the named frame: (a, b, c) and "b" -> (a, b)."""
    for at in range(len(stack), 0, -1):
        frame = stack[at - 1]
        if frame == name or frame.startswith(f"{name} ("):
            return stack[:at]
    return ()


def gather_rows(patterns: Sequence[WorkerPattern]) -> Rows:
    """All rows of all workers by function.

    Args:
        patterns: One per worker.
    """
    keys: dict[FunctionKey, int] = {}
    functions_R = np.fromiter(chain.from_iterable(_numbered(patterns, keys)), dtype=np.intp)
    workers_R = np.repeat(np.arange(len(patterns)), [len(pattern.functions) for pattern in patterns])
    tables = [RowTable.of(pattern.functions) for pattern in patterns]
    shown = [NUMBERS.index(name) for name in _SHOWN]
    numbers_RN = np.concatenate([np.empty((len(shown), 0)), *(table.numbers[shown] for table in tables)], axis=1).T
    named_R = [table.resources[at] for table in tables for at in table.resource.tolist()]
    order_F = np.argsort(-np.bincount(functions_R, weights=numbers_RN[:, 0], minlength=len(keys)), kind="stable")
    kept_F = order_F[:MOST_FUNCTIONS]
    column_F = np.full(len(keys), -1, dtype=np.intp)
    column_F[kept_F] = np.arange(len(kept_F))
    columns_R = column_F[functions_R]
    named = list(keys)
    shape = len(patterns), len(kept_F)
    return Rows(
        keys=tuple(named[at] for at in kept_F),
        resources=_resources(named_R, columns_R, len(kept_F)),
        left_out=len(keys) - len(kept_F),
        **_grids(shape, workers_R, columns_R, numbers_RN),  # type: ignore[arg-type]
    )


def _numbered(patterns: Sequence[WorkerPattern], keys: dict[FunctionKey, int]) -> Iterator[list[int]]:
    """For each worker the numbers of its functions; new ones are added to `keys`."""
    known: dict[tuple[FunctionKey, str], int] = {}
    for pattern in patterns:
        labels = {group.name: _group_label(group.description, len(group.ranks)) for group in pattern.process_groups}
        own = []
        for named in RowTable.of(pattern.functions).keys:
            which = named, labels.get(named.group, named.group)
            if which not in known:
                key = msgspec.structs.replace(named, group=which[1])
                known[which] = keys.setdefault(key, len(keys))
            own.append(known[which])
        yield own


def _group_label(description: str, size: int) -> str:
    """What groups that do the same for different workers have in common."""
    return description if description not in ("", "undefined") else f"{size} workers"


def _grids(
    shape: tuple[int, int], workers_R: NDArray[np.intp], columns_R: NDArray[np.intp], numbers_RN: NDArray[np.float64]
) -> dict[str, NDArray[np.float32] | NDArray[np.bool_]]:
    """The numbers of `Rows`, one cell for each worker and function; several rows in a cell are joined."""
    chosen_R = columns_R >= 0
    cells_R = workers_R[chosen_R] * shape[1] + columns_R[chosen_R]
    beta, mu, sigma, critical, total, count = numbers_RN[chosen_R].T

    def summed(values: NDArray[np.float64]) -> NDArray[np.float64]:
        sums = np.bincount(cells_R, weights=values, minlength=shape[0] * shape[1])
        return sums.astype(np.float64).reshape(shape)

    weight_WF, rows_WF = summed(beta), summed(np.ones_like(beta))
    alone_WF = np.where(weight_WF > 0, weight_WF, np.maximum(rows_WF, 1))
    weights = np.where(weight_WF.ravel()[cells_R] > 0, beta, 1.0)
    grids = {
        "beta_WF": weight_WF,
        "mu_WF": summed(mu * weights) / alone_WF,
        "sigma_WF": summed(sigma * weights) / alone_WF,
        "critical_s_WF": summed(critical),
        "total_s_WF": summed(total),
        "count_WF": summed(count),
    }
    return {**{name: grid.astype(np.float32) for name, grid in grids.items()}, "runs_WF": rows_WF > 0}


def _resources(names: Sequence[str], columns_R: NDArray[np.intp], functions: int) -> tuple[str, ...]:
    """The channel that most rows of each function name."""
    seen = {name: number for number, name in enumerate(dict.fromkeys(name for name in names if name))}
    if not seen:
        return ("",) * functions
    number_R = np.array([seen.get(name, -1) for name in names])
    told_R = (number_R >= 0) & (columns_R >= 0)
    votes = np.bincount(columns_R[told_R] * len(seen) + number_R[told_R], minlength=functions * len(seen))
    best_F = votes.reshape(functions, len(seen))
    listed = list(seen)
    return tuple(listed[int(np.argmax(row))] if row.any() else "" for row in best_F)
