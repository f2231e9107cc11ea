"""Compute an iteration without a cause: the window run again, else from the workers' busy and waiting times.

Array suffixes: W workers, I iterations that count. All times are microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eroica.localize.fleet import Fleet
from eroica.localize.replay import Replay

Floats = NDArray[np.float64]
#: From so many iterations on the first one, in which workers still stand to each other as they really did, is not read.
_FEWEST_TO_SPARE_ONE = 3


def simulate_iterations(fleet: Fleet, removed_WI: Floats, held_W: Floats | None = None) -> Floats:
    """Compute iteration times if each worker lacked some of its time.

    Where the window can be replayed (`localize.replay`), with less own time of these workers: it is taken first where
    they spend more than their peers, as far as the peers are not to lack it, too. Else workers of a role run until the
    last of them arrives: a role lasts `max busy + min wait`, the least wait being what nobody could avoid. The job
    gains what the touched role with the largest gain does, but no iteration gets shorter than anybody's busy time.

    Args:
        fleet: The window.
        removed_WI: Time taken away, at most the busy time. float64 [W, I].
        held_W: Share of the time, 0-1, in which workers are held and are to be no more: transfers with them lack it, in
            a replay; else what nobody of their role could avoid to wait. float64 [W].

    Returns:
        Iteration times. float64 [I].
    """
    removed_WI = np.maximum(removed_WI, 0.0)
    if fleet.replay is not None:
        return _replayed(fleet, fleet.replay, removed_WI, held_W)
    return _from_roles(fleet, removed_WI, held_W)


def _replayed(fleet: Fleet, replay: Replay, removed_WI: Floats, held_W: Floats | None) -> Floats:
    """Replay iterations with less own time; iterations that the replay does not hold change as the others do. [I]."""
    now_I: Floats = fleet.iteration_us.mean(axis=0)
    if not removed_WI.any() and held_W is None:
        return now_I
    first = max(pattern.first_iteration for pattern in fleet.patterns)
    place_I = fleet.columns[0] - (first - fleet.patterns[0].first_iteration) - replay.graph.first
    inside = (place_I >= 0) & (place_I < replay.graph.iterations)

    def placed(value_WI: Floats) -> Floats:
        found_WI = np.zeros((value_WI.shape[0], replay.graph.iterations))
        found_WI[:, place_I[inside]] = value_WI[:, inside]
        return found_WI

    common_WI = np.minimum(np.nan_to_num(fleet.usual(removed_WI.T).T), removed_WI)  # what the peers are to lack as well
    simulated_I = replay.iterations_without(placed(removed_WI), placed(common_WI), held_W)
    if replay.graph.iterations >= _FEWEST_TO_SPARE_ONE:
        inside &= place_I > 0
    found_I: Floats = now_I.copy()
    found_I[inside] -= (replay.iteration_I - simulated_I)[place_I[inside]]
    if inside.any() and not inside.all():
        found_I[~inside] *= found_I[inside].sum() / max(float(now_I[inside].sum()), 1e-9)
    return np.clip(found_I, 0.0, now_I)


def _from_roles(fleet: Fleet, removed_WI: Floats, held_W: Floats | None = None) -> Floats:
    """Compute iteration times from busy and waiting times alone. float64 [I].

    A stage of one worker may wait for other stages all the time, so its waiting tells nothing of transfers.
    """
    busy_WI = fleet.busy_us
    left_WI = np.maximum(busy_WI - removed_WI, 0.0)
    now_I = fleet.iteration_us.mean(axis=0)
    saved_I = np.zeros_like(now_I)
    for role in np.unique(fleet.roles):
        members = fleet.roles == role
        sooner_I = busy_WI[members].max(axis=0) - left_WI[members].max(axis=0)
        if held_W is not None and (members.sum() > 1 or members.all()):
            sooner_I = sooner_I + held_W[members].max() * fleet.wait_us[members].min(axis=0)
        saved_I = np.maximum(saved_I, sooner_I)
    return np.asarray(np.maximum(now_I - saved_I, np.minimum(left_WI.max(axis=0), now_I)))


def simulated_gain(fleet: Fleet, removed_WI: Floats, held_W: Floats | None = None) -> float:
    """Compute the fraction of iteration time saved by taking that time away, 0-1. See `simulate_iterations`."""
    now = float(fleet.iteration_us.mean(axis=0).sum())
    return 1.0 - float(simulate_iterations(fleet, removed_WI, held_W).sum()) / now if now > 0 else 0.0


class Removal(NamedTuple):
    """Time that a cause takes of workers.

    Attributes:
        own_WI: Of their own time. float64 [W, I].
        held_W: Share that it takes of their transfers; None = nothing. float64 [W].
    """

    own_WI: Floats
    held_W: Floats | None = None


def share_gains(fleet: Fleet, removed: Sequence[Removal]) -> list[float]:
    """Compute the gain of each of several causes.

    Two causes of equal size on different workers hide each other: removing one alone gains nothing. So each gets the
    larger of what removing it alone gains and what it adds when all others are removed already.

    Args:
        fleet: The window.
        removed: Time of each cause.
    """
    if not removed:
        return []
    if len(removed) == 1:
        return [simulated_gain(fleet, removed[0].own_WI, held_W=removed[0].held_W)]
    total = sum((one.own_WI for one in removed), np.zeros_like(fleet.iteration_us))
    everything = simulated_gain(fleet, total, most_held([one.held_W for one in removed]))

    def added(one: Removal) -> float:
        others = most_held([other.held_W for other in removed if other is not one])
        return everything - simulated_gain(fleet, total - one.own_WI, others)

    return [max(simulated_gain(fleet, one.own_WI, held_W=one.held_W), added(one)) for one in removed]


def most_held(shares: Sequence[Floats | None]) -> Floats | None:
    """Return the largest share in which any of several causes holds each worker; None if none does. float64 [W]."""
    some = [one for one in shares if one is not None]
    return np.max(some, axis=0) if some else None
