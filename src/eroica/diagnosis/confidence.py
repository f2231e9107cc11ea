"""How sure a finding is: a probability from the strength of its evidence."""

from __future__ import annotations

import numpy as np

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.view import View

#: Standard errors at which an effect is believed by half.
_HALF_STRENGTH = 2.5
#: Doubt left when the named function holds nothing of the excess, when nobody is seen to wait for it, and when it
#: was compared with something weaker than peers or a baseline.
_UNCOVERED = 0.5
_UNCONFIRMED = 0.6
_WEAK_REFERENCE = {"peers": 1.0, "baseline": 1.0, "expectation": 0.9, "slowdown": 0.7}
_HIGHEST = 0.99


def estimate_confidence(view: View, candidate: Candidate, gain: float) -> float:
    """Probability that this is a cause and the named function is right, 0-1.

    Four doubts multiply: noise (excess in standard errors), place (share of the excess in the named function), waiting
    (share of the excess that the others wait for, and of the blame in matched collectives that lies on the accused),
    and the reference it is compared with. A gain near the least one that counts, and workers that did not report, take
    away from it too.
    """
    strength = float(np.hypot(candidate.strength, candidate.corroboration))
    effect = strength**2 / (strength**2 + _HALF_STRENGTH**2)
    place = _UNCOVERED + (1 - _UNCOVERED) * min(max(candidate.coverage, 0.0), 1.0)
    size = 1 - 0.5 * float(np.exp(-gain / max(candidate.least_gain, 1e-9)))
    reported = view.workers / max(view.context.expected_workers, view.workers)
    belief = effect * place * _waiting(view, candidate) * size * _WEAK_REFERENCE[candidate.reference] * reported**0.5
    return round(float(np.clip(belief, 0.01, _HIGHEST)), 3)


def _waiting(view: View, candidate: Candidate) -> float:
    if candidate.agreement is None:
        return 1.0
    seen = candidate.agreement
    share = view.suspects.arrivals.blame_share(candidate.workers) if candidate.workers else None
    if share is not None:
        seen = (seen + min(share / 0.8, 1.0)) / 2
    return _UNCONFIRMED + (1 - _UNCONFIRMED) * min(seen, 1.0)
