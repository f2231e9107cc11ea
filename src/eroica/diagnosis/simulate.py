"""What an iteration would last without a cause, from the workers' busy and waiting times.

Array suffixes: W workers, I iterations. All times are microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from eroica.localize.fleet import Fleet

Floats = NDArray[np.float64]


def simulate_iterations(fleet: Fleet, removed_WI: Floats) -> Floats:
    """Iteration times if each worker lacked some of its time.

    Workers of a role run until the last of them arrives: a role lasts `max busy + min wait`, the least wait being what
    nobody could avoid. The job gains what the touched role with the largest gain does, but no iteration gets shorter
    than anybody's busy time.

    Args:
        fleet: The window.
        removed_WI: Time taken away, at most the busy time. float64 [W, I].

    Returns:
        Iteration times. float64 [I].
    """
    busy_WI = fleet.busy_us
    left_WI = np.maximum(busy_WI - np.maximum(removed_WI, 0.0), 0.0)
    now_I = fleet.iteration_us.mean(axis=0)
    saved_I = np.zeros_like(now_I)
    for role in np.unique(fleet.roles):
        members = fleet.roles == role
        saved_I = np.maximum(saved_I, busy_WI[members].max(axis=0) - left_WI[members].max(axis=0))
    return np.asarray(np.maximum(now_I - saved_I, np.minimum(left_WI.max(axis=0), now_I)))


def simulated_gain(fleet: Fleet, removed_WI: Floats) -> float:
    """Fraction of iteration time saved by taking that time away, 0-1."""
    now = float(fleet.iteration_us.mean(axis=0).sum())
    return 1.0 - float(simulate_iterations(fleet, removed_WI).sum()) / now if now > 0 else 0.0


def share_gains(fleet: Fleet, removed: Sequence[Floats]) -> list[float]:
    """Gain of each of several causes.

    Two causes of equal size on different workers hide each other: removing one alone gains nothing. So each gets the
    larger of what removing it alone gains and what it adds when all others are removed already.

    Args:
        fleet: The window.
        removed: Time of each cause. float64 [W, I] each.
    """
    total = sum(removed, np.zeros_like(fleet.iteration_us))
    everything = simulated_gain(fleet, total)
    return [max(simulated_gain(fleet, own), everything - simulated_gain(fleet, total - own)) for own in removed]
