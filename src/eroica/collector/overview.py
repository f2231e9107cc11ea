"""The whole job at a glance, for people."""

from __future__ import annotations

from collections.abc import Sequence

from eroica.collector.current_window import Underway
from eroica.collector.ledger import Ledger
from eroica.collector.participants import Roll
from eroica.wire.messages import JobStatus, WorkerStatus


def job_status(job: str, roll: Roll, ledger: Ledger, current: Underway | None, ended: bool) -> JobStatus:
    """Gather the present state of a job.

    Args:
        job: Its name.
        roll: Who takes part.
        ledger: Its windows so far.
        current: The window that is being worked on.
        ended: The job is over.
    """
    workers = sorted(roll, key=lambda status: status.worker.global_rank)
    living = [status for status in workers if not status.ended]
    means = [status.current_s for status in living if status.current_s is not None]
    bests = [status.baseline_s for status in living if status.baseline_s is not None]
    phase, message = _between_windows(living, ended) if current is None else (current.phase, current.in_words)
    return JobStatus(
        job=job,
        phase=phase,
        message=message,
        iteration=max((status.iteration for status in living or workers), default=0),
        mean_ms=1e3 * max(means) if means else None,
        best_ms=1e3 * max(bests) if bests else None,
        hosts=tuple(sorted(roll.hosts)),
        workers=tuple(workers),
        windows=ledger.lines,
        notes=tuple(ledger.notes),
    )


def _between_windows(living: Sequence[WorkerStatus], ended: bool) -> tuple[str, str]:
    """Phase and message of a job in which no window is open."""
    if ended:
        return "ended", "the job is over"
    if not living:
        return "waiting", "no worker has finished an iteration yet"
    if all(status.state == "learning" for status in living):
        return "learning", f"{len(living)} workers, learning their iterations"
    return "watching", f"{len(living)} workers, watching"
