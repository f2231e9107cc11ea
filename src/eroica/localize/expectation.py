"""Distance from expectation: how far a function's β lies outside what its class may take (EROICA, eq. 6 and 7)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import FunctionKey
from eroica.settings import Settings

Floats = NDArray[np.float64]


def expected_beta(key: FunctionKey, settings: Settings) -> float:
    """Highest β a function of this class may have, 0-1.

    Source:
        EROICA, section 4.3: Python 0.01, collectives 0.30, compute kernels 1. Ours: memory operations
        `expected_memory` (the paper is silent); garbage collections, and everything inside the loader's next, count
        as Python.
    """
    if key.kind in ("python", "gc") or key.phase == "input":
        return settings.expected_python
    if key.kind == "collective":
        return settings.expected_collective
    return settings.expected_memory if key.kind == "memory" else 1.0


def distance_from_expectation(
    key: FunctionKey, beta_W: Floats, reference_W: Floats, has_accelerator: bool, settings: Settings
) -> Floats:
    """Manhattan distance from each worker's pattern to the box of expected patterns.

    The box limits β only, so the distance is `max(0, β - highest expected β)`. Without an accelerator a healthy job's
    Python exceeds 1 %: there the expectation applies to what exceeds the reference.

    Args:
        key: Which function.
        beta_W: Its β. float64 [W].
        reference_W: β of the same worker in the job's baseline window, else the median of its peers; NaN where there
            is neither. float64 [W].
        has_accelerator: Device kernels were seen in this job.
        settings: The expectations.

    Returns:
        Distances, 0-1. float64 [W].

    Source:
        EROICA, section 4.3, equations 6 and 7. Deviation: the excess rule without an accelerator, under which a worker
        without any reference is never at a distance.
    """
    highest = expected_beta(key, settings)
    if not has_accelerator and (key.kind in ("python", "gc") or key.phase == "input"):
        beta_W = beta_W - np.where(np.isnan(reference_W), beta_W, reference_W)
    return np.maximum(beta_W - highest, 0.0)
