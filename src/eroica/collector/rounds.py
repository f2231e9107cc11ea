"""Gather the same iterations of every worker into rounds, though hosts report at different moments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from eroica.collector.participants import WorkerKey

#: Hosts report at least so often.
_TOLD_S = 0.25


class Means(NamedTuple):
    """Mean iteration of each worker in a round, seconds, by global rank."""

    of_worker: dict[int, float]

    @property
    def mean_s(self) -> float:
        """Over workers."""
        return sum(self.of_worker.values()) / len(self.of_worker)

    @property
    def slowest(self) -> tuple[int, float]:
        """The worker with the longest mean, and that."""
        rank = max(self.of_worker, key=self.of_worker.__getitem__)
        return rank, self.of_worker[rank]


class _Sum:
    """Iterations and seconds by global rank; who they came from, and the highest iteration among them."""

    __slots__ = ("highest", "spent", "workers")

    def __init__(self) -> None:
        self.spent: dict[int, tuple[int, float]] = {}
        self.workers: set[WorkerKey] = set()
        self.highest = 0

    def add(self, key: WorkerKey, rank: int, before: int, done: int, mean_s: float) -> None:
        count, seconds = self.spent.get(rank, (0, 0.0))
        self.spent[rank] = count + done - before, seconds + (done - before) * mean_s
        self.workers.add(key)
        self.highest = max(self.highest, done)


class Round:
    """Adds up what workers completed, and knows when all have completed the same.

    A host that reports right behind an iteration in which everybody paused tells of it, the others do so a moment
    later. So a round does not end with a report. When it is long enough, all may report once more; then it takes *aim*
    at the highest iteration told so far, and lasts until everybody who moves at all is there. What was completed beyond
    that belongs to the next round.
    """

    def __init__(self) -> None:
        self._now, self._next = _Sum(), _Sum()
        self._aim: int | None = None
        self._behind: set[WorkerKey] = set()
        self._movers: set[WorkerKey] | None = None

    @property
    def is_empty(self) -> bool:
        """True if no worker has completed an iteration in it."""
        return not self._now.spent

    def add(self, key: WorkerKey, rank: int, before: int, done: int, mean_s: float) -> None:
        """A worker completed iterations `before + 1 ... done`, in so many seconds each."""
        if self._aim is None or done <= self._aim:
            self._now.add(key, rank, before, done, mean_s)
        else:
            middle = max(before, self._aim)
            if before < middle:
                self._now.add(key, rank, before, middle, mean_s)
            self._next.add(key, rank, middle, done, mean_s)
        if self._aim is not None and done >= self._aim:
            self._behind.discard(key)

    def is_over(self, due_s: float, patience_s: float, workers: Iterable[tuple[WorkerKey, int]]) -> bool:
        """Return whether all workers have completed the round, or have been waited for long enough.

        To be asked again and again, also while nobody completes anything.

        Args:
            due_s: For how long it has been long enough, and not empty.
            patience_s: How long to wait.
            workers: All, with the iterations they have completed.
        """
        if due_s < _TOLD_S:
            return False
        if self._aim is None:
            self._aim = self._now.highest
            moving = self._now.workers if self._movers is None else self._now.workers | self._movers
            self._behind = {
                key for key, done in workers if done < self._aim and (self._movers is None or key in moving)
            }
        return not self._behind or due_s - _TOLD_S >= patience_s

    def close(self) -> Means:
        """End the round; the next one has begun already."""
        means = Means({rank: seconds / count for rank, (count, seconds) in self._now.spent.items()})
        self._movers = self._now.workers
        self._now, self._next = self._next, _Sum()
        self._aim = None
        return means
