"""One time for everything of a window: the trace's wall clock. Samples and boundaries come on CLOCK_MONOTONIC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eroica.errors import InputError
from eroica.model.window import ClockPair


class WallClock:
    """Converts between the two clocks of a host, with the wall clock's drift between the pairs.

    Args:
        pairs: The same moments on both clocks; taken at start and stop of the window.

    Raises:
        InputError: There is no pair.
    """

    def __init__(self, pairs: Sequence[ClockPair]) -> None:
        if not pairs:
            raise InputError("the capture has no clock pairs: the worker must write at least one")
        ordered = sorted(pairs, key=lambda pair: pair.monotonic_ns)
        self._origin = ordered[0].monotonic_ns
        self._base = ordered[0].realtime_ns - ordered[0].monotonic_ns
        self._since = np.array([pair.monotonic_ns - self._origin for pair in ordered], dtype=np.float64)
        drift = [pair.realtime_ns - pair.monotonic_ns - self._base for pair in ordered]
        self._drift = np.array(drift, dtype=np.float64)

    def from_monotonic(self, monotonic_ns: NDArray[Any] | Sequence[int]) -> NDArray[np.int64]:
        """Wall-clock nanoseconds of CLOCK_MONOTONIC ones. int64, same shape."""
        time = np.asarray(monotonic_ns, dtype=np.int64)
        return time + self._base + self._drift_at(time)

    def to_monotonic(self, wall_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """The way back; exact to the drift within the drift itself."""
        time = np.asarray(wall_ns, dtype=np.int64) - self._base
        return time - self._drift_at(time)

    def _drift_at(self, monotonic_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        drift = np.interp((monotonic_ns - self._origin).astype(np.float64), self._since, self._drift)
        return np.rint(drift).astype(np.int64)
