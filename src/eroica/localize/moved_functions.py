"""Functions that others call than in the baseline window, or in another part of the iteration: these tell Python apart.

When a caller changes, all that it calls gets new stacks, and would look new though it takes what it took.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eroica.localize.fleet import Fleet
from eroica.model.pattern import FunctionKey

Floats = NDArray[np.float64]
Places = NDArray[np.intp]


class Moved(NamedTuple):
    """One function of Python, by the innermost frame, with other callers than then.

    Attributes:
        now: Rows of this window that the other one has not.
        then: Rows of the other one that this window has not.
    """

    now: tuple[int, ...]
    then: tuple[int, ...]


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


def time_then(fleet: Fleet, past: Fleet, one: Moved, workers: Places, order: Places) -> Floats:
    """Divide a function's time in the past window among its present rows, in proportion to their present times.

    Args:
        fleet: The window.
        past: The other one.
        one: The function.
        workers: Indices in the window. intp [A].
        order: The same workers' indices then. intp [A].

    Returns:
        Microseconds per iteration. float64 [len(one.now), A].
    """
    now_RA = fleet.critical_us[np.ix_(np.asarray(one.now, np.intp), workers)]
    then_A = past.critical_us[np.ix_(np.asarray(one.then, np.intp), order)].sum(axis=0)
    total_A = now_RA.sum(axis=0)
    share_RA = np.divide(now_RA, total_A, out=np.zeros(now_RA.shape), where=total_A > 0)
    return np.asarray(share_RA * then_A)
