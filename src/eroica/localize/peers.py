"""Differential distance: how unique a worker's pattern is among its peers (EROICA, eq. 8 to 11).

Array suffixes: W workers of one role, N sampled peers, 3 = (β, μ, σ). NaN in μ or σ means "never sampled".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from eroica.settings import Settings

Floats = NDArray[np.float64]
#: Every run of the same window compares with the same peers.
_SEED = 20_260_401


def sample_peers(workers: int, peers: int) -> NDArray[np.intp]:
    """Rows that every worker of a role is compared with: all, or a fixed random sample of `peers`. intp [N].

    Source:
        EROICA, section 4.3, eq. 9. Deviation: one sample shared by all workers; with a sample of its own for each,
        one outlier of 3,400 flags 192 workers.
    """
    if workers <= peers:
        return np.arange(workers, dtype=np.intp)
    return np.sort(np.random.default_rng(_SEED).choice(workers, size=peers, replace=False)).astype(np.intp)


def differential_distance(patterns_W3: Floats, peers_N: NDArray[np.intp], settings: Settings) -> Floats:
    """Share of sampled peers whose pattern differs from each worker's.

    Args:
        patterns_W3: (β, μ, σ) of one function on each worker of one role, 0-1; zeros where a worker lacks the function,
            NaN where μ and σ were never sampled. float64 [W, 3].
        peers_N: Rows everybody is compared with. intp [N].
        settings: `peer_distance` (delta), `beta_floor`, `utilization_floor`.

    Returns:
        Fraction of the peers other than itself at a distance of at least delta, 0-1. float64 [W].

    Source:
        EROICA, section 4.3, equations 8-10. Deviations: a difference below the floor of its dimension counts as none
        (scaling by a maximum near zero makes distance of noise); unknown μ or σ differ from nothing; a worker is no
        peer of itself.
    """
    floors_3 = np.asarray([settings.beta_floor, settings.utilization_floor, settings.utilization_floor])
    highest_3 = np.nanmax(np.nan_to_num(patterns_W3, nan=0.0), axis=0, initial=0.0)
    scale_3 = np.where(highest_3 > 0, highest_3, 1.0)
    difference_WN3 = np.abs(patterns_W3[:, None, :] - patterns_W3[None, peers_N, :])
    difference_WN3[~(difference_WN3 >= floors_3)] = 0.0
    differs_WN = (difference_WN3 / scale_3).sum(axis=2) >= settings.peer_distance
    others_W = peers_N.size - np.isin(np.arange(patterns_W3.shape[0]), peers_N)
    return np.asarray(differs_WN.sum(axis=1) / np.maximum(others_W, 1), dtype=np.float64)


def outlying(distance_W: Floats, settings: Settings) -> NDArray[np.bool_]:
    """Workers whose differential distance stands out from their role's. bool [W].

    Source:
        EROICA, section 4.3, eq. 11. Deviation: the margin above the median is at least `mad_floor`; the MAD of nearly
        equal distances is 0, and then one peer more would be enough.
    """
    middle = float(np.median(distance_W))
    spread = float(np.median(np.abs(distance_W - middle)))
    return np.asarray(distance_W > middle + max(settings.mad_factor * spread, settings.mad_floor), dtype=np.bool_)


def peer_distances(
    patterns_W3: Floats, roles_W: NDArray[np.intp], settings: Settings
) -> tuple[Floats, NDArray[np.bool_]]:
    """Differential distance inside each role, and who stands out by it.

    Args:
        patterns_W3: Patterns of one function on all workers, as in `differential_distance`. float64 [W, 3].
        roles_W: Role of each worker. intp [W].
        settings: See the functions above.

    Returns:
        Distances. float64 [W]; flags. bool [W]. A worker alone in its role has distance 0.
    """
    distance_W = np.zeros(patterns_W3.shape[0])
    flags_W = np.zeros(patterns_W3.shape[0], dtype=np.bool_)
    for role in np.unique(roles_W):
        members = np.flatnonzero(roles_W == role)
        own = differential_distance(patterns_W3[members], sample_peers(members.size, settings.peers), settings)
        distance_W[members] = own
        flags_W[members] = outlying(own, settings)
    return distance_W, flags_W
