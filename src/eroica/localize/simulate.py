"""Compute an iteration without a cause: the window run again, else from the workers' busy and waiting times.

Array suffixes: W workers, I iterations that count. All times are microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eroica.localize.direct_waits import DirectWaits
from eroica.localize.fleet import Fleet
from eroica.localize.replay import Replay

Floats = NDArray[np.float64]
#: From so many iterations on the first one, in which workers still stand to each other as they really did, is not read.
_FEWEST_TO_SPARE_ONE = 3
#: Iterations of workers that differ by this factor from their mean are each worker's own.
APART = 1.05


def simulate_iterations(
    fleet: Fleet, removed_WI: Floats, quicker_WI: Floats | None = None, held_W: Floats | None = None
) -> Floats:
    """Compute iteration times if each worker lacked some of its time.

    Where the window can be replayed (`localize.replay`), with less own time of these workers: it is taken first where
    they spend more than their peers, as far as the peers are not to lack it, too. Else workers of a role run until the
    last of them arrives: a role lasts `max busy + min wait`, the least wait being what nobody could avoid. The job
    gains what the touched role with the largest gain does, but no iteration gets shorter than anybody's busy time.
    Where a replay leaves out much waiting, as these workers met somebody who is missing, that counts as well, as far as
    others are seen to wait for them.

    Args:
        fleet: The window.
        removed_WI: Time taken away, at most the busy time. float64 [W, I].
        quicker_WI: By how much less the transfers of some process groups are to take, for all of their members. Only a
            replay can tell what that gains. float64 [W, I].
        held_W: Share of the time, 0-1, in which workers are held and are to be no more: transfers with them lack it, in
            a replay; else what nobody of their role could avoid to wait. float64 [W].

    Returns:
        Iteration times. float64 [I].
    """
    removed_WI = np.maximum(removed_WI, 0.0)
    if fleet.replay is not None:
        now_I: Floats = fleet.iteration_us.mean(axis=0)
        found_I = np.minimum(_replayed(fleet, fleet.replay, -removed_WI, quicker_WI, held_W), now_I)
        return found_I if fleet.replay.seen is None else _as_seen(fleet, fleet.replay, removed_WI, found_I)
    return _from_roles(fleet, removed_WI, held_W)


def _as_seen(fleet: Fleet, replay: Replay, removed_WI: Floats, found_I: Floats) -> Floats:
    """Compute iteration times by the waiting that is seen for these workers, if a replay finds less. float64 [I].

    That is so where these workers, or those that wait for them, met a missing worker: there the delay may go on unseen.
    Waiting that goes to their peers as well (stages of a pipeline wait for each other) is left out.
    """
    touched_W, seen = np.asarray(removed_WI.any(axis=1), dtype=np.bool_), replay.seen or DirectWaits()
    waited_W = seen.for_these(touched_W)
    if not waited_W.any() or not ((touched_W | (waited_W > 0)) & replay.open_W).any():
        return found_I
    now_I: Floats = fleet.iteration_us.mean(axis=0)
    others_W = ~touched_W & np.isin(fleet.roles, fleet.roles[touched_W])
    usual_us = float(np.median(seen.longest_us(touched_W.size)[others_W])) if others_W.any() else 0.0
    waited_us = max(float(waited_W.max()) - usual_us, 0.0) / max(now_I.size, 1)
    by_roles_I = np.maximum(now_I - _from_roles(fleet, removed_WI), 0.0)
    at_most = min(waited_us / max(float(by_roles_I.mean()), 1e-9), 1.0)
    return np.asarray(np.minimum(found_I, now_I - at_most * by_roles_I))


def _replayed(
    fleet: Fleet, replay: Replay, change_WI: Floats, quicker_WI: Floats | None = None, held_W: Floats | None = None
) -> Floats:
    """Replay iterations with other own times; iterations that the replay does not hold change as the others do. [I]."""
    now_I: Floats = fleet.iteration_us.mean(axis=0)
    quicker_WI = np.zeros_like(change_WI) if quicker_WI is None else quicker_WI
    if not change_WI.any() and not quicker_WI.any() and held_W is None:
        return now_I
    first = max(pattern.first_iteration for pattern in fleet.patterns)
    place_I = fleet.columns[0] - (first - fleet.patterns[0].first_iteration) - replay.graph.first
    inside = (place_I >= 0) & (place_I < replay.graph.iterations)

    def placed(value_WI: Floats) -> Floats:
        found_WI = np.zeros((value_WI.shape[0], replay.graph.iterations))
        found_WI[:, place_I[inside]] = value_WI[:, inside]
        return found_WI

    own, peers, transfers = (placed(part) for part in (change_WI, _also_removed(fleet, -change_WI), quicker_WI))
    simulated_I = replay.iterations_with(own, peers, transfers, held_W)
    if replay.graph.iterations >= _FEWEST_TO_SPARE_ONE:
        inside &= place_I > 0
    found_I: Floats = now_I.copy()
    found_I[inside] -= (replay.iteration_I - simulated_I)[place_I[inside]]
    if inside.any() and not inside.all():
        found_I[~inside] *= found_I[inside].sum() / max(float(now_I[inside].sum()), 1e-9)
    return np.maximum(found_I, 0.0)


def _also_removed(fleet: Fleet, removed_WI: Floats) -> Floats:
    """Return the part of each worker's removed time that its peers are to lack as well. float64 [W, I]."""
    removed_WI = np.maximum(removed_WI, 0.0)
    usual_WI = np.nan_to_num(fleet.usual(removed_WI.T).T)
    return np.asarray(np.minimum(usual_WI, removed_WI))


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


