"""See to it that iterations of all workers mean the same: choose what all of them count, or say that there is nothing.

A learner steps an optimizer and its actors do not. Each of them counts what it has, so they would differ; but all of
them exchange data once an iteration. See `docs/decisions/iterations.md`.
"""

from __future__ import annotations

from collections.abc import Sequence

from eroica.model.words import worker_list
from eroica.wire import beat
from eroica.wire.messages import WorkerStatus

#: What workers count, in words.
_WORDS = {
    beat.BATCHES: "batches of its loader",
    beat.EXCHANGES: "exchanges with other workers",
    beat.BACKWARD: "backward passes",
    beat.OPTIMIZER: "steps of optimizers",
    beat.ANNOUNCED: "calls of eroica.step()",
}
#: Sources that workers can be ordered to count, best first.
_SHARED = (beat.OPTIMIZER, beat.EXCHANGES)
#: Workers drift apart if one has completed less than this share of another one's iterations...
_BEHIND = 0.7
#: ...and is so many behind; less may be the time between two reports.
_LEAST_BEHIND = 100
#: Seconds for which workers have to differ: they begin to step at different moments.
_PATIENCE_S = 10.0
_REMEDY = "call eroica.step() once an iteration on all ranks"


class SameIterations:
    """Follows what the workers of one job count: a state machine without I/O.

    Attributes:
        count_by: Source that all workers shall count; 0 = each as it does.
    """

    def __init__(self) -> None:
        self.count_by = beat.NO_SOURCE
        self._differ_since: float | None = None
        self._has_told = False

    def tick(self, now: float, living: Sequence[WorkerStatus]) -> str:
        """Time passed. Return what people should know, once; else ""."""
        wanted, told = source_for_all(living), "" if self._has_told else difference(living)
        if not wanted and not told:
            self._differ_since, self.count_by = None, beat.NO_SOURCE
            return ""
        self._differ_since = now if self._differ_since is None else self._differ_since
        if now - self._differ_since < _PATIENCE_S:
            return ""
        self.count_by = wanted
        self._has_told = self._has_told or bool(told)
        return told


def counting(living: Sequence[WorkerStatus]) -> list[WorkerStatus]:
    """Workers that have iterations, or learn them: not those where nothing has repeated yet."""
    return [status for status in living if status.source != beat.NO_SOURCE or status.state != "learning"]


def source_for_all(living: Sequence[WorkerStatus]) -> int:
    """Return the source by which workers shall count: the best that all have; 0 if they agree, or none have one."""
    workers = counting(living)
    shown = {status.source for status in workers}
    if len(shown) < 2 or beat.ANNOUNCED in shown:
        return beat.NO_SOURCE
    known = -1
    for status in workers:
        known &= status.known
    return next((source for source in _SHARED if known >> source & 1), beat.NO_SOURCE)


def difference(living: Sequence[WorkerStatus]) -> str:
    """Say how workers' iterations differ where nothing can be done about it; "" where they do not."""
    workers = counting(living)
    told = [status for status in workers if status.state != "learning" and status.source != beat.NO_SOURCE]
    by_source: dict[int, list[int]] = {}
    for status in told:
        by_source.setdefault(status.source, []).append(status.worker.global_rank)
    if len(by_source) > 1:
        if len(told) < len(workers) or source_for_all(living):
            return ""
        who = "; ".join(f"{worker_list(by_source[one])}: {_WORDS[one]}" for one in sorted(by_source, reverse=True))
        return f"workers count different things as iterations ({who}); {_REMEDY}"
    if not told:
        return ""
    last, first = (edge(told, key=lambda status: status.iteration) for edge in (min, max))
    behind = first.iteration - last.iteration
    if behind < _LEAST_BEHIND or last.iteration > _BEHIND * first.iteration or not last.iteration:
        return ""
    return (
        f"iterations of workers drift apart: worker {first.worker.global_rank} is at {first.iteration}, worker "
        f"{last.worker.global_rank} at {last.iteration}; to compare them, {_REMEDY}"
    )
