"""How likely chance alone does as much: exact sums, no approximation.

A busy host is named often because it takes part in much. So each run counts with its own probability: where 3 of 100
hosts were named, chance names any one of them with 0.03; where the job has one host, it says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def at_least(successes: int, probabilities: Sequence[float]) -> float:
    """Probability of so many successes or more in independent trials of different probabilities (Poisson binomial).

    Args:
        successes: 0 or more.
        probabilities: Of each trial, 0-1. float [N].

    Returns:
        The exact sum, 0-1; it takes N times `successes` steps.
    """
    if successes <= 0:
        return 1.0
    if successes > len(probabilities):
        return 0.0
    exactly = np.zeros(successes)  # of 0, 1, … successes - 1 successes so far
    exactly[0], reached = 1.0, 0.0
    for probability in probabilities:
        reached += float(exactly[-1]) * probability  # who gets there, stays there
        moved = exactly[:-1] * probability
        exactly *= 1 - probability
        exactly[1:] += moved
    return min(1.0, reached)
