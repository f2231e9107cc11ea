"""Small numbers for large ones: `np.unique` without its sorting, where a table of all possible values is no larger."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from eroica.trace.table import EventTable

_LARGER = 4
_SMALL = 200_000


def distinct_codes(code_M: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Distinct codes in rising order, and which of them each one is.

    Args:
        code_M: Not negative. int64 [M].

    Returns:
        int64 [kinds] and int64 [M].
    """
    size = int(code_M.max(initial=-1)) + 1
    if size > _LARGER * len(code_M) + _SMALL:
        kinds, inverse = np.unique(code_M, return_inverse=True)
        return kinds, inverse
    used = np.zeros(size, dtype=np.bool_)
    used[code_M] = True
    return np.flatnonzero(used), (np.cumsum(used) - 1)[code_M]


def rows_by_thread(events: EventTable, rows: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield threads in rising order, each with its rows in the order given; one sort for all threads."""
    rows = rows[np.argsort(events.thread[rows], kind="stable")]
    thread = events.thread[rows]
    for mine in np.split(rows, np.flatnonzero(thread[1:] != thread[:-1]) + 1):
        if len(mine):
            yield int(events.thread[mine[0]]), mine
