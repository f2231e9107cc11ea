"""Kernels that no table knows, found to be communication by what they do.

All workers leave a collective together, whenever they came: its ends agree and its beginnings do not. A kernel of
compute that follows a meeting begins together and ends apart, and one in between does both. So a kernel that all
workers run equally often is communication if its ends lie far closer together than its beginnings: on one clock, or,
since clocks of hosts differ by a constant, after each worker's usual difference is taken away from both. Where a
recording has lost a few of them, those count that end next to each other on all workers.

Compute that trades time (a rank with longer attention and shorter experts) ends together, too, but only as well as
compute keeps time. Where the recording holds communication that a table knows, that shows how well its ends agree.

Array suffixes: W workers, K executions, X any axes before.
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
#: Ends lie so many times as far apart as those of known communication, and at least so far, or they are none.
_LOOSER = 5.0
_LOOSE_US = 10.0
#: Where clocks differ, a worker that always comes late by as much could as well have another clock; then beginnings
#: must also vary so many times as much as ends from one execution to the next, and by so many microseconds.
_VARY = 3.0
_LEAST_VARYING_US = 5.0
#: Of unequally many executions so many must have one on every other worker; fewer are no losses, but other work.
_PAIRED = 0.8


def find_communication(summaries: Sequence[TraceSummary]) -> tuple[str, ...]:
    """Names of kernels that behave like communication.

    Args:
        summaries: One per rank, with what they tell about their longest kernels.
    """
    if len(summaries) < 2:
        return ()
    by_name = [{one.name: one for one in summary.kernels} for summary in summaries]
    shared = {n: [kernels[n] for kernels in by_name] for n in by_name[0] if all(n in kernels for kernels in by_name)}
    iteration_us = min(_mean_iteration_us(summary) for summary in summaries)
    met = {name: _met(times) for name, times in shared.items()}
    known = [_ends_apart(met[name][1]) for name, times in shared.items() if times[0].is_known]
    most_us = max(_LOOSER * min(known, default=np.inf), _LOOSE_US)
    found = [
        name
        for name, times in shared.items()
        if not times[0].is_known and _waits(times, *met[name], iteration_us) and _ends_apart(met[name][1]) <= most_us
    ]
    return tuple(sorted(found))


def _mean_iteration_us(summary: TraceSummary) -> float:
    pattern = summary.pattern
    assert pattern is not None
    return pattern.duration_s * 1e6 / max(pattern.last_iteration - pattern.first_iteration, 1)


def _met(times: Sequence[KernelTimes]) -> tuple[Floats, Floats]:
    """Beginnings and ends of the executions that belong together, microseconds. float64 [W, K] each."""
    ends = [np.frombuffer(one.end_ns, dtype=np.int64) for one in times]
    places_WK = _paired([one.executions for one in times], ends)
    end_WK = np.stack([end_K[places_K] for end_K, places_K in zip(ends, places_WK, strict=True)])
    end_WK = (end_WK - end_WK.min(initial=np.iinfo(np.int64).max)) / 1e3
    lengths = (np.frombuffer(one.length_ns, dtype=np.int64) for one in times)
    return end_WK - np.stack([one_K[at_K] for one_K, at_K in zip(lengths, places_WK, strict=True)]) / 1e3, end_WK


def _waits(times: Sequence[KernelTimes], begin_WK: Floats, end_WK: Floats, iteration_us: float) -> bool:
    """Whether all workers leave a kernel together after they came apart."""
    if end_WK.shape[1] < 2:
        return False
    is_enough = end_WK.shape[1] >= _FEWEST
    least_us = max(_LEAST_US, _LEAST_SHARE * iteration_us)
    if is_enough and _ends_anyway(begin_WK, end_WK, least_us):
        return False
    if _apart(begin_WK) >= max((_CLEARLY if is_enough else _SURELY) * _apart(end_WK), least_us):
        return True
    if not is_enough or len({one.executions for one in times}) > 1:  # pairing by ends has taken them for one clock's
        return False
    clock_W1 = _middle(end_WK - end_WK[0])[:, None]
    ends_us, begins_us = _apart(_centered(end_WK)), _apart(_centered(begin_WK))
    if _apart(begin_WK - clock_W1) < max(_CLEARLY * ends_us, least_us):
        return False
    return begins_us >= max(_VARY * ends_us, _LEAST_VARYING_US)


def _ends_anyway(begin_WK: Floats, end_WK: Floats, least_us: float) -> bool:
    """Whether a kernel ends when it always does, however late its last worker comes: a transfer would take as long."""
    clock_W1 = _middle(end_WK - end_WK[0])[:, None]
    end_K, last_K = (end_WK - clock_W1).max(axis=0), (begin_WK - clock_W1).max(axis=0)
    return bool((end_K - last_K).std() >= max(_CLEARLY * np.diff(end_K).std(), least_us))


def _ends_apart(end_WK: Floats) -> float:
    """How far apart workers leave a kernel, each one's usual difference taken away; infinite where that is unknown."""
    if end_WK.shape[1] < 2:
        return float("inf")
    return _apart(_centered(end_WK) if end_WK.shape[1] >= _FEWEST else end_WK)


def _paired(executions: Sequence[int], ends: Sequence[NDArray[np.int64]]) -> NDArray[np.intp]:
    """Places of the executions that belong together: in order where all have equally many, else by their ends.

    Args:
        executions: How many each worker has.
        ends: Of the first of them, in order; int64 [K], with another K for each.

    Returns:
        For each worker the places in its executions. intp [W, K]; K is 0 where too many have no counterpart.
    """
    if len(set(executions)) == 1:
        return np.tile(np.arange(ends[0].size, dtype=np.intp), (len(ends), 1))
    if min(executions) < _PAIRED * max(executions):
        return np.zeros((len(ends), 0), dtype=np.intp)
    fewest = ends[int(np.argmin(executions))]
    places_WK = np.stack([_nearest(end_K, fewest) for end_K in ends])
    back_WK = np.stack([_nearest(fewest, end_K[at_K]) for end_K, at_K in zip(ends, places_WK, strict=True)])
    mutual_K = (back_WK == np.arange(fewest.size)).all(axis=0)
    most = max(end_K.size for end_K in ends)
    return places_WK[:, mutual_K & bool(mutual_K.sum() >= _PAIRED * most)]


def _nearest(known_K: NDArray[np.int64], wanted_N: NDArray[np.int64]) -> NDArray[np.intp]:
    """Places of the moments that lie next to those wanted. intp [N]."""
    after_N = np.clip(np.searchsorted(known_K, wanted_N), 1, known_K.size - 1)
    is_before = wanted_N - known_K[after_N - 1] <= known_K[after_N] - wanted_N
    return np.asarray(after_N - is_before, dtype=np.intp)


def _apart(moment_WK: Floats) -> float:
    """How far apart workers usually are."""
    return float(_middle(moment_WK.max(axis=0) - moment_WK.min(axis=0)))


def _centered(moment_WK: Floats) -> Floats:
    """Without what each worker usually differs from the first one."""
    difference_WK = moment_WK - moment_WK[0]
    return np.asarray(difference_WK - _middle(difference_WK)[:, None])


def _middle(value_XK: Floats) -> Floats:
    """Medians along the last axis; NumPy's own takes several times as long for so few values."""
    ordered_XK = np.sort(value_XK, axis=-1)
    executions = ordered_XK.shape[-1]
    return np.asarray((ordered_XK[..., (executions - 1) // 2] + ordered_XK[..., executions // 2]) / 2)
