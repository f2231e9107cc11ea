"""The window that is being worked on: its workers, their answers, and the workers that are left out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from eroica.collector.opening import Wanted
from eroica.model.pattern import WorkerPattern
from eroica.model.window import UnderwayRecord, Window
from eroica.wire.messages import OrderResult, WorkerStatus

Phase = Literal["probe", "window", "patterns", "analysis"]
_MISSED = ("missed", "skipped", "failed")
_OVER = ("closed", "done")
#: What a worker has captured until it ends, its host hands over, or says why not.
_BEGUN = ("open", *_OVER)
#: Workers left out whose reason is told; the rest is a number.
_NAMED = 20


@dataclass
class Underway:
    """One window from the probe to its analysis.

    Attributes:
        window: As it was last ordered.
        wanted: What it was opened for.
        phase: How far it is.
        asked_at: When it was opened, seconds.
        deadline: Until when its phase may last, seconds.
        ranks: Global ranks that take part.
        patterns: Heads of those that came in (`eroica.collector.arrivals`), by global rank.
        left_out: Why, by global rank.
        serial: Number of the order for the window itself; 0 before it.
        resumed_at: When we took it over from a collector that died, seconds; 0 = it is our own.
        first_probes: Answers of a probe that met a long iteration and was followed by another, by global rank.
        stale: Answers to an earlier probe than the last one, by global rank.
        operators: Torch's operators are recorded, too.
        notes: What the window had to give up.
    """

    window: Window
    wanted: Wanted
    asked_at: float
    deadline: float
    ranks: frozenset[int]
    phase: Phase = "probe"
    patterns: dict[int, WorkerPattern] = field(default_factory=dict)
    left_out: dict[int, str] = field(default_factory=dict)
    serial: int = 0
    resumed_at: float = 0.0
    first_probes: dict[int, OrderResult] = field(default_factory=dict)
    stale: dict[int, OrderResult] = field(default_factory=dict)
    operators: bool = True
    notes: list[str] = field(default_factory=list)

    @property
    def waiting_for(self) -> set[int]:
        """Ranks whose pattern may still come."""
        return set(self.ranks) - set(self.patterns) - set(self.left_out)

    def record(self, now: float, wall_s: float) -> UnderwayRecord:
        """Describe the window for another collector that goes on with it.

        Args:
            now: Seconds, on our own clock.
            wall_s: The same moment in seconds since 1970.
        """
        runs: list[tuple[int, int]] = []
        for rank in sorted(self.ranks):
            first = runs.pop()[0] if runs and runs[-1][1] == rank - 1 else rank
            runs.append((first, rank))
        return UnderwayRecord(
            window=self.window,
            serial=self.serial,
            ranks=tuple(runs),
            asked_at=wall_s - (now - self.asked_at),
            until=wall_s + (self.deadline - now),
            resumed=self.resumed_at > 0,
        )

    @property
    def in_words(self) -> str:
        """Present phase of the window, for people."""
        window = self.window
        span = f"iterations {window.first_iteration} to {window.last_iteration}"
        words: dict[Phase, str] = {
            "probe": f"measuring one iteration ({window.reason})",
            "window": f"capturing {span} ({window.reason})",
            "patterns": "summarizing on the workers' hosts",
            "analysis": f"comparing {len(self.patterns)} workers",
        }
        return f"window {window.window_id}: {words[self.phase]}"

    def expects(self, pattern: WorkerPattern) -> bool:
        """The pattern is of this window and of a worker in it."""
        return pattern.window_id == self.window.window_id and pattern.worker.global_rank in self.ranks

    # ------------------------------------------------------------------ the probe

    def is_probed(self, workers: Iterable[WorkerStatus]) -> bool:
        """Everybody has measured one iteration, cannot, or is gone."""
        workers = list(workers)
        answers = self._probed(workers)
        finished = {rank for rank, result in answers.items() if result.status in ("done", *_MISSED)}
        return finished | self._gone(workers) >= self.ranks

    def probes(self, workers: Iterable[WorkerStatus]) -> dict[int, OrderResult]:
        """Results of the last probe, by global rank."""
        return {rank: result for rank, result in self._probed(workers).items() if result.status == "done"}

    def _probed(self, workers: Iterable[WorkerStatus]) -> dict[int, OrderResult]:
        answers = self._answers(workers, "probe")
        return {rank: result for rank, result in answers.items() if result != self.stale.get(rank)}

    def why_not_probed(self, workers: Iterable[WorkerStatus]) -> str:
        """Reasons that workers give instead of a measurement, in words."""
        reasons = {result.note for result in self._answers(workers, "probe").values() if result.note}
        return "; ".join(sorted(reasons)) or "no worker answered in time"

    # ------------------------------------------------------------------ the window

    def leave_out(self, workers: Iterable[WorkerStatus]) -> None:
        """Wait no longer for workers that missed the window, failed in it or ended before it was opened."""
        workers = list(workers)
        answers = self._answers(workers, "window")
        for rank, result in answers.items():
            if result.status in _MISSED:
                self.left_out.setdefault(rank, result.note or result.status)
        for rank in self._gone(workers):
            begun = rank in answers and answers[rank].status in _BEGUN
            if not begun and rank not in self.patterns:
                self.left_out.setdefault(rank, "the worker ended before the window was opened")

    def leave_out_the_late(self) -> None:
        """Wait no longer for any worker."""
        for rank in sorted(self.waiting_for):
            self.left_out[rank] = "no pattern before the deadline"

    def is_captured(self, workers: Iterable[WorkerStatus]) -> bool:
        """The window is over on every worker that is not left out."""
        workers = list(workers)
        answers, gone = self._answers(workers, "window"), self._gone(workers)
        over = {rank for rank, result in answers.items() if result.status in _OVER or rank in gone}
        return bool(over) and self.ranks <= over | set(self.left_out)

    def omissions(self) -> list[str]:
        """Return what the window gave up, and workers left out, each with its reason; a bounded list."""
        named = [f"worker {rank}: {why}" for rank, why in sorted(self.left_out.items())[:_NAMED]]
        if len(self.left_out) > len(named):
            named.append(f"and {len(self.left_out) - len(named)} more workers left out")
        return [*self.notes, *named]

    @property
    def expected_workers(self) -> int:
        """Number of workers of the job, as far as this window knows."""
        world = max((p.worker.world_size for p in self.patterns.values()), default=len(self.ranks))
        return max(world, len(self.ranks))

    def _answers(self, workers: Iterable[WorkerStatus], kind: str) -> dict[int, OrderResult]:
        """Answers of the window's workers to this order, by global rank."""
        return {
            status.worker.global_rank: status.result
            for status in workers
            if status.worker.global_rank in self.ranks
            and status.result.window_id == self.window.window_id
            and status.result.kind == kind
        }

    def _gone(self, workers: Iterable[WorkerStatus]) -> set[int]:
        """Ranks of the window of which no process is there."""
        return set(self.ranks) - {status.worker.global_rank for status in workers if not status.ended}
