"""Choose the first iteration of a window and its length, from the pace that the workers report."""

from __future__ import annotations

import math
from collections.abc import Iterable

from eroica.collector.opening import MIN_ITERATIONS, SHORTEST_S, Wanted
from eroica.settings import Settings
from eroica.wire.messages import OrderResult, WorkerStatus

#: What one trace event of a worker costs the training when recording ends, seconds.
_STALL_S = 4e-6
#: Iterations between the order and the window, at least: one that is under way cannot be the first.
_LEAST_LEAD = 2
#: While nothing is under way, the hosts of a job of up to 125 report some 250 times a second together; none of them too
#: late for an order, which leaves a second (`window_lead_s`).
_QUIET_PAUSE_S, _LONGEST_QUIET_PAUSE_S = 4e-3, 0.5
#: Reports a second of all hosts that one process takes in beside its other work. Whoever is silent for longer than the
#: longest pause and a second looks for another collector (`eroica.agent.home`).
_MOST_REPORTS_HZ, _LONGEST_PAUSE_S = 1000.0, 4.0
#: A probed iteration that is shorter than usual by this factor stands for no other.
_UNLIKE = 1.5
#: A shorter window tells little of what comes and goes, seconds...
ENOUGH_S = 1.0
#: ...but no window is made longer than this for its number of iterations.
LONGEST_S = 60.0
_FEWEST = 2  # iterations that can be compared with each other
#: Recording an operator takes so long, seconds, and may make iterations longer by this share.
_RECORDING_S, _LONGER = 0.5e-6, 0.2


def in_training(workers: Iterable[WorkerStatus]) -> list[WorkerStatus]:
    """Workers in full swing: their iterations are known, and roughly how long one takes."""
    return [
        status
        for status in workers
        if not status.ended and status.state in ("steady", "capturing", "saving") and status.current_s
    ]


def slowest_s(training: Iterable[WorkerStatus]) -> float:
    """Longest recent iteration of a worker (`WorkerStatus.current_s`), seconds; at least one worker."""
    return max(status.current_s or 0.0 for status in training)


def best_s(training: Iterable[WorkerStatus]) -> float | None:
    """Lowest mean of recent iterations, of the worker whose lowest is highest: all wait for each other."""
    return max((status.baseline_s for status in training if status.baseline_s), default=None)


def report_pause_s(hosts: int, is_busy: bool) -> float:
    """Seconds that an agent may wait until its next report; agents wait `eroica.wire.patience.REPORT_S` at least.

    Args:
        hosts: Hosts of the job.
        is_busy: A window or a standstill is under way.
    """
    thinned_s = min(hosts / _MOST_REPORTS_HZ, _LONGEST_PAUSE_S)
    return thinned_s if is_busy else max(thinned_s, min(_QUIET_PAUSE_S * hosts, _LONGEST_QUIET_PAUSE_S))


def lead(iteration_s: float, hosts: int, settings: Settings) -> int:
    """Iterations until the window opens, so that the order reaches all workers in time."""
    lead_s = settings.window_lead_s + report_pause_s(hosts, is_busy=True)
    return max(_LEAST_LEAD, math.ceil(lead_s / max(iteration_s, SHORTEST_S)))


def farthest(training: Iterable[WorkerStatus]) -> int:
    """Iterations that the worker has completed that is farthest."""
    return max(status.iteration for status in training)


def events_of(probe: OrderResult, iteration_s: float) -> int:
    """Trace events of one iteration, from a probe that may have met a short one.

    Where iterations take turns (several updates for one rollout), most of the events are in the few that are long.

    Args:
        probe: What one worker answered.
        iteration_s: The usual iteration, of the quickest worker, seconds.
    """
    longer = iteration_s / probe.duration_s if probe.duration_s > 0 else 1.0
    return math.ceil(probe.events * longer) if longer > _UNLIKE else probe.events


def is_long(probes: Iterable[OrderResult], iteration_s: float) -> bool:
    """Return whether a probe met an iteration that is far longer than usual, so that its events stand for no other.

    Args:
        probes: What the workers answered.
        iteration_s: The usual iteration, of the quickest worker, seconds.
    """
    return any(probe.duration_s > _UNLIKE * iteration_s > 0 for probe in probes)


def events_between(first: OrderResult, second: OrderResult, iteration_s: float) -> int:
    """Trace events of the mean iteration of one worker, where a second probe followed one that met a long iteration.

    Iterations are of two kinds then, and the mean duration says how many there are of each: events lie as far between
    the two probes' as that lies between their durations.

    Args:
        first: What the worker answered first.
        second: What it answered then.
        iteration_s: The mean iteration, seconds.
    """
    apart_s = first.duration_s - second.duration_s
    if apart_s <= 0 or first.duration_s <= _UNLIKE * second.duration_s:
        return max(first.events, second.events)
    share = min(max((iteration_s - second.duration_s) / apart_s, 0.0), 1.0)
    return math.ceil(second.events + share * (first.events - second.events))


def enough(iteration_s: float) -> int:
    """Iterations that a window should hold: some, a second of them, but no more than fit into a minute."""
    pace_s = max(iteration_s, SHORTEST_S)
    some = max(MIN_ITERATIONS, math.ceil(ENOUGH_S / pace_s))
    return max(_FEWEST, min(some, math.floor(LONGEST_S / pace_s)))


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
    least = max(enough(iteration_s), wanted.least)
    if not wanted.iterations:
        asked = max(min(asked, settings.max_window_iterations), least)
    else:
        asked = min(asked, max(settings.max_window_iterations, least))
    return max(_FEWEST, min(asked, max_events // events))


def is_slowed(training: Iterable[WorkerStatus], events: int, iteration_s: float) -> bool:
    """Return whether recording operators makes iterations on CPUs clearly longer.

    Where devices compute, most events are theirs, and cost the host nothing.
    """
    on_cpu = all(status.worker.device in ("", "cpu") for status in training)
    return on_cpu and _RECORDING_S * events > _LONGER * iteration_s


def shortfall(length: int, iteration_s: float, events: int, wanted: Wanted) -> str:
    """Tell what a window lacks that holds fewer iterations or seconds than it should; "" where it lacks nothing.

    Args:
        length: Iterations that it holds.
        iteration_s: Of the slowest worker, seconds.
        events: Trace events of one iteration, without operators.
        wanted: What it was opened for.
    """
    length_s = length * iteration_s
    if length >= MIN_ITERATIONS and length_s >= 0.99 * ENOUGH_S:
        return ""
    if wanted.iterations and length >= wanted.iterations:
        why = "as it was asked for"
    elif length >= enough(iteration_s):
        why = f"iterations take {iteration_s:.3g} s"
    else:
        why = f"even without operators one iteration makes {events:,} trace events"
    return f"the window holds {length} iterations in {length_s:.2g} s: {why}"


def objection(length: int, events: int, settings: Settings) -> str:
    """Tell why a window of so many iterations, with so many events in each, cannot be captured; "" if it can."""
    if length * events <= settings.hard_window_events:
        return ""
    return (
        f"one iteration makes {events} trace events: {length} iterations would stop the training for about "
        f"{_STALL_S * length * events:.0f} s; set hard_window_events to {length * events} to allow that"
    )
