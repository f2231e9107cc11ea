"""The rows of all workers as arrays by function and worker.

Shapes: F functions, W workers, R rows of some workers. Rows are taken over for some hundred workers at a time, as
columns; none is made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.localize.folding import number_keys
from eroica.model.pattern import FunctionKey, WorkerPattern
from eroica.model.rows import NUMBERS, RowTable

Floats = NDArray[np.float64]
_Key = TypeVar("_Key")
#: Workers whose rows are taken over together.
_TOGETHER = 512
#: Groups that do the same job share a function where there are more of them than this, times workers: ten thousand
#: tensor parallel groups of eight would make ten thousand functions, each on eight workers of a hundred thousand.
_MOST_CELLS = 4_000_000


class Entries(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Rows of all workers by function and worker.

    Attributes:
        keys: The functions, union over all workers.
        tables: Rows of each worker.
        place: Row of each function in the table of each worker, -1 where a worker lacks it. int32 [F, W].
        critical_us: Critical time per iteration, whole window. float64 [F, W], 0 where a worker lacks the function.
        error_us: Standard error of it where it comes from samples. float64 [F, W].
        total_us: Time over all executions per iteration. float64 [F, W].
        device_us: Time per iteration that a device works on what was launched from it. float64 [F, W].
        count: Executions per iteration. float64 [F, W].
        pattern: (β, μ, σ), eq. 1-5. float64 [F, W, 3]; zeros where a worker lacks the function, NaN for μ and σ where
            no sample hit it.
        samples: Samples of the resource behind μ and σ. float64 [F, W].
        resource: Which of `resources` bounds the function there; meaningless where a worker lacks it. int32 [F, W].
        resources: Names of resources.
    """

    keys: tuple[FunctionKey, ...]
    tables: tuple[RowTable, ...]
    place: NDArray[np.int32]
    critical_us: Floats
    error_us: Floats
    total_us: Floats
    device_us: Floats
    count: Floats
    pattern: Floats
    samples: Floats
    resource: NDArray[np.int32]
    resources: tuple[str, ...]


class _Numbers(dict[_Key, int]):
    """A number for each key, in order of first appearance."""

    def __missing__(self, key: _Key) -> int:
        self[key] = number = len(self)
        return number


def gather_entries(patterns: Sequence[WorkerPattern]) -> Entries:
    """All rows, functions in order of their keys; of several rows with the same key on a worker the last counts.

    Args:
        patterns: One per worker.
    """
    tables = tuple(RowTable.of(pattern.functions) for pattern in patterns)
    keys, function_R = _functions_of(patterns, tables)
    resources = _Numbers[str]()
    entries = _empty(keys, tables)
    starts = np.cumsum([0, *map(len, tables)])
    for start in range(0, len(patterns), _TOGETHER):
        some = patterns[start : start + _TOGETHER]
        _fill(entries, some, start, function_R[starts[start] : starts[start + len(some)]], resources)
    return msgspec.structs.replace(entries, resources=tuple(resources))


def _functions_of(
    patterns: Sequence[WorkerPattern], tables: Sequence[RowTable]
) -> tuple[tuple[FunctionKey, ...], NDArray[np.intp]]:
    """All functions in order, and which of them each row is of; of collectives in one of very many like groups, all's.

    Returns:
        The keys, and the index of each row's. intp [R].
    """
    keys, number_R = number_keys(tables)
    _join_crowded(patterns, keys, number_R)
    used = np.flatnonzero(np.bincount(number_R, minlength=len(keys)))
    ordered = tuple(sorted({keys[number] for number in used}))
    place = {key: at for at, key in enumerate(ordered)}
    place_N = np.zeros(len(keys), dtype=np.intp)
    place_N[used] = [place[keys[number]] for number in used]
    return ordered, place_N[number_R]


def _join_crowded(patterns: Sequence[WorkerPattern], keys: list[FunctionKey], number_R: NDArray[np.intp]) -> None:
    """Give rows of collectives in one of very many like groups the number of one function for them all.

    Args:
        patterns: One per worker.
        keys: The functions by number; those for all are added.
        number_R: Number of each row's function; changed. intp [R].
    """
    crowded = crowded_groups(patterns)
    if not crowded:
        return
    grouped_N = np.asarray([bool(key.group) for key in keys], dtype=np.bool_)
    shared: dict[tuple[int, str], int] = {}
    end_W = np.cumsum([len(pattern.functions) for pattern in patterns])
    grouped = np.flatnonzero(grouped_N[number_R])
    labels, last = dict[str, str](), -1
    for row, worker in zip(grouped.tolist(), np.searchsorted(end_W, grouped, side="right").tolist(), strict=True):
        labels, last = (labels if worker == last else labels_of(patterns[worker], crowded)), worker
        number = int(number_R[row])
        label = labels.get(keys[number].group)
        if label is not None:
            if (number, label) not in shared:
                shared[number, label] = len(keys)
                keys.append(msgspec.structs.replace(keys[number], group=label))
            number_R[row] = shared[number, label]


