"""Workers to which more data is routed than to their peers: hot experts, hot rows of a table that all share.

What they do with it takes longer for that reason, whichever function it is. Sizes in all-to-alls tell: what comes in
goes back out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.placement import name_accused
from eroica.diagnosis.view import View
from eroica.localize.excess import median_of_others
from eroica.localize.fleet import Fleet
from eroica.model.series import decode_series

Floats = NDArray[np.float64]
#: What may be the work on what was routed there.
_MAY_BE_WORK = frozenset({"python-on-critical-path", "compute-slow", "unknown"})
#: So many times the peers' data is more; and so many times as many times as in the baseline window.
_MORE = 1.3
_GROWN = 1.2
#: The peers do the same work, with less data: it takes them at least this share of the accused's time...
_SAME_WORK = 0.2
#: ...and the accused at most so many times as long as the data account for.
_BEYOND = 1.5
_FEWEST = 3
_NEXT_STEP = (
    "Spread what is routed: a capacity limit or balancing loss for experts, hot rows of a table split, replicated or "
    "cached, another placement. Look at what has changed in the data or in the router."
)


def tell_routed(view: View, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Call candidates uneven loads whose accused handle as much more data as they take longer."""
    if not any(_is_open(one) for one in candidates):
        return list(candidates)
    more_W = _times_the_peers(view.fleet)
    before_W = view.then(_times_the_peers)
    return [_told(view, one, more_W, before_W) if _is_open(one) else one for one in candidates]


def _is_open(candidate: Candidate) -> bool:
    """True if a candidate may be work on more data: some workers take longer for what their peers do, too."""
    same = candidate.reference_us >= _SAME_WORK * candidate.mean_us
    return candidate.cause in _MAY_BE_WORK and candidate.scope == "some" and same and not candidate.is_elsewhere


def _told(view: View, candidate: Candidate, more_W: Floats, before_W: Floats) -> Candidate:
    members = list(candidate.workers)
    more, before = float(np.nan_to_num(more_W[members]).min()), float(np.nan_to_num(before_W[members], nan=1.0).max())
    longer = candidate.mean_us / max(candidate.reference_us, 1e-9)
    if more < _MORE or more < _GROWN * before or longer > _BEYOND * more:
        return candidate
    who, is_one = name_accused(view, candidate.workers, capital=True)
    subject = f"{who} handle{'s' if is_one else ''} {more:.1f} times as much data in all-to-alls as the peers"
    then = f", {before:.1f} times in the {view.past_window}" if not np.isnan(before_W[members]).any() else ""
    evidence = (f"All-to-alls carry {more:.1f} times as many elements from there as from the peers{then}.",)
    found = candidate.told_as("load-imbalance", subject, evidence)
    return msgspec.structs.replace(found, next_step=_NEXT_STEP)


def _times_the_peers(fleet: Fleet) -> Floats:
    """Return a worker's elements in all-to-alls, as a multiple of the others' median; NaN where unknown. [W]."""
    sizes: dict[str, dict[int, float]] = defaultdict(dict)
    for worker, pattern in enumerate(fleet.patterns):
        for record in pattern.collectives:
            if record.kind == "all_to_all" and record.executions:
                sizes[record.group][worker] = float(decode_series(record.elements, np.int64).mean())
    times_W = np.full(len(fleet.ranks), np.nan)
    for known in sizes.values():
        if len(known) >= _FEWEST and min(known.values()) > 0:
            members, size = np.array(list(known), dtype=np.intp), np.array(list(known.values()))
            usual = median_of_others(size, np.zeros(size.size, dtype=np.intp))
            times_W[members] = np.fmax(times_W[members], size / usual)
    return times_W
