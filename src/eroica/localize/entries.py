"""The rows of all workers as arrays by function and worker.

Shapes: F functions, W workers, R rows of some workers. Rows are taken over for some hundred workers at a time: one call
of NumPy for a column of thousands of rows instead of one for each number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import FunctionKey, FunctionPattern, WorkerPattern

Floats = NDArray[np.float64]
_Key = TypeVar("_Key")
#: Workers whose rows are taken over together.
_TOGETHER = 256
_read_numbers = attrgetter("critical_s", "beta_error", "total_s", "count", "beta", "mu", "sigma", "resource_samples")
_read_resource = attrgetter("resource")
#: Groups that do the same job share a function where there are more of them than this, times workers: ten thousand
#: tensor parallel groups of eight would make ten thousand functions, each on eight workers of a hundred thousand.
_MOST_CELLS = 4_000_000


class Entries(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Rows by function and worker; see the attributes of `Fleet` with the same names."""

    keys: tuple[FunctionKey, ...]
    rows: Sequence[FunctionPattern]
    place: NDArray[np.int32]
    critical_us: Floats
    error_us: Floats
    total_us: Floats
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
    rows = list(chain.from_iterable(pattern.functions for pattern in patterns))
    numbers, resources = _Numbers[FunctionKey](), _Numbers[str]()
    seen_R = np.fromiter(map(numbers.__getitem__, _keys_of(patterns)), dtype=np.intp, count=len(rows))
    keys = tuple(sorted(numbers))
    rank_F = np.empty(len(keys), dtype=np.intp)
    rank_F[[numbers[key] for key in keys]] = np.arange(len(keys))
    entries = _empty(keys, rows, len(patterns))
    first = 0
    for start in range(0, len(patterns), _TOGETHER):
        some = patterns[start : start + _TOGETHER]
        count = sum(len(pattern.functions) for pattern in some)
        _fill(entries, some, start, first, rank_F[seen_R[first : first + count]], resources)
        first += count
    return msgspec.structs.replace(entries, resources=tuple(resources))


def _keys_of(patterns: Sequence[WorkerPattern]) -> Iterator[FunctionKey]:
    """The function of each row, worker by worker; of collectives in one of very many like groups, that of them all."""
    crowded = crowded_groups(patterns)
    shared: dict[tuple[FunctionKey, str], FunctionKey] = {}
    for pattern in patterns:
        labels = labels_of(pattern, crowded) if crowded else {}
        for row in pattern.functions:
            label = labels.get(row.key.group) if labels and row.key.group else None
            if label is None:
                yield row.key
            else:
                if (row.key, label) not in shared:
                    shared[row.key, label] = msgspec.structs.replace(row.key, group=label)
                yield shared[row.key, label]


def crowded_groups(patterns: Sequence[WorkerPattern]) -> frozenset[tuple[str, int]]:
    """Description and size of groups of which there are very many."""
    groups = {
        (group.name, group.description, len(group.ranks)) for pattern in patterns for group in pattern.process_groups
    }
    counts = Counter((description, size) for _, description, size in groups)
    return frozenset(like for like, count in counts.items() if count * len(patterns) > _MOST_CELLS)


def labels_of(pattern: WorkerPattern, crowded: frozenset[tuple[str, int]]) -> dict[str, str]:
    """What the groups of one worker are called together with those like them; numbered if it is in several."""
    labels: dict[str, str] = {}
    seen: Counter[tuple[str, int]] = Counter()
    for group in pattern.process_groups:
        like = group.description, len(group.ranks)
        if like in crowded:
            seen[like] += 1
            number = f" {seen[like]}" if seen[like] > 1 else ""
            labels[group.name] = f"{group.description or 'groups'} of {len(group.ranks)}{number}"
    return labels


def _empty(keys: tuple[FunctionKey, ...], rows: Sequence[FunctionPattern], workers: int) -> Entries:
    shape = len(keys), workers
    return Entries(
        keys=keys,
        rows=rows,
        place=np.full(shape, -1, dtype=np.int32),
        critical_us=np.zeros(shape),
        error_us=np.zeros(shape),
        total_us=np.zeros(shape),
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
    first: int,
    function_R: NDArray[np.intp],
    resources: _Numbers[str],
) -> None:
    """Enter the rows of some workers.

    Args:
        entries: What is filled.
        patterns: These workers.
        start: Index of the first of them.
        first: Place of their first row among all rows.
        function_R: Index of each of their rows' functions. intp [R].
        resources: Numbers of the resources seen so far; new ones are added.
    """
    if not function_R.size:
        return
    per_W = [len(pattern.functions) for pattern in patterns]
    at = function_R, start + np.repeat(np.arange(len(patterns)), per_W)
    iterations_R = np.repeat([max(pattern.last_iteration - pattern.first_iteration, 1) for pattern in patterns], per_W)
    duration_R = np.repeat(np.asarray([pattern.duration_s for pattern in patterns], dtype=np.float64), per_W)
    per_iteration_R = 1e6 / iterations_R
    rows = entries.rows[first : first + function_R.size]
    numbers = (np.asarray(column, dtype=np.float64) for column in zip(*map(_read_numbers, rows), strict=True))
    critical_R, error_R, total_R, count_R, beta_R, mu_R, sigma_R, samples_R = numbers
    unsampled_R = samples_R == 0
    entries.place[at] = np.arange(first, first + function_R.size)
    entries.critical_us[at] = critical_R * per_iteration_R
    entries.error_us[at] = error_R * duration_R * per_iteration_R
    entries.total_us[at] = total_R * per_iteration_R
    entries.count[at] = count_R / iterations_R
    mu_R[unsampled_R] = sigma_R[unsampled_R] = np.nan
    entries.samples[at] = samples_R
    entries.resource[at] = list(map(resources.__getitem__, map(_read_resource, rows)))
    entries.pattern[at] = np.stack([beta_R, mu_R, sigma_R], axis=1)
