"""Chooses between exponential, Gamma and Weibull gaps, with gaps seen through a clock that has steps.

A time is rounded down to a step d of the clock, at a random phase. A gap x is then seen as m steps with probability
1 - |x/d - m| for |x/d - m| < 1. With G the integral of the distribution function F from 0, the probability of m steps
is (G((m+1)d) - 2 G(md) + G((m-1)d)) / d. Gaps of many steps use the density. So likelihoods stay finite for gaps of 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from servegen.arrivals import gap_cv
from servegen.pool import GAMMA, POISSON, WEIBULL, Floats

#: Gaps needed to choose a family; fewer are called exponential.
LEAST_GAPS = 30
#: Twice the gain in log-likelihood that a second parameter must bring: chi-squared with 1 degree of freedom at 1 %.
NEEDED_GAIN = 6.635
#: Gaps of at least this many clock steps use the density.
DENSITY_STEPS = 50


@dataclass(frozen=True, slots=True)
class Family:
    """The chosen family of gaps.

    Attributes:
        process: POISSON, GAMMA or WEIBULL.
        shape: Its shape of highest likelihood; 1 for POISSON.
        gain: Twice the gain in log-likelihood over exponential gaps.
        ks: Kolmogorov-Smirnov distance between the gaps and the family.
        decided_by: "likelihood ratio" or "too few".
    """

    process: int
    shape: float
    gain: float
    ks: float
    decided_by: str


@dataclass(frozen=True, slots=True)
class Gaps:
    """Gaps in units of their mean, counted by size.

    Attributes:
        steps: Distinct gaps in steps of the clock. int64 [U]
        counts: How often each occurs. int64 [U]
        step: The clock's step in units of the mean gap.
    """

    steps: NDArray[np.int64]
    counts: NDArray[np.int64]
    step: float

    @classmethod
    def of(cls, gaps_ns: NDArray[np.int64], clock_ns: int) -> Gaps:
        """Return the gaps, given in nanoseconds, as counts of clock steps."""
        steps, counts = np.unique(np.rint(gaps_ns / clock_ns).astype(np.int64), return_counts=True)
        return cls(steps, counts, float(counts.sum() / max(steps @ counts, 1)))

    def cv(self) -> float:
        """Return the gaps' coefficient of variation as seen through the clock."""
        total = self.counts.sum()
        mean = self.steps @ self.counts / total
        return float(np.sqrt((self.steps - mean) ** 2 @ self.counts / total) / mean) if mean > 0 else 1.0


def choose_family(gaps: Gaps) -> Family:
    """Return the family of the gaps, by likelihood-ratio tests against exponential at the 1 % level."""
    total = int(gaps.counts.sum())
    if total < LEAST_GAPS or gaps.steps[-1] == 0:
        return Family(POISSON, 1.0, 0.0, ks_distance(gaps, POISSON, 1.0), "too few")
    base = _best(gaps, POISSON)[1]
    fits = {process: _best(gaps, process) for process in (GAMMA, WEIBULL)}
    process = max(fits, key=lambda p: fits[p][1])
    gain = 2 * (fits[process][1] - base)
    if gain < NEEDED_GAIN:
        return Family(POISSON, 1.0, gain, ks_distance(gaps, POISSON, 1.0), "likelihood ratio")
    shape = fits[process][0]
    return Family(process, shape, gain, ks_distance(gaps, process, shape), "likelihood ratio")


def _best(gaps: Gaps, process: int) -> tuple[float, float]:
    """Return shape and log-likelihood at the maximum over shape and mean."""
    if process == POISSON:
        mean = optimize.minimize_scalar(
            lambda m: -log_likelihood(gaps, POISSON, 1.0, np.exp(m)), bounds=(-1, 1), method="bounded"
        )
        return 1.0, -float(mean.fun)

    def loss(p: Floats) -> float:
        return -log_likelihood(gaps, process, float(np.exp(p[0])), float(np.exp(p[1])))

    found: optimize.OptimizeResult = optimize.minimize(
        loss,
        np.array([np.clip(np.log(shape_of_cv(process, gaps.cv())), -4.0, 4.0), 0.0]),
        method="Nelder-Mead",
        bounds=[(-5.0, 5.0), (-1.5, 1.5)],
        options={"xatol": 2e-3, "fatol": 1e-2, "maxiter": 200},
    )
    return float(np.exp(found.x[0])), -float(found.fun)


