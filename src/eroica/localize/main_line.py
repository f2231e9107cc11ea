"""Own progress of workers by their own clocks: the clock less all time their main lines stood still.

Array suffixes: E executions in order of worker and end, W workers, J boundaries of iterations. All times are
microseconds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.intp]


def iteration_of(worker_E: Places, time_E: Floats, edge_WJ: Floats) -> Places:
    """Iteration that moments of workers' own clocks lie in; a boundary belongs to the one before it. intp [E]."""
    apart = apart_of(edge_WJ)
    at = np.searchsorted((edge_WJ + rows_of(edge_WJ) * apart).ravel(), time_E + worker_E * apart, side="left") - 1
    return np.asarray(np.clip(at - worker_E * edge_WJ.shape[1], 0, edge_WJ.shape[1] - 2), dtype=np.intp)


def apart_of(edge_WJ: Floats) -> float:
    """More than any two times of one worker differ by: with it, times of all workers lie in one sorted array."""
    return 4.0 * float(np.abs(edge_WJ).max()) + 1e3


def rows_of(array: Floats) -> Floats:
    """Numbers of its rows. float64 [W, 1]."""
    return np.arange(array.shape[0], dtype=np.float64)[:, None]


class MainLine:
    """Own progress by own clock: the clock less all time stood still before.

    Attributes:
        at_end: Progress when each execution ended. float64 [E].
    """

    def __init__(self, worker: Places, end: Floats, held: Floats, edge_WJ: Floats) -> None:
        self._apart = apart_of(edge_WJ)
        self._worker, self._key = worker, end + worker * self._apart
        total = np.concatenate([[0.0], np.cumsum(held)])
        begin_W = np.searchsorted(worker, np.arange(edge_WJ.shape[0] + 1))
        self._begin_W = begin_W
        self._held = total[1:] - total[begin_W[worker]]
        # Parts of two executions that overlap may lie before the end of the one that ended first: move them there.
        plain = end - self._held + worker * self._apart
        back = np.minimum.accumulate(plain[::-1])[::-1]
        self.at_end = np.maximum(back - worker * self._apart, 0.0)

    def progress(self, worker: Places, time: Floats, after: bool = False) -> Floats:
        """Progress of workers at moments of their own clocks; `after` counts what ends just then as over."""
        at = np.searchsorted(self._key, time + worker * self._apart, side="right" if after else "left")
        at = np.clip(at, self._begin_W[worker], self._begin_W[worker + 1])
        has_next, has_last = at < self._begin_W[worker + 1], at > self._begin_W[worker]
        held = np.concatenate([self._held, [0.0]])
        ends = np.concatenate([self.at_end, [0.0]])
        found = time - np.where(has_last, held[at - 1], 0.0)
        found = np.where(has_next, np.minimum(found, ends[at]), found)
        return np.maximum(np.where(has_last, np.maximum(found, ends[at - 1]), found), 0.0)
