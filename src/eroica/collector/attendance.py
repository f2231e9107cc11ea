"""Record the workers of a job, and tell which were watched all along: only these are said to be healthy.

A pure state machine.

A worker may never be seen, be lost (something of ours failed in it), drop out (nobody reports it any more, and nobody
saw it end), or end before anything could be told of its speed.

Times are the collector's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from eroica.collector.intake import MAX_WORKERS, clean_text
from eroica.collector.participants import AGENT_SILENT_S, WorkerKey
from eroica.model.words import plural, worker_list
from eroica.wire.messages import AgentReport, WorkerStatus
from eroica.wire.places import read_private

_MOST_LOGS = 200
_MOST_LOG_BYTES = 200_000
_FAILURE = "Eroica stops watching this worker"
_LONGEST_REASON = 160


class Attendance(NamedTuple):
    """Workers watched at the end of a job, and the gaps.

    Attributes:
        expected: Workers of the job, as far as anybody knows; 0 if none was ever seen.
        watched: Those that were watched all along, and long enough to tell.
        gaps: One clause for each kind of those that were not.
    """

    expected: int = 0
    watched: int = 0
    gaps: tuple[str, ...] = ()


@dataclass
class _Attended:
    """One process, as its agent told it."""

    rank: int
    world_size: int
    seen_at: float
    iteration: int = 0
    judged: bool = False
    ended: bool = False
    failure: str = ""
    failed_at: int = 0

    def take(self, now: float, status: WorkerStatus) -> None:
        self.rank, self.world_size, self.seen_at = status.worker.global_rank, status.worker.world_size, now
        self.iteration, self.ended = max(self.iteration, status.iteration), status.ended
        self.judged = self.judged or status.baseline_s is not None
        if status.state == "failed" and not self.failure:
            self.failure, self.failed_at = status.result.note or "something of Eroica's failed", status.iteration

    def went_on(self, former: _Attended) -> None:
        """The launcher has started the worker again; what came before counts as long as it was watched."""
        self.judged = self.judged or former.judged
        self.failure, self.failed_at = former.failure or self.failure, former.failed_at or self.failed_at


class Roster:
    """All processes that were ever seen as workers."""

    def __init__(self) -> None:
        self._attended: dict[WorkerKey, _Attended] = {}

    def reported(self, now: float, report: AgentReport) -> None:
        """Take in a clean report."""
        for status in report.workers:
            key = (report.host, status.worker.pid)
            known = self._attended.get(key)
            if known is None:
                if len(self._attended) >= 2 * MAX_WORKERS:
                    continue
                known = self._attended[key] = _Attended(status.worker.global_rank, status.worker.world_size, now)
            known.take(now, status)

    def attendance(self, now: float, lost: Sequence[str] = ()) -> Attendance:
        """Count the workers that were watched all along, as of now.

        Args:
            now: The job's end.
            lost: Why processes could not be watched that no agent has told of.
        """
        everybody = list(self._by_worker())
        world = max((one.world_size for one in everybody), default=0)
        ranks = {one.rank for one in everybody}
        never = [rank for rank in range(world) if rank not in ranks] if world > 1 else []
        failed = [one for one in everybody if one.failure]
        rest = [one for one in everybody if not one.failure]
        dropped = [one for one in rest if not one.ended and now - one.seen_at > AGENT_SILENT_S]
        short = [one for one in rest if one not in dropped and not one.judged]
        unseen = len(lost) - len(failed) if len(everybody) - len(failed) == 0 else 0
        gaps = (
            *_failures(failed),
            *_clause(dropped, lambda who, at: f"{who} dropped out at iteration {at}, and nobody saw it end"),
            *([f"{worker_list(never)} {'was' if len(never) == 1 else 'were'} never seen"] if never else []),
            *_clause(short, lambda who, at: f"{who} had only {plural(at, 'iteration')}, too few to tell"),
            *(f"one process could not be watched: {_short(why)}" for why in lost[:1] if unseen > 0),
        )
        watched = len(rest) - len(dropped) - len(short)
        return Attendance(max(world, len(everybody)), watched, gaps)

    def _by_worker(self) -> Iterable[_Attended]:
        """One for each rank of a job of several; of one that was started again what all its processes tell together."""
        if max((one.world_size for one in self._attended.values()), default=0) <= 1:
            return self._attended.values()
        newest: dict[int, _Attended] = {}
        for one in self._attended.values():
            former = newest.get(one.rank)
            newest[one.rank] = one
            if former is not None:
                one.went_on(former)
        return newest.values()


def _failures(failed: Sequence[_Attended]) -> list[str]:
    """Say the first failure of ours, on which worker, and how many more there were."""
    if not failed:
        return []
    first = min(failed, key=lambda one: one.failed_at)
    others = f"; so were {len(failed) - 1} more" if len(failed) > 1 else ""
    return [f"worker {first.rank} was lost at iteration {first.failed_at} ({_short(first.failure)}){others}"]


def _clause(some: Sequence[_Attended], say: Callable[[str, int], str]) -> list[str]:
    if not some:
        return []
    ranks = [one.rank for one in some]
    who = worker_list(ranks) if len(set(ranks)) == len(some) else f"{len(some)} processes"
    return [say(who, max(one.iteration for one in some))]


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 1]}…"


def failures_in(logs: Path) -> list[str]:
    """Read from the logs why processes of this host could not be watched.

    Processes of other hosts count too where they share the run directory.

    Args:
        logs: Directory of the logs.

    Returns:
        One line for each of them.
    """
    found = []
    try:
        for path in sorted(logs.glob("worker-*.log"))[:_MOST_LOGS]:
            text = read_private(path, _MOST_LOG_BYTES).decode("utf-8", "replace")
            if _FAILURE in text:
                lines = [line for line in text.splitlines() if line.strip() and not line[0].isspace()]
                found.append(clean_text(lines[-1]))
    except OSError:
        return found
    return found
