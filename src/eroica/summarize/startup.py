"""Find the work that a process does once: device context, lazy loading, compilation, autotuning, capture of graphs.

A call of the driver that lasts tens of milliseconds while the device has nothing to do is none of the calls that cost
microseconds each time: it sets something up. Synchronizations and copies wait for the device, or move data, and count
as such. PyTorch marks compilation itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eroica.summarize.sweep import Times, unite
from eroica.trace.table import Category, EventTable

#: A call of the driver that lasts so long with an idle device sets something up.
_LONG_NS = 20_000_000
#: While the device works for a larger share of it, a call waits for the device.
_BUSY = 0.1
_WAITS = re.compile(r"Synchronize|Memcpy|Memset|memcpy|memset|StreamWait|EventQuery|StreamQuery|MemPrefetch")
#: Marks of torch (`dynamo_timed`, inductor's `CachingAutotuner`, CUPTI's "Lazy Function Loading", graph capture).
_MARK = re.compile(
    r"\(dynamo_timed\)|CachingAutotuner|autotun|benchmark_all_configs|Lazy Function Loading|_compile\.compile_inner"
    r"|capture_begin|CUDAGraph.*captur"
)
_MOST_NAMED = 3


@dataclass(frozen=True, eq=False)
class StartUp:
    """Stretches in which a process was being set up.

    Attributes:
        start: int64 [K], rising.
        end: int64 [K].
        names: What took longest, with its nanoseconds.
    """

    start: Times
    end: Times
    names: tuple[tuple[str, int], ...] = ()

    def within(self, begin: int, end: int) -> int:
        """Nanoseconds of it between two moments."""
        return int(np.maximum(np.minimum(self.end, end) - np.maximum(self.start, begin), 0).sum())


NO_STARTUP = StartUp(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


def find_startup(events: EventTable) -> StartUp:
    """Find what is done once."""
    length = events.end_ns - events.start_ns
    calls = np.flatnonzero((length >= _LONG_NS) & (events.category == Category.RUNTIME))
    waits = [_WAITS.search(events.name_of(row)) is not None for row in calls.tolist()]
    calls = calls[~np.array(waits, dtype=np.bool_)]
    calls = calls[_idle(events, calls)] if len(calls) else calls
    named = [_MARK.search(name) is not None for name in events.strings]
    marked = np.empty(0, dtype=np.intp)
    if any(named):
        host = (events.category == Category.OPERATOR) | (events.category == Category.ANNOTATION)
        marked = np.flatnonzero(host & events.names_where(named) & (length > 0))
    rows = np.concatenate((calls, marked))
    if not len(rows):
        return NO_STARTUP
    total = np.bincount(events.name[rows], weights=length[rows], minlength=len(events.strings))
    longest = [int(name) for name in np.argsort(-total, kind="stable")[:_MOST_NAMED] if total[name] > 0]
    start, end = unite(events.start_ns[rows], events.end_ns[rows])
    return StartUp(start, end, tuple((events.strings[name], int(total[name])) for name in longest))


def _idle(events: EventTable, calls: NDArray[np.intp]) -> NDArray[np.bool_]:
    """During which calls the device had next to nothing to do. bool [calls]."""
    on_device = np.flatnonzero((events.category == Category.KERNEL) | (events.category == Category.MEMORY))
    busy = StartUp(*unite(events.start_ns[on_device], events.end_ns[on_device]))
    spans = zip(events.start_ns[calls].tolist(), events.end_ns[calls].tolist(), strict=True)
    return np.array([busy.within(begin, end) <= _BUSY * (end - begin) for begin, end in spans], dtype=np.bool_)
