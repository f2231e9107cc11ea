"""Estimate how sure a finding is: a probability from the strength of its evidence."""

from __future__ import annotations

import numpy as np

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.lateness import LEAST_STRENGTH
from eroica.diagnosis.view import View
from eroica.localize.excess import UNKNOWN_NOISE

#: Standard errors at which an effect is believed by half.
_HALF_STRENGTH = 2.5
#: Doubt left when the named function holds nothing of the excess, when nobody is seen to wait for it, and when it
#: was compared with something weaker than peers or a baseline.
_UNCOVERED = 0.5
_UNCONFIRMED = 0.6
_WEAK_REFERENCE = {"peers": 1.0, "baseline": 1.0, "expectation": 0.9, "slowdown": 0.7, "stages": 0.85}
_HIGHEST = 0.99
#: Few iterations alike to the last digit (sampled, rounded) say no more than so many times what is known without them,
#: unless these are so many that they cannot be alike by accident.
_MOST_BEYOND_KNOWN = 1.5
_FEWEST_TOLD = 4
#: A running job: one more iteration that shows the opposite is always possible (the rule of succession), and few peers
#: are a poor measure of what is usual: doubts by the number of iterations, and of peers that are not accused.
_BY_ITERATIONS = 2.0
_BY_PEERS = 4.0
#: The doubts about what was seen are too large for windows of running jobs: causes stated with 0.65 to 0.85 were right
#: in 97 % of the fault benchmark's jobs (docs/accuracy.md). This power takes back about half of what is too much: jobs
#: out there have smaller faults than a benchmark.
_DOUBTS_OF_WINDOWS = 1.5
#: Recorded traces: what is left without most of the workers, and with nobody to compare with.
_LEAST_HEARD = 0.8
_ALONE = 0.75


def estimate_confidence(view: View, candidate: Candidate, gain: float) -> float:
    """Estimate the probability that a candidate is a cause and its named function is right, 0-1.

    Four doubts multiply: noise (excess in standard errors), place (share of the excess in the named function), waiting
    and the reference. Waiting is the share of the excess that the others wait for, and of the blame in matched
    collectives that lies on the accused. A gain near the least one that counts, workers that did not report, and few
    iterations or peers, lower the confidence too: two workers or five iterations never make a certainty.
    """
    strength = believed_strength(view, candidate)
    effect = strength**2 / (strength**2 + _HALF_STRENGTH**2)
    place = _UNCOVERED + (1 - _UNCOVERED) * min(max(candidate.coverage, 0.0), 1.0)
    size = 1 - 0.5 * float(np.exp(-gain / max(candidate.least_gain, 1e-9)))
    belief = effect * place * _waiting(view, candidate) * size * _WEAK_REFERENCE[candidate.reference]
    if not view.is_trace:
        belief = 1 - (1 - belief) ** _DOUBTS_OF_WINDOWS
    belief *= candidate.doubt * _heard(view) * _repeated(view, candidate) * _measured(view, candidate)
    return round(float(np.clip(belief, 0.01, _HIGHEST)), 3)


def believed_strength(view: View, candidate: Candidate) -> float:
    """Return a cause's standard errors, corroboration included, less what few recorded iterations may pretend.

    By Student's distribution, but not less than what is known without any repetition: that functions of healthy workers
    vary by less than `UNKNOWN_NOISE` of their time. What is no accident even by Student's distribution stays so.
    """
    strength = candidate.strength
    if view.noise_factor > 1 and not candidate.is_latecomer:
        scale = UNKNOWN_NOISE * float(np.hypot(candidate.mean_us, candidate.reference_us)) / view.iterations**0.5
        known = candidate.excess_us / max(scale, 1e-9)
        by_student = strength / view.noise_factor
        is_clear = by_student >= LEAST_STRENGTH and view.iterations >= _FEWEST_TOLD
        most = strength if is_clear else _MOST_BEYOND_KNOWN * known
        strength = min(strength, max(by_student, known), most)
    return float(np.hypot(strength, candidate.corroboration))


def _repeated(view: View, candidate: Candidate) -> float:
    """Return the factor for few iterations, of this window and of the baseline window if that is the reference."""
    if view.is_trace:  # a recording is short, and its few iterations count by Student's distribution
        return 1.0
    past = view.suspects.baseline
    compared = candidate.reference == "baseline" and past is not None
    counted = min(view.iterations, past.iteration_us.shape[1]) if compared and past is not None else view.iterations
    return 1 - 1 / (counted + _BY_ITERATIONS)


def _measured(view: View, candidate: Candidate) -> float:
    """Return the factor for few peers."""
    if view.is_trace or candidate.scope != "some" or candidate.reference != "peers" or not candidate.workers:
        return 1.0
    roles = set(view.fleet.roles[list(candidate.workers)].tolist())
    peers = sum(role in roles for role in view.fleet.roles.tolist()) - len(candidate.workers)
    return 1 - 1 / (_BY_PEERS * (max(peers, 0) + 1))


def _heard(view: View) -> float:
    """Return the factor for workers that did not report; a recorded worker's own time keeps most of its worth."""
    reported = view.workers / max(view.context.expected_workers, view.workers)
    if not view.is_trace:
        return float(reported**0.5)
    return max(float(reported**0.5), _LEAST_HEARD) * (_ALONE if view.workers == 1 else 1.0)


def _waiting(view: View, candidate: Candidate) -> float:
    if candidate.agreement is None:
        return 1.0
    seen = candidate.agreement
    share = view.suspects.arrivals.blame_share(candidate.workers) if candidate.workers else None
    if share is not None:
        seen = (seen + min(share / 0.8, 1.0)) / 2
    return _UNCONFIRMED + (1 - _UNCONFIRMED) * min(seen, 1.0)