def crowded_groups(patterns: Sequence[WorkerPattern]) -> frozenset[tuple[str, int]]:
    """Description and size of groups of which there are very many."""
    groups = {
        (group.name, group.description, len(group.ranks)) for pattern in patterns for group in pattern.process_groups
    }
    counts = Counter((description, size) for _, description, size in groups)
    return frozenset(like for like, count in counts.items() if count * len(patterns) > _MOST_CELLS)


def labels_of(pattern: WorkerPattern, crowded: frozenset[tuple[str, int]]) -> dict[str, str]:
    """Name the process groups of one worker together with those like them, numbered if it is in several."""
    labels: dict[str, str] = {}
    seen: Counter[tuple[str, int]] = Counter()
    for group in pattern.process_groups:
        like = group.description, len(group.ranks)
        if like in crowded:
            seen[like] += 1
            number = f" {seen[like]}" if seen[like] > 1 else ""
            labels[group.name] = f"{group.description or 'groups'} of {len(group.ranks)}{number}"
    return labels


def _empty(keys: tuple[FunctionKey, ...], tables: tuple[RowTable, ...]) -> Entries:
    shape = len(keys), len(tables)
    return Entries(
        keys=keys,
        tables=tables,
        place=np.full(shape, -1, dtype=np.int32),
        critical_us=np.zeros(shape),
        error_us=np.zeros(shape),
        total_us=np.zeros(shape),
        device_us=np.zeros(shape),
        count=np.zeros(shape),
        pattern=np.zeros((*shape, 3)),
        samples=np.zeros(shape),
        resource=np.zeros(shape, dtype=np.int32),
        resources=(),
    )


def _fill(
    entries: Entries,
    patterns: Sequence[WorkerPattern],
    start: int,
    function_R: NDArray[np.intp],
    resources: _Numbers[str],
) -> None:
    """Enter the rows of some workers, function by function: neighbors in memory are written one after another.

    Args:
        entries: What is filled.
        patterns: These workers.
        start: Index of the first of them.
        function_R: Index of each of their rows' function. intp [R].
        resources: Numbers of the resources seen so far; new ones are added.
    """
    if not function_R.size:
        return
    tables = entries.tables[start : start + len(patterns)]
    per_W = list(map(len, tables))
    order = np.argsort(function_R, kind="stable")
    at = function_R[order], (start + np.repeat(np.arange(len(patterns)), per_W))[order]
    iterations_W = [max(pattern.last_iteration - pattern.first_iteration, 1) for pattern in patterns]
    iterations_R = np.repeat(iterations_W, per_W)[order]
    duration_R = np.repeat(np.asarray([pattern.duration_s for pattern in patterns], dtype=np.float64), per_W)[order]
    per_iteration_R = 1e6 / iterations_R
    of = dict(zip(NUMBERS, np.concatenate([table.numbers for table in tables], axis=1)[:, order], strict=True))
    unsampled_R = of["resource_samples"] == 0
    of["mu"][unsampled_R] = of["sigma"][unsampled_R] = np.nan
    entries.place[at] = np.concatenate([np.arange(count) for count in per_W])[order]
    entries.critical_us[at] = of["critical_s"] * per_iteration_R
    entries.error_us[at] = of["beta_error"] * duration_R * per_iteration_R
    entries.total_us[at] = of["total_s"] * per_iteration_R
    entries.device_us[at] = of["device_s"] * per_iteration_R
    entries.count[at] = of["count"] / iterations_R
    entries.samples[at] = of["resource_samples"]
    entries.pattern[at] = np.stack([of["beta"], of["mu"], of["sigma"]], axis=1)
    filled = filter(len, tables)
    named = [np.asarray([resources[name] for name in table.resources])[table.resource] for table in filled]
    entries.resource[at] = np.concatenate(named)[order]