def simulated_gain(
    fleet: Fleet, removed_WI: Floats, quicker_WI: Floats | None = None, held_W: Floats | None = None
) -> float:
    """Compute the fraction of iteration time saved by taking that time away, 0-1. See `simulate_iterations`.

    Where workers meet only now and then, the job is as fast as its slowest worker, whatever a mean over them says.
    """
    now = float(fleet.iteration_us.mean(axis=0).sum())
    if now <= 0:
        return 0.0
    together = 1.0 - float(simulate_iterations(fleet, removed_WI, quicker_WI, held_W).sum()) / now
    return max(_gain_apart(fleet, removed_WI), together)


def _gain_apart(fleet: Fleet, removed_WI: Floats) -> float:
    """Compute the gain by each worker's own iterations, where these differ; 0 in lockstep, or in few iterations."""
    own_W = fleet.own_iteration_us
    if not own_W.any() or own_W.max() < APART * own_W.mean():
        return 0.0
    left_W = own_W - np.clip(removed_WI, 0.0, fleet.busy_us).mean(axis=1)
    return float(1.0 - left_W.max() / own_W.max())


class Removal(NamedTuple):
    """Time that a cause takes of workers.

    Attributes:
        own_WI: Of their own time. float64 [W, I].
        held_W: Share that it takes of their transfers; None = nothing. float64 [W].
    """

    own_WI: Floats
    held_W: Floats | None = None


def share_gains(fleet: Fleet, removed: Sequence[Removal], quicker_WI: Floats | None = None) -> list[float]:
    """Compute the gain of each of several causes.

    Two causes of equal size on different workers hide each other: removing one alone gains nothing. So each gets the
    larger of what removing it alone gains and what it adds when all others are removed already.

    Args:
        fleet: The window.
        removed: Time of each cause.
        quicker_WI: Excess of transfers of slow process groups: gone once all others are removed. float64
            [W, I].
    """
    if not removed:
        return []
    if len(removed) == 1 and quicker_WI is None:
        return [simulated_gain(fleet, removed[0].own_WI, held_W=removed[0].held_W)]
    total = sum((one.own_WI for one in removed), np.zeros_like(fleet.iteration_us))
    everything = simulated_gain(fleet, total, quicker_WI, most_held([one.held_W for one in removed]))

    def added(one: Removal) -> float:
        others = most_held([other.held_W for other in removed if other is not one])
        return everything - simulated_gain(fleet, total - one.own_WI, quicker_WI, others)

    return [max(simulated_gain(fleet, one.own_WI, held_W=one.held_W), added(one)) for one in removed]


def most_held(shares: Sequence[Floats | None]) -> Floats | None:
    """Return the largest share in which any of several causes holds each worker; None if none does. float64 [W]."""
    some = [one for one in shares if one is not None]
    return np.max(some, axis=0) if some else None
