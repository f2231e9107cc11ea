"""Kernels that no table knows, found to be communication by what they do.

All workers leave a collective together, whenever they came: its ends agree and its beginnings do not. A kernel of
compute that follows a meeting begins together and ends apart, and one in between does both. So a kernel that all
workers run equally often is communication if its ends lie far closer together than its beginnings: on one clock, or,
since clocks of hosts differ by a constant, after each worker's usual difference is taken away from both.

Array suffixes: W workers, K executions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from eroica.model.trace import KernelTimes, TraceSummary

Floats = NDArray[np.float64]
#: Executions that are needed; of fewer, at least two, ends must agree so many times as well on one clock.
_FEWEST = 4
_SURELY = 20.0
#: Beginnings lie so many times as far apart as ends...
_CLEARLY = 5.0
#: ...and so far, in microseconds and as a share of the iteration: less is chance, and costs nothing.
_LEAST_US = 20.0
_LEAST_SHARE = 0.01
#: Where clocks differ, a worker that always comes late by as much could as well have another clock; then beginnings
#: must also vary so many times as much as ends from one execution to the next, and by so many microseconds.
_VARY = 3.0
_LEAST_VARYING_US = 5.0


def find_communication(summaries: Sequence[TraceSummary]) -> tuple[str, ...]:
    """Names of kernels that behave like communication.

    Args:
        summaries: One per rank, with what they tell about their longest kernels.
    """
    if len(summaries) < 2:
        return ()
    by_name = [{one.name: one for one in summary.kernels} for summary in summaries]
    shared = [name for name in by_name[0] if all(name in kernels for kernels in by_name)]
    iteration_us = min(_mean_iteration_us(summary) for summary in summaries)
    return tuple(sorted(n for n in shared if _waits([kernels[n] for kernels in by_name], iteration_us)))


def _mean_iteration_us(summary: TraceSummary) -> float:
    pattern = summary.pattern
    assert pattern is not None
    return pattern.duration_s * 1e6 / max(pattern.last_iteration - pattern.first_iteration, 1)


def _waits(times: Sequence[KernelTimes], iteration_us: float) -> bool:
    """Whether all workers leave a kernel together after they came apart."""
    if len({one.executions for one in times}) > 1 or times[0].executions < 2:
        return False
    is_enough = times[0].executions >= _FEWEST
    end_WK = np.stack([np.frombuffer(one.end_ns, dtype=np.int64) for one in times])
    end_WK = (end_WK - end_WK.min()) / 1e3
    begin_WK = end_WK - np.stack([np.frombuffer(one.length_ns, dtype=np.int64) for one in times]) / 1e3
    least_us = max(_LEAST_US, _LEAST_SHARE * iteration_us)
    if _apart(begin_WK) >= max((_CLEARLY if is_enough else _SURELY) * _apart(end_WK), least_us):
        return True
    if not is_enough:
        return False
    clock_W1 = np.median(end_WK - end_WK[0], axis=1, keepdims=True)
    ends_us, begins_us = _apart(_centered(end_WK)), _apart(_centered(begin_WK))
    if _apart(begin_WK - clock_W1) < max(_CLEARLY * ends_us, least_us):
        return False
    return begins_us >= max(_VARY * ends_us, _LEAST_VARYING_US)


def _apart(moment_WK: Floats) -> float:
    """How far apart workers usually are."""
    return float(np.median(moment_WK.max(axis=0) - moment_WK.min(axis=0)))


def _centered(moment_WK: Floats) -> Floats:
    """Without what each worker usually differs from the first one."""
    difference_WK = moment_WK - moment_WK[0]
    return np.asarray(difference_WK - np.median(difference_WK, axis=1, keepdims=True))
