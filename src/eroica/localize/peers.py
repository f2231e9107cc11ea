"""Differential distance: how unique a worker's pattern is among its peers (EROICA, eq. 8 to 11).

Array suffixes: W workers of one role, N sampled peers, B workers of a block, 3 = (β, μ, σ). NaN in μ or σ means "never
sampled". Workers are taken in blocks that fit into the processor's cache, and most of them need no comparison with
single peers. A worker nearer than delta to all corners of the peers' bounding box differs from none of them; a worker
farther than delta from the box differs from all. For the other workers the box is halved, and halved again.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from eroica.localize.roles import members_of

Floats = NDArray[np.float64]
#: Manhattan distance at which two patterns differ (delta, eq. 10), and peers that each one is compared with (N, eq. 9).
DELTA, PEERS = 0.4, 100
#: Multiplier of the median absolute deviation (k, eq. 11), and the least margin above the median: the MAD is usually 0.
MAD_FACTOR, MAD_FLOOR = 5.0, 0.1
#: Differences of β, and of μ and σ, below these are noise, whatever the maximum.
BETA_FLOOR, USE_FLOOR = 0.02, 0.1
#: Every run of the same window compares with the same peers.
_SEED = 20_260_401
#: Workers of a block: a few arrays of them fit into a core's cache, and calling NumPy costs little beside them.
_BLOCK = 32_768
#: So few peers are compared one by one; a box of fewer costs more than it saves.
_FEW_PEERS = 4
#: Keeps rounding away from the border of a core.
_JUST_BELOW = 1.0 - 1e-6


def sample_peers(workers: int, peers: int) -> NDArray[np.intp]:
    """Rows that every worker of a role is compared with: all, or a fixed random sample of `peers`. intp [N].

    Source:
        EROICA, section 4.3, eq. 9. Deviation: one sample shared by all workers; with a sample of its own for each,
        one outlier of 3,400 flags 192 workers.
    """
    if workers <= peers:
        return np.arange(workers, dtype=np.intp)
    return np.sort(np.random.default_rng(_SEED).choice(workers, size=peers, replace=False)).astype(np.intp)


def differential_distance(patterns_W3: Floats, peers_N: NDArray[np.intp]) -> Floats:
    """Share of sampled peers whose pattern differs from each worker's.

    Args:
        patterns_W3: (β, μ, σ) of one function on each worker of one role, 0-1; zeros where a worker lacks the function,
            NaN where μ and σ were never sampled. float64 or float32 [W, 3].
        peers_N: Rows everybody is compared with, each once. intp [N].

    Returns:
        Fraction of the peers other than itself at a distance of at least delta, 0-1. float64 [W].

    Source:
        EROICA, section 4.3, equations 8-10. Deviations: a difference below the floor of its dimension counts as none
        (scaling by a maximum near zero makes distance of noise); unknown μ or σ differ from nothing; a worker is no
        peer of itself.
    """
    points_3W = np.ascontiguousarray(patterns_W3.T)
    measure = _Measure(points_3W)
    box = _Box(points_3W[:, peers_N].astype(np.float64), measure)
    differing_W = np.zeros(points_3W.shape[1], dtype=np.intp)
    open_W = box.outside_core(points_3W)
    for first in range(0, open_W.size, _BLOCK):
        block = open_W[first : first + _BLOCK]
        differing_W[block] = box.count_differing(_taken(points_3W, block).astype(np.float64))
    others_W = np.full(points_3W.shape[1], peers_N.size)
    others_W[peers_N] -= 1
    return np.asarray(differing_W / np.maximum(others_W, 1), dtype=np.float64)


class _Measure:
    """Distance of eq. 8: floors and scale of each dimension, and delta."""

    def __init__(self, points_3W: Floats) -> None:
        self.scale = [float(high) if high > 0 else 1.0 for high in np.fmax.reduce(points_3W, axis=1, initial=0.0)]
        self.floors = (BETA_FLOOR, USE_FLOOR, USE_FLOOR)

    def is_far(self, difference_3: Iterable[Floats]) -> NDArray[np.bool_]:
        """Return whether absolute differences in three dimensions, NaN if unknown, add up to delta. bool, their shape.

        Rounding keeps the order of differences, quotients and sums: larger differences never make a smaller distance,
        so bounds of the differences are bounds of the answer, to the last bit.
        """
        total: Floats | float = 0.0
        for difference, floor, scale in zip(difference_3, self.floors, self.scale, strict=True):
            total = total + np.where(difference >= floor, difference, 0.0) / scale
        return np.asarray(total >= DELTA, dtype=np.bool_)


class _Box:
    """Peers and their bounding box."""

    def __init__(self, peers_3N: Floats, measure: _Measure) -> None:
        self.peers_3N, self.measure = peers_3N, measure
        self.low_3, self.high_3 = np.fmin.reduce(peers_3N, axis=1), np.fmax.reduce(peers_3N, axis=1)
        self.unknown_3 = [bool(np.isnan(peers).any()) for peers in peers_3N]

    @cached_property
    def halves(self) -> list[_Box]:
        """Two smaller boxes, made on demand; none of very few peers."""
        few = self.peers_3N.shape[1] <= _FEW_PEERS
        return [] if few else [_Box(half, self.measure) for half in self._parted()]

    def _parted(self) -> tuple[Floats, Floats]:
        """The peers parted where their scaled values spread most."""
        spread_3 = np.nan_to_num(self.high_3 - self.low_3) / self.measure.scale
        order = np.argsort(self.peers_3N[int(np.argmax(spread_3))], kind="stable")
        middle = order.size // 2
        return self.peers_3N[:, order[:middle]], self.peers_3N[:, order[middle:]]

    @cached_property
    def core(self) -> tuple[Floats, Floats]:
        """Corners of a box around the peers' middle in which nothing differs from any of them. float64 [3] each.

        What the peers' own extent leaves of delta is given to the dimensions in equal shares; one that is narrow
        enough to stay below its floor needs none. Any box is right whose corners cannot differ; else there is none.
        """
        middle_3, half_3 = (self.low_3 + self.high_3) / 2, (self.high_3 - self.low_3) / 2
        scale_3, floors_3, delta = np.asarray(self.measure.scale), np.asarray(self.measure.floors), DELTA
        quiet_3 = (floors_3 >= scale_3 * delta / 3) & (half_3 < floors_3)
        share = (delta - float((half_3 / scale_3)[~quiet_3].sum())) / max(int((~quiet_3).sum()), 1)
        reach_3 = np.where(quiet_3, floors_3 - half_3, share * scale_3) * _JUST_BELOW
        low_3, high_3 = middle_3 - reach_3, middle_3 + reach_3
        exists = bool((reach_3 > 0).all()) and not self._may_differ(low_3, high_3)
        return (low_3, high_3) if exists else (np.full(3, np.inf), np.full(3, -np.inf))

    def outside_core(self, points_3W: Floats) -> NDArray[np.intp]:
        """Points that are not seen at once to differ from none of these peers, in order. intp."""
        low_3, high_3 = self.core
        if low_3[0] > high_3[0]:
            return np.arange(points_3W.shape[1], dtype=np.intp)
        outside_W = np.zeros(points_3W.shape[1], dtype=np.bool_)
        for points, low, high in zip(points_3W, low_3, high_3, strict=True):
            outside_W |= (points < low) | (points > high)
        return np.flatnonzero(outside_W)

    def _may_differ(self, low_3B: Floats, high_3B: Floats) -> NDArray[np.bool_]:
        """Return whether any point between two corners can be far from any of these peers. bool [B]."""
        corners = zip(low_3B, high_3B, self.low_3, self.high_3, strict=True)
        most = (np.maximum(high - below, above - low) for low, high, below, above in corners)
        return self.measure.is_far(most)

    def _all_differ(self, points_3B: Floats) -> NDArray[np.bool_]:
        """Return whether each point is far from the whole box. bool [B].

        A dimension in which any peer of the box is unknown adds no distance.
        """
        sides = zip(points_3B, self.low_3, self.high_3, self.unknown_3, strict=True)
        return self.measure.is_far(
            np.zeros_like(points) if unknown else np.maximum(low - points, points - high)
            for points, low, high, unknown in sides
        )

    def count_differing(self, points_3B: Floats) -> NDArray[np.intp]:
        """Number of these peers that each point differs from. intp [B]."""
        if not self.halves:
            return self._compare_all(points_3B)
        count_B = np.zeros(points_3B.shape[1], dtype=np.intp)
        open_B = self.outside_core(points_3B)
        open_3B = _taken(points_3B, open_B)
        open_B, open_3B = _kept(open_B, open_3B, self._may_differ(open_3B, open_3B))
        if not open_B.size:
            return count_B
        from_all_B = self._all_differ(open_3B)
        count_B[open_B[from_all_B]] = self.peers_3N.shape[1]
        open_B, open_3B = _kept(open_B, open_3B, ~from_all_B)
        if open_B.size:
            count_B[open_B] = sum(half.count_differing(open_3B) for half in self.halves)
        return count_B

    def _compare_all(self, points_3B: Floats) -> NDArray[np.intp]:
        count_B = np.zeros(points_3B.shape[1], dtype=np.intp)
        for peer_3 in self.peers_3N.T:
            count_B += self.measure.is_far(np.abs(points - own) for points, own in zip(points_3B, peer_3, strict=True))
        return count_B


def _taken(points_3W: Floats, at_B: NDArray[np.intp]) -> Floats:
    """Some of the points; all of them are not copied."""
    if at_B.size == points_3W.shape[1]:
        return points_3W
    return np.stack([points.take(at_B) for points in points_3W])


def _kept(at_B: NDArray[np.intp], points_3B: Floats, keep_B: NDArray[np.bool_]) -> tuple[NDArray[np.intp], Floats]:
    """The points to keep, and their indices."""
    chosen = np.flatnonzero(keep_B)
    return at_B[chosen], _taken(points_3B, chosen)


def outlying(distance_W: Floats) -> NDArray[np.bool_]:
    """Workers whose differential distance stands out from their role's. bool [W].

    Source:
        EROICA, section 4.3, eq. 11. Deviation: the margin above the median is at least `MAD_FLOOR`; the MAD of nearly
        equal distances is 0, and then one peer more would be enough.
    """
    if distance_W.max() <= distance_W.min() + MAD_FLOOR:
        return np.zeros(distance_W.shape, dtype=np.bool_)
    middle = float(np.median(distance_W))
    spread = float(np.median(np.abs(distance_W - middle)))
    return np.asarray(distance_W > middle + max(MAD_FACTOR * spread, MAD_FLOOR), dtype=np.bool_)


def peer_distances(patterns_W3: Floats, roles_W: NDArray[np.intp]) -> tuple[Floats, NDArray[np.bool_]]:
    """Measure the differential distance inside each role, and flag the workers that stand out by it.

    Args:
        patterns_W3: Patterns of one function on all workers, as in `differential_distance`. float64 or float32 [W, 3].
        roles_W: Role of each worker. intp [W].

    Returns:
        Distances. float64 [W]; flags. bool [W]. A worker alone in its role has distance 0.
    """
    distance_W = np.zeros(patterns_W3.shape[0])
    flags_W = np.zeros(patterns_W3.shape[0], dtype=np.bool_)
    for members in members_of(roles_W):
        within = patterns_W3 if members.size == patterns_W3.shape[0] else patterns_W3[members]
        own = differential_distance(within, sample_peers(members.size, PEERS))
        distance_W[members] = own
        flags_W[members] = outlying(own)
    return distance_W, flags_W
