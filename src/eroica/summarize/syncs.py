"""Calls in which the host waits until the device has done all that it was given, and what the device loses by them.

While the host waits it launches nothing, so the device runs dry at the end of the wait and stays idle until the next
kernel is launched. Without the wait the host would have gone on launching; of that idle time at most as much is the
wait's fault as the host has waited. A call in which the device had nothing to do costs nothing: then the host is late
anyway.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import Synchronization
from eroica.summarize.activity import Outline
from eroica.summarize.functions import Functions
from eroica.summarize.sampled import ThreadSamples
from eroica.summarize.series import encode_series
from eroica.summarize.sweep import Times, unite
from eroica.trace.table import Category, EventTable

#: Calls of drivers that return when the device, a stream or an event is done; plain copies wait, asynchronous ones to
#: pageable memory are followed by one of these.
_CALLS = (
    *("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"),
    *("hipStreamSynchronize", "hipDeviceSynchronize", "hipEventSynchronize"),
    *("cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize", "xpuSynchronize"),
)
_COPIES = frozenset({"cudaMemcpy", "hipMemcpy", "cudaMemcpy2D", "hipMemcpyWithStream"})
#: Waits that belong to a library's own work, or to the profiler.
_NOT_THEIRS = ("ProfilerStep", "c10d::", "nccl:")
_MOST = 8
#: Operators that begin before a call and are looked at for it.
_MOST_NESTED = 12
_DEVICE = (Category.KERNEL, Category.MEMORY)


class _Waits(NamedTuple):
    """Waits of the host that drained the device. S of them.

    Attributes:
        row: Row in the table of events. int64 [S].
        waited_ns: Until the device had nothing left. int64 [S].
        lost_ns: Idle time of the device that follows from it. int64 [S].
    """

    row: NDArray[np.int64]
    waited_ns: Times
    lost_ns: Times


def find_syncs(
    events: EventTable,
    outline: Outline,
    edges_ns: Times,
    samples: ThreadSamples | None,
    functions: Functions,
) -> tuple[Synchronization, ...]:
    """Waits of the training thread for its device in a window, by what waits, the costliest first.

    Args:
        events: The whole trace.
        outline: Of the whole trace; nothing is found without an accelerator.
        edges_ns: Boundaries of the iterations, wall clock. int64 [I + 1].
        samples: Python of the training thread, to name who called.
        functions: Names of the samples.
    """
    if not outline.has_accelerator:
        return ()
    waits = _find_waits(events, outline, edges_ns)
    names = _operator_names(events, waits.row)
    groups: dict[str, list[int]] = defaultdict(list)
    for place, name in enumerate(names):
        groups[name].append(place)
    found = [_describe(events, waits, name, places, edges_ns, samples, functions) for name, places in groups.items()]
    return tuple(sorted(found, key=lambda one: (-one.lost_s, one.name))[:_MOST])


def _find_waits(events: EventTable, outline: Outline, edges_ns: Times) -> _Waits:
    wanted = [name.startswith(_CALLS) or name in _COPIES for name in events.strings]
    chosen = events.names_where(wanted) & (events.category == Category.RUNTIME)
    chosen &= np.isin(events.thread, (outline.training_thread, *outline.autograd_threads))
    chosen &= (events.start_ns >= edges_ns[0]) & (events.start_ns < edges_ns[-1])
    row = np.flatnonzero(chosen)
    busy = np.flatnonzero(np.isin(events.category, _DEVICE))
    nothing = _Waits(row[:0], np.empty(0, np.int64), np.empty(0, np.int64))
    if not len(row) or not len(busy):
        return nothing
    low, high = unite(events.start_ns[busy], events.end_ns[busy])
    start, end = events.start_ns[row], events.end_ns[row]
    last = np.searchsorted(high, end, side="right") - 1  # the last stretch of work that is over when the call returns
    following = np.minimum(last + 1, len(low) - 1)
    drained = high[np.maximum(last, 0)]
    is_dry = (last >= 0) & (last + 1 < len(low)) & (drained > start) & (low[following] >= end)
    waited = np.where(is_dry, drained - start, 0)
    lost = np.where(is_dry, np.minimum(low[following] - drained, waited), 0)
    kept = (end > start) & (lost >= 0)
    return _Waits(row[kept], waited[kept], lost[kept])


def _operator_names(events: EventTable, rows: NDArray[np.int64]) -> list[str]:
    """Name the operator that asked for each call, such as "aten::item"; a call outside any operator names itself.

    Only operators of the call's own thread are around it.
    """
    names = [""] * len(rows)
    for thread in np.unique(events.thread[rows]):
        operators = np.flatnonzero((events.category == Category.OPERATOR) & (events.thread == thread))
        for place in np.flatnonzero(events.thread[rows] == thread).tolist():
            row = int(rows[place])
            names[place] = _asked_for(_around(events, operators, int(events.start_ns[row]))) or events.name_of(row)
    return names


def _around(events: EventTable, operators: NDArray[np.intp], moment_ns: int) -> list[str]:
    """Names of the operators that are under way at a moment, the innermost first."""
    place = int(np.searchsorted(events.start_ns[operators], moment_ns, side="right"))
    nearby = operators[max(place - _MOST_NESTED, 0) : place][::-1]
    names = [events.name_of(int(row)) for row in nearby[events.end_ns[nearby] >= moment_ns]]
    return [name for name in names if not name.startswith(_NOT_THEIRS)]


def _asked_for(around: Sequence[str]) -> str:
    """The outermost of torch's own operators that directly enclose each other, else the innermost of any kind.

    "aten::item" calls "aten::_local_scalar_dense"; what encloses both, such as a compiled region, waits for much else.
    """
    torchs = list(takewhile(lambda name: name.startswith("aten::"), around))
    return torchs[-1] if torchs else next(iter(around), "")


def _describe(
    events: EventTable,
    waits: _Waits,
    name: str,
    places: Sequence[int],
    edges_ns: Times,
    samples: ThreadSamples | None,
    functions: Functions,
) -> Synchronization:
    rows = waits.row[list(places)]
    lost = waits.lost_ns[list(places)]
    iterations = len(edges_ns) - 1
    at = np.clip(np.searchsorted(edges_ns, events.start_ns[rows], side="right") - 1, 0, iterations - 1)
    per_iteration = np.bincount(at, weights=lost / 1000.0, minlength=iterations)
    calls = Counter(events.name_of(int(row)) for row in rows)
    return Synchronization(
        name=name[:200],
        call=calls.most_common(1)[0][0][:200],
        stack=_caller(events, rows, samples, functions),
        count=len(rows),
        waited_s=float(waits.waited_ns[list(places)].sum()) / 1e9,
        lost_s=float(lost.sum()) / 1e9,
        per_iteration_us=encode_series(per_iteration.astype(np.float32)),
    )


def _caller(
    events: EventTable, rows: NDArray[np.int64], samples: ThreadSamples | None, functions: Functions
) -> tuple[str, ...]:
    """The stack that was sampled most often in these calls; empty if none was."""
    if samples is None or not len(samples.time_ns):
        return ()
    low, high = (np.searchsorted(samples.time_ns, side[rows]) for side in (events.start_ns, events.end_ns))
    inside = [samples.function[a:b] for a, b in zip(low.tolist(), high.tolist(), strict=True) if b > a]
    if not inside:
        return ()
    number, count = np.unique(np.concatenate(inside), return_counts=True)
    return functions.keys[int(number[int(count.argmax())])].stack