def log_likelihood(gaps: Gaps, process: int, shape: float, mean: float) -> float:
    """Return the log-likelihood of gaps whose mean is `mean` times the sample's."""
    step = float(gaps.step / mean)
    near = gaps.steps < DENSITY_STEPS
    total = 0.0
    if near.any():
        edges = np.arange(int(gaps.steps[near][-1]) + 2) * step
        integral = _integral(process, shape, edges.astype(np.float64))
        probability = np.diff(np.diff(np.concatenate([[0.0], integral]))) / step
        total += float(gaps.counts[near] @ np.log(np.maximum(probability[gaps.steps[near]], 1e-300)))
    if not near.all():
        total += float(
            gaps.counts[~near]
            @ (_log_density(process, shape, (gaps.steps[~near] * step).astype(np.float64)) + np.log(step))
        )
    return total


def _integral(process: int, shape: float, x: Floats) -> Floats:
    """Return the integral of the distribution function from 0, for gaps of mean 1."""
    if process == GAMMA:
        return np.asarray(x * special.gammainc(shape, shape * x) - special.gammainc(shape + 1, shape * x))
    if process == WEIBULL:
        power = (x * special.gamma(1 + 1 / shape)) ** shape
        return np.asarray(-x * np.expm1(-power) - special.gammainc(1 + 1 / shape, power))
    return np.asarray(x + np.expm1(-x))


def _log_density(process: int, shape: float, x: Floats) -> Floats:
    if process == GAMMA:
        return np.asarray(shape * np.log(shape) + (shape - 1) * np.log(x) - shape * x - special.gammaln(shape))
    if process == WEIBULL:
        scaled = x * special.gamma(1 + 1 / shape)
        return np.asarray(np.log(shape) + shape * np.log(scaled) - np.log(x) - scaled**shape)
    return -x


def cdf(process: int, shape: float, x: Floats) -> Floats:
    """Return the distribution function of gaps of mean 1."""
    if process == GAMMA:
        return np.asarray(special.gammainc(shape, shape * x))
    if process == WEIBULL:
        return np.asarray(-np.expm1(-((x * special.gamma(1 + 1 / shape)) ** shape)))
    return np.asarray(-np.expm1(-x))


def ks_distance(gaps: Gaps, process: int, shape: float) -> float:
    """Return the largest difference between the gaps' distribution and the family's, both seen through the clock."""
    empirical = np.cumsum(gaps.counts) / gaps.counts.sum()
    integral = _integral(process, shape, np.concatenate([gaps.steps, gaps.steps + 1]) * gaps.step)
    low, high = np.split(integral, 2)
    seen = (high - low) / gaps.step
    below = np.concatenate([[0.0], empirical[:-1]])
    # Between two seen sizes the family's distribution goes on rising up to the size before the next one.
    before = np.where(
        gaps.steps > 0, (low - _integral(process, shape, np.maximum(gaps.steps - 1, 0) * gaps.step)) / gaps.step, 0.0
    )
    return float(max(np.abs(seen - empirical).max(), np.abs(before - below).max()))


def shape_of_cv(process: int, cv: float) -> float:
    """Return the shape whose gaps have this CV."""
    if process == GAMMA:
        return float(np.clip(cv**-2.0, 1e-4, 1e4))
    if process == WEIBULL:
        found = optimize.brentq(
            lambda s: np.log(gap_cv(WEIBULL, np.exp(s))) - np.log(np.clip(cv, 0.02, 200.0)), -2.0, 4.5
        )
        return float(np.exp(found))
    return 1.0
