"""Add up how long each worker waited directly for each other worker it met, before blame is passed on.

Sparse: only those who came last are waited for. They are few in each group, or share the blame, so that each is waited
for a little; then those with most of it stand for the others.

Array suffixes: G groups of M members, L of them who came last, K matched executions, E edges. All times are
microseconds.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.intp]
#: Who came last in one group, and more than these others did: a stage that shares the blame among a thousand would make
#: millions of edges.
_MOST_LAST = 8


def _none() -> Places:
    return np.zeros(0, dtype=np.intp)


class DirectWaits(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Waits by pair of workers.

    Attributes:
        waiter: Indices of the workers that waited. intp [E].
        on: Of the ones that came last, in each group's executions of one kind the 8 with most of the blame. intp [E].
        wait_us: Critical waiting over all iterations that count, above 0. float64 [E].
    """

    waiter: Places = msgspec.field(default_factory=_none)
    on: Places = msgspec.field(default_factory=_none)
    wait_us: Floats = msgspec.field(default_factory=lambda: np.zeros(0))


class Meets:
    """Sum over groups of the waiting of each worker for each other worker."""

    def __init__(self) -> None:
        self._parts: list[tuple[Places, Places, Floats]] = []

    def add(self, members_GM: Places, wait_GMK: Floats, share_GMK: Floats, last_GM: Floats) -> None:
        """Enter the executions of some groups.

        Args:
            members_GM: Indices of the workers.
            wait_GMK: Critical waiting.
            share_GMK: Each member's share of the blame.
            last_GM: The sum of its shares.
        """
        most = min(int((last_GM > 0).sum(axis=1).max(initial=0)), _MOST_LAST)
        if not most:
            return
        late_GL = np.argsort(-last_GM, axis=1, kind="stable")[:, :most]
        wait_GLM = np.take_along_axis(share_GMK, late_GL[..., None], axis=1) @ wait_GMK.swapaxes(1, 2)
        shape = wait_GLM.shape
        waiter = np.broadcast_to(members_GM[:, None], shape)
        on = np.broadcast_to(np.take_along_axis(members_GM, late_GL, axis=1)[..., None], shape)
        real = (wait_GLM > 0) & (waiter != on)
        self._parts.append((waiter[real], on[real], wait_GLM[real]))

    def by_pair(self, workers: int) -> DirectWaits:
        """Sum up all waits, one edge a pair; no worker waits for itself."""
        if not self._parts:
            return DirectWaits()
        waiter_E, on_E, wait_E = map(np.concatenate, zip(*self._parts, strict=True))
        pairs, place_E = np.unique(waiter_E * workers + on_E, return_inverse=True)
        waiter, on = np.divmod(pairs, workers)
        sums = np.bincount(place_E, weights=wait_E, minlength=pairs.size)
        return DirectWaits(waiter=waiter, on=on, wait_us=np.asarray(sums, dtype=np.float64))
