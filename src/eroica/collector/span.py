"""Where a window begins and how many iterations it holds, from what the workers report of their pace."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from eroica.collector.opening import SHORTEST_S, Wanted
from eroica.settings import Settings
from eroica.wire.messages import WorkerStatus

#: Trace events of a worker that no window may exceed: about 2 s of stall at 4 microseconds for each.
_HARD_EVENTS = 500_000
#: Iterations between the order and the window, at least: one that is under way cannot be the first.
_LEAST_LEAD = 2


def in_training(workers: Iterable[WorkerStatus]) -> list[WorkerStatus]:
    """Workers in full swing: they are past their first iterations, and their pace is known."""
    return [
        status
        for status in workers
        if not status.ended and status.state in ("steady", "capturing", "saving") and status.current_s
    ]


def slowest_s(training: Iterable[WorkerStatus]) -> float:
    """Highest mean of recent iterations, seconds; at least one worker."""
    return max(status.current_s or 0.0 for status in training)


def best_s(training: Iterable[WorkerStatus]) -> float | None:
    """Lowest mean of recent iterations, of the worker whose lowest is highest: all wait for each other."""
    return max((status.baseline_s for status in training if status.baseline_s), default=None)


def lead(iteration_s: float, settings: Settings) -> int:
    """Iterations until the window opens, so that the order reaches everybody in time."""
    return max(_LEAST_LEAD, math.ceil(settings.window_lead_s / max(iteration_s, SHORTEST_S)))


def first_iteration(training: Sequence[WorkerStatus], iteration_s: float, settings: Settings) -> int:
    """The iteration that nobody reaches before the order does."""
    return max(status.iteration for status in training) + lead(iteration_s, settings)


def iterations(wanted: Wanted, iteration_s: float, events: int, max_events: int, settings: Settings) -> int:
    """Length of the window: the wanted time, what statistics need, and the tightest budget.

    Args:
        wanted: What the window was opened for.
        iteration_s: Of the slowest worker, seconds.
        events: Trace events of one iteration, of the worker that makes most.
        max_events: The tightest budget for the whole window.
        settings: Tunables.
    """
    asked = wanted.iterations or math.ceil(wanted.seconds / max(iteration_s, SHORTEST_S))
    most = asked if wanted.pace_s else settings.max_window_iterations  # slowness that comes and goes shows in a period
    return max(settings.min_window_iterations, min(asked, most, max_events // events))


def objection(length: int, events: int) -> str:
    """Why a window of so many iterations, with so many events in each, cannot be captured; "" if it can."""
    if length * events <= _HARD_EVENTS:
        return ""
    return f"one iteration makes {events} trace events: even {length} iterations would stop the training for seconds"
