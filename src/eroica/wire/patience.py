"""How long a window may take, in terms of the job's own iterations: one answer for collector, agent and worker.

Standard library only: the worker imports this. Iterations are waited for three times as long as they took before:
capturing makes them longer, and what slows the job down may get worse meanwhile.
"""

from __future__ import annotations

from eroica.settings import Settings

_TIMES = 3.0
#: Pause between two reports of an agent, seconds, and without any for so long the collector takes the job for ended.
REPORT_S, AGENT_SILENCE_S = 0.25, 60.0
#: Seconds for which the collector still answers after its last verdict.
FAREWELL_S = 2.0
#: Nobody is waited for longer than three times this until a window begins, seconds, whatever pace was reported.
_LONGEST_LEAD_S = 300.0
#: Iterations that a worker may need after the window before its profiler can be stopped.
_PARKED_ITERATIONS = 5


def until_open_s(lead: int, iteration_s: float) -> float:
    """Longest wait until a window opens, seconds.

    Args:
        lead: Iterations before it.
        iteration_s: How long one takes, seconds; 0 = unknown.
    """
    return _TIMES * min(max(0, lead) * iteration_s, _LONGEST_LEAD_S)


def open_s(iterations: int, iteration_s: float, settings: Settings) -> float:
    """Longest time for which a window stays open, seconds; a worker closes it by itself at the next boundary.

    Args:
        iterations: That it shall hold.
        iteration_s: How long one takes, seconds; 0 = unknown.
        settings: `window_deadline_s`, which is granted beside it.
    """
    return _TIMES * iterations * iteration_s + settings.window_deadline_s


def until_closed_s(lead: int, iterations: int, iteration_s: float, settings: Settings) -> float:
    """Longest wait from the order until the window is closed, seconds; arguments as above."""
    return until_open_s(lead, iteration_s) + open_s(iterations, iteration_s, settings)


def until_saved_s(iteration_s: float, settings: Settings) -> float:
    """Longest wait from a window's end until it is saved, seconds; the collector grants it for the summary, too."""
    return _PARKED_ITERATIONS * iteration_s + settings.window_deadline_s
