"""The members of each role, as index arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: Role numbers below this sort as 16-bit integers, in one pass.
_SMALL = 1 << 16


def members_of(roles_W: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """Indices of the workers of each role, in order of role and worker.

    Args:
        roles_W: Role of each worker, not negative. intp [W].
    """
    if not roles_W.size:
        return []
    highest = int(roles_W.max())
    if highest == int(roles_W.min()):
        return [np.arange(roles_W.size, dtype=np.intp)]
    order = np.argsort(roles_W.astype(np.uint16) if highest < _SMALL else roles_W, kind="stable")
    edges = np.flatnonzero(np.diff(roles_W[order])) + 1
    return np.split(order, edges)
