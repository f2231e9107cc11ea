"""Find who is late in which iteration, with the time that every worker always takes set aside.

Array suffixes: W workers, I iterations, A iterations asked about. All times are microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.activities import activity_of
from eroica.diagnosis.block import Facts
from eroica.diagnosis.frames import HALF
from eroica.diagnosis.operators import queued_share
from eroica.localize.blame import is_often
from eroica.localize.fleet import Fleet

Floats = NDArray[np.float64]
Places = NDArray[np.intp]
#: Of many workers some are late together by chance: the last is compared with the one after the first sixteenth.
_TOGETHER = 16


class Turns(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Lateness by iteration.

    Attributes:
        above_us: Each worker's own time above its median. float64 [W, I].
        last: Worker (index) that is furthest above its median. intp [I].
        lead_us: Distance of that worker to those that are not late with it. float64 [I].
        late_us: Distance of that worker to the median worker. float64 [I].
        usual_us: Median own time over all workers and iterations.
    """

    above_us: Floats
    last: Places
    lead_us: Floats
    late_us: Floats
    usual_us: float

    def iterations_with(self, share: float) -> Places:
        """Return the iterations in which one worker leads by at least this share of the usual time. intp [A]."""
        return np.flatnonzero(self.lead_us >= share * self.usual_us)

    def wanders(self, at_A: Places) -> bool:
        """Return True if no worker is the last in clearly more of these iterations than its turn would be."""
        workers = self.above_us.shape[0]
        if workers < 2 or not at_A.size:
            return False
        most = int(np.bincount(self.last[at_A], minlength=workers).max())
        return most == 1 < at_A.size or not is_often(most / at_A.size, workers)

    def share_of(self, fleet: Fleet, rows: Sequence[int], at_A: Places) -> float:
        """Return the share of the last worker's lateness that some rows hold, mean over these iterations."""
        own_A, others_A = self._last_and_others(fleet.series(rows), at_A)
        return float((own_A - others_A).mean() / max(float(self.late_us[at_A].mean()), 1e-9))

    def facts_of(self, fleet: Fleet, past: Fleet | None, rows: Sequence[int], at_A: Places) -> Facts:
        """Return whether the last worker waits for a core, or has more to compute, in these iterations."""
        shares = [queued_share(one) if one is not None else np.zeros(1) for one in (fleet, past)]
        now, then = (float(np.nansum(share_W) / max(np.isfinite(share_W).sum(), 1)) for share_W in shares)
        lost = float(self.late_us[at_A].sum()) / max(float(fleet.busy_us.max(axis=0).sum()), 1e-9)
        queued = float(np.clip((now - then) / max(lost, 1e-9), 0.0, 1.0))
        grows, fixed = (self._factor(fleet, rows, at_A, is_fixed) for is_fixed in (False, True))
        more = grows > 1 and fixed - 1 <= HALF * (grows - 1) and queued < HALF
        return Facts(queued=queued, has_more_data=more)

    def _factor(self, fleet: Fleet, rows: Sequence[int], at_A: Places, is_fixed: bool) -> float:
        """Return how many times as long operators of the optimizer, or of the rest, take the last worker."""
        chosen = [row for row in rows if (fleet.keys[row].phase == "optimizer") == is_fixed]
        if not chosen:
            return 1.0
        own_A, others_A = self._last_and_others(fleet.series(chosen), at_A)
        return float(own_A.mean() / max(float(others_A.mean()), 1e-9))

    def _last_and_others(self, time_WI: Floats, at_A: Places) -> tuple[Floats, Floats]:
        own_A = time_WI[self.last[at_A], at_A]
        return own_A, (time_WI[:, at_A].sum(axis=0) - own_A) / max(time_WI.shape[0] - 1, 1)


def read_turns(fleet: Fleet) -> Turns:
    """Read which worker is late when. Collections, saving and logging are set aside: they have cells of their own."""
    aside = [row for row, key in enumerate(fleet.keys) if key.kind == "gc" or activity_of(key.stack) in ("save", "log")]
    busy_WI = np.maximum(fleet.busy_us - fleet.series(aside), 0.0)
    above_WI = busy_WI - np.median(busy_WI, axis=1, keepdims=True)
    ranked_WI = np.sort(above_WI, axis=0)[::-1]
    next_one = min(max(1, len(above_WI) // _TOGETHER), len(above_WI) - 1)
    return Turns(
        above_us=above_WI,
        last=np.asarray(above_WI.argmax(axis=0), dtype=np.intp),
        lead_us=ranked_WI[0] - ranked_WI[next_one],
        late_us=ranked_WI[0] - np.median(ranked_WI, axis=0),
        usual_us=float(np.median(busy_WI)),
    )
