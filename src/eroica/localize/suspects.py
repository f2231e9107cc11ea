"""Result of localization for diagnosis: abnormal functions, waiting by worker, and the arrays behind both."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.localize.arrivals import Arrivals
from eroica.localize.fleet import Fleet
from eroica.localize.moved_functions import Moved
from eroica.model.pattern import FunctionKey

Floats = NDArray[np.float64]
Why = Literal["expectation", "peers"]


class SuspectRow(msgspec.Struct, frozen=True, kw_only=True):
    """One function that is abnormal on some workers (EROICA, eq. 11).

    Attributes:
        key: Which function.
        workers: Global ranks on which it is abnormal.
        why: Which half of the rule flags it: distance from expectation, or from the peers.
        beta: Mean β on those workers, 0-1.
        distance: Largest distance from expectation (`expectation`) or share of peers that differ (`peers`), 0-1.
        excess_us: Mean critical time per iteration above the reference on those workers; NaN without one.
    """

    key: FunctionKey
    workers: tuple[int, ...]
    why: Why
    beta: float
    distance: float
    excess_us: float


class Suspects(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Result of `localize`; lives in memory only.

    Attributes:
        fleet: The window.
        baseline: The job's healthy window, None if there was none to use.
        before_us: Critical time per iteration in the baseline window, on the fleet's functions and workers; NaN where a
            worker has no baseline. float64 [F, W].
        peers_us: What is usual in the role (`Fleet.usual`). float64 [F, W]; NaN for a worker alone in it.
        moved: Functions with other callers than in the baseline window.
        abnormal: Rows that eq. 11 flags, in order of falling excess.
        arrivals: Who waits for whom.
        notes: What limits all this.
    """

    fleet: Fleet
    baseline: Fleet | None
    before_us: Floats
    peers_us: Floats
    moved: tuple[Moved, ...]
    abnormal: tuple[SuspectRow, ...]
    arrivals: Arrivals
    notes: tuple[str, ...] = ()
