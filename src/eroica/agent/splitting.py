"""A baseline window in which the job got slow ends where that began: what lies before it shows the healthy job."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from eroica.wire.places import write_private

#: Iterations that a baseline needs, and that must be longer after it: fewer may be anything.
_LEAST_BEFORE, _LEAST_AFTER = 8, 4
#: So many times as long; the share of either side that may lie beyond the middle between both.
_TIMES = 1.3
_ASTRAY = 0.2
#: Workers see a change in the same iteration or in the one before: who waits for whom differs.
_EARLIER = 1


def find_rise(durations: Sequence[float]) -> int | None:
    """Count the iterations before a lasting rise; None if there is none.

    The split that leaves the fewest iterations on the wrong side of the middle between both medians; of several, the
    one with the largest ratio of these.

    Args:
        durations: Of the iterations of a window, in order, any unit.
    """
    found = []
    for count in range(_LEAST_BEFORE, len(durations) - _LEAST_AFTER + 1):
        before, after = durations[:count], durations[count:]
        low, high = median(before), median(after)
        middle = (low * high) ** 0.5
        too_long, too_short = sum(one >= middle for one in before), sum(one <= middle for one in after)
        if high >= _TIMES * low and too_long <= _ASTRAY * count and too_short <= _ASTRAY * len(after):
            found.append((-too_long - too_short, high / low, count))
    return max(found)[2] if found else None


def split_at_rise(captures: Sequence[Path]) -> str:
    """End the captures of one host's workers before the job got slow in them; all at the same iteration.

    Args:
        captures: `capture.json` of each worker, of one window.

    Returns:
        A note on it; "" if nothing was changed.
    """
    records = {path: json.loads(path.read_bytes()) for path in captures}
    found = [find_rise(_durations(record)) for record in records.values()]
    counts = [count for count in found if count is not None]
    if not counts or 2 * len(counts) < len(found):
        return ""
    count = max(min(counts) - _EARLIER, 1)
    note = f"the baseline window is read up to its iteration {count}: from there on iterations were longer"
    for path, record in records.items():
        record["boundaries_ns"] = record["boundaries_ns"][: count + 1]
        record["last_iteration"] = record["first_iteration"] + len(record["boundaries_ns"]) - 1
        record["notes"] = [*record["notes"], note]
        draft = path.with_suffix(".draft")
        write_private(draft, json.dumps(record).encode())
        draft.rename(path)
    return note


def _durations(record: dict[str, Any]) -> list[int]:
    bounds = record["boundaries_ns"]
    return [end - begin for begin, end in pairwise(bounds)]
