"""Bring the clocks of a window together: CLOCK_MONOTONIC, the trace's wall clock, and the sampler's own.

A sampler's file starts at zero, and zero is when the sampler began its work: 0.5 to 20 ms after it was started, on a
busy host. The trace says when the training thread was in its data loader, in the forward pass and in the optimizer; a
sampled stack says in which of them it was read. The shift at which most samples agree is the sampler's delay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eroica.errors import InputError
from eroica.model.pattern import Phase
from eroica.model.window import ClockPair
from eroica.summarize.phases import annotated_parts
from eroica.summarize.sweep import Times, inside
from eroica.trace.table import EventTable

_EARLIEST_NS = -20_000_000
_LATEST_NS = 150_000_000
_COARSE_NS = 1_000_000
_FINE_NS = 125_000
_LEAST_SAMPLES = 20
_LEAST_RISE = 3.0


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


def find_shift(time_S: Times, phase_S: Sequence[Phase], events: EventTable, thread: int) -> int:
    """Find the nanoseconds to add to the times of samples so that these agree best with the trace.

    Args:
        time_S: Samples of the training thread inside the window, wall clock. int64 [S].
        phase_S: Part of the iteration that each stack shows.
        events: The trace.
        thread: Kernel thread id of the training thread.

    Returns:
        The shift; 0 where too few samples or annotations could tell, or where no shift is better than none beyond
        chance.
    """
    names = np.array(phase_S)
    parts = {phase: spans for phase, spans in annotated_parts(events, thread).items() if len(spans[0])}
    shown = [(names == phase, spans) for phase, spans in parts.items()]
    if sum(int(mask.sum()) for mask, _ in shown) < _LEAST_SAMPLES:
        return 0
    coarse = np.arange(_EARLIEST_NS, _LATEST_NS + 1, _COARSE_NS)
    around = _best(coarse, time_S, shown)
    fine = around + np.arange(-_COARSE_NS, _COARSE_NS + 1, _FINE_NS)
    best = _best(fine, time_S, shown)
    agree, without = _agreement(np.array([best, 0]), time_S, shown).tolist()
    return int(best) if agree - without > _LEAST_RISE * np.sqrt(max(agree - without, 1.0)) else 0


def _best(
    shifts: NDArray[np.int64], time_S: Times, shown: Sequence[tuple[NDArray[np.bool_], tuple[Times, Times]]]
) -> int:
    """The middle of the shifts that agree most; where several stretches of them tie, of the one nearest to none."""
    agreement = _agreement(shifts, time_S, shown)
    top = np.flatnonzero(agreement == agreement.max())
    stretches = np.split(top, np.flatnonzero(np.diff(top) > 1) + 1)
    middles = [int(shifts[stretch[len(stretch) // 2]]) for stretch in stretches]
    return min(middles, key=abs)


def _agreement(
    shifts: NDArray[np.int64], time_S: Times, shown: Sequence[tuple[NDArray[np.bool_], tuple[Times, Times]]]
) -> NDArray[np.int64]:
    """Samples whose stack and trace agree on a part, summed over parts, for each shift."""
    moved = (time_S[None, :] + shifts[:, None]).ravel()
    total = np.zeros(len(shifts), dtype=np.int64)
    for mask, spans in shown:
        total += (inside(moved, *spans).reshape(len(shifts), -1) == mask[None, :]).sum(axis=1)
    return total
