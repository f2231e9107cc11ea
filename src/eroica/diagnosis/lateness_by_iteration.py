"""Find who is late in which iteration, with the time that every worker always takes set aside.

Array suffixes: W workers, I iterations. All times are microseconds.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.activities import activity_of
from eroica.localize.fleet import Fleet

Floats = NDArray[np.float64]
#: Of many workers some are late together by chance: the last is compared with the one after the first sixteenth.
_TOGETHER = 16
#: Somebody late in clearly more iterations than its turn would be is late for a reason of its own.
_OFTEN = 0.35
BEYOND_TURN = 0.2


class Turns(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Lateness by iteration.

    Attributes:
        above_us: Each worker's time outside collectives and what is set aside, above its own median. float64 [W, I].
        last: Worker (index) that is furthest above its median. intp [I].
        lead_us: Distance of that worker to those that are not late with it. float64 [I].
        late_us: Distance of that worker to the median worker. float64 [I].
        usual_us: Median of the time outside collectives over all workers and iterations.
    """

    above_us: Floats
    last: NDArray[np.intp]
    lead_us: Floats
    late_us: Floats
    usual_us: float

    def iterations_with(self, share: float) -> NDArray[np.intp]:
        """List iterations in which one worker leads by at least this share of the usual time. intp."""
        return np.flatnonzero(self.lead_us >= share * self.usual_us)

    def wanders(self, iterations: NDArray[np.intp]) -> bool:
        """True if no worker is the last in clearly more of these iterations than its turn would be."""
        workers = self.above_us.shape[0]
        if workers < 2 or not iterations.size:
            return False
        most = np.bincount(self.last[iterations], minlength=workers).max() / iterations.size
        return bool(most < max(_OFTEN, 1 / workers + BEYOND_TURN))


def take_turns(fleet: Fleet) -> Turns:
    """Read which worker is late when. Collections, saving and logging are set aside: they have rules of their own."""
    aside = [at for at, key in enumerate(fleet.keys) if key.kind == "gc" or activity_of(key.stack) in ("save", "log")]
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


def robust_spread(values: Floats) -> float:
    """Estimate the standard deviation by the median deviation from the median: a few outliers do not count."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))
