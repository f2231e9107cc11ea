"""Iteration times over a job's life in bounded room: the last ones second by second, the others evenly thinned."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from eroica.model.history import IterationHistory

#: The newest stretches stay as they are: five minutes, where iterations are short.
FINE = 300
#: Older ones; with the newest at most 2,000.
_MOST_THINNED = 1700


class Stretch(NamedTuple):
    """One value of each column of `IterationHistory`."""

    at_s: float
    iteration: int
    mean_ms: float
    slowest_ms: float
    slowest_worker: int


class Stretches:
    """The columns of `IterationHistory` in order of time; the newest ones know their version."""

    def __init__(self) -> None:
        self._thinned: list[Stretch] = []
        self._fine: deque[tuple[int, Stretch]] = deque()
        self._per_point = 1
        self._in_last = 0

    @property
    def last(self) -> Stretch | None:
        """The newest one."""
        return self._fine[-1][1] if self._fine else self._thinned[-1] if self._thinned else None

    def __len__(self) -> int:
        return len(self._thinned) + len(self._fine)

    def add(self, version: int, stretch: Stretch) -> None:
        """One more."""
        self._fine.append((version, stretch))
        if len(self._fine) > FINE:
            self._thin(self._fine.popleft()[1])

    def all(self) -> list[Stretch]:
        """The whole life of the job."""
        return [*self._thinned, *(stretch for _, stretch in self._fine)]

    def since(self, version: int) -> list[Stretch] | None:
        """Stretches that are newer than a version; None where some of them may already be merged with older ones."""
        if self._thinned and version < self._fine[0][0] - 1:
            return None
        newer = []
        for own, stretch in reversed(self._fine):
            if own <= version:
                break
            newer.append(stretch)
        return newer[::-1]

    def resume(self, version: int, history: IterationHistory) -> None:
        """Go on after stretches of a collector before this one; all of them count as one version."""
        found = list(
            map(Stretch._make, zip(history.at_s, history.iteration, history.mean_ms, history.slowest_ms,
                                   history.slowest_worker, strict=True))
        )  # fmt: skip
        self._thinned = found[:-FINE]
        self._fine = deque((version, stretch) for stretch in found[-FINE:])
        self._per_point = max(1, round(_usual_length(found[:-FINE]) / (_usual_length(found[-FINE:]) or 1.0)))
        self._make_room()
        self._in_last = self._per_point

    def _thin(self, stretch: Stretch) -> None:
        """Take in one that is no longer new."""
        if self._thinned and self._in_last < self._per_point:
            self._thinned[-1] = merged(self._thinned[-1], stretch, self._thinned[-2].at_s if self._thinned[1:] else 0.0)
            self._in_last += 1
            return
        self._thinned.append(stretch)
        self._in_last = 1
        self._make_room()

    def _make_room(self) -> None:
        while len(self._thinned) > _MOST_THINNED:
            self._thinned = _paired(self._thinned)
            self._per_point *= 2


def merged(first: Stretch, second: Stretch, start_s: float) -> Stretch:
    """Two neighbors as one: the mean weighted by time, the slowest of both.

    Args:
        first: The earlier one.
        second: The one after it.
        start_s: When the earlier one began.
    """
    lasted = max(first.at_s - start_s, 0.0), max(second.at_s - first.at_s, 0.0)
    weight = lasted[1] / sum(lasted) if sum(lasted) > 0 else 0.5
    slowest = max(first, second, key=lambda stretch: stretch.slowest_ms)
    return Stretch(
        at_s=second.at_s,
        iteration=second.iteration,
        mean_ms=round(first.mean_ms + weight * (second.mean_ms - first.mean_ms), 3),
        slowest_ms=slowest.slowest_ms,
        slowest_worker=slowest.slowest_worker,
    )


def _paired(stretches: Sequence[Stretch]) -> list[Stretch]:
    """Half as many; an odd one at the end stays alone."""
    starts = [0.0, *(stretch.at_s for stretch in stretches)]
    pairs = [
        merged(first, second, starts[2 * at])
        for at, (first, second) in enumerate(zip(stretches[::2], stretches[1::2], strict=False))
    ]
    return [*pairs, stretches[-1]] if len(stretches) % 2 else pairs


def _usual_length(stretches: Iterable[Stretch]) -> float:
    lengths = [second.at_s - first.at_s for first, second in pairwise(stretches)]
    return median(lengths) if lengths else 0.0
