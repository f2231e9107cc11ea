"""Find where in a worker's own time lies waiting that its critical path shows but no matched execution explains.

It is in collectives that did not pair, or in ones that nothing but their row is known of. Such waiting is long and
rare, so it is looked for in the longest stretches of own time of its iteration.

Array suffixes: S stretches of own time, C cells (a worker in an iteration). All times are microseconds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.intp]


def shorten_longest(length_S: Floats, cell_S: Places, spare_C: Floats) -> Floats:
    """Stretches cut to a common length in each cell, such that what is cut off adds up to a given time.

    Args:
        length_S: Lengths. float64 [S].
        cell_S: Which cell each belongs to. intp [S].
        spare_C: Time to be cut off in each cell; at most all of it is. float64 [C].

    Returns:
        New lengths. float64 [S].
    """
    cells = spare_C.size
    order = np.lexsort((-length_S, cell_S))
    length, cell = length_S[order], cell_S[order]
    first_C = np.searchsorted(cell, np.arange(cells))
    total = np.concatenate([[0.0], np.cumsum(length)])
    rank = np.arange(length.size) - first_C[cell] + 1
    above = total[1:] - total[first_C[cell]]
    # With the k longest cut to the k-th's length this much is cut off; it rises with k.
    enough = above - rank * length <= spare_C[cell]
    count_C = np.bincount(cell, weights=enough, minlength=cells).astype(np.intp)
    taken_C = total[np.minimum(first_C + count_C, length.size)] - total[np.minimum(first_C, length.size)]
    level_C = np.maximum(taken_C - spare_C, 0.0) / np.maximum(count_C, 1)
    level_C = np.where(spare_C > 0, level_C, np.inf)
    return np.minimum(length_S, level_C[cell_S])
