"""Chooses between exponential, Gamma and Weibull gaps, with gaps seen through a clock that has steps.

A time is rounded down to a step d of the clock, at a random phase. A gap x is then seen as m steps with probability
1 - |x/d - m| for |x/d - m| < 1. With G the integral of the distribution function F from 0, the probability of m steps
is (G((m+1)d) - 2 G(md) + G((m-1)d)) / d. Gaps of many steps use the density. So likelihoods stay finite for gaps of 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from servegen.arrivals import gap_cv, residual_of
from servegen.pool import GAMMA, POISSON, WEIBULL, Floats

#: Gaps needed to choose a family; fewer are called exponential.
LEAST_GAPS = 30
#: Twice the gain in log-likelihood that a second parameter must bring: chi-squared with 1 degree of freedom at 1 %.
NEEDED_GAIN = 6.635
#: Gaps of at least this many clock steps use the density.
DENSITY_STEPS = 50


@dataclass(frozen=True, slots=True)
class Family:
    """The chosen family of gaps."""

    process: int  #: POISSON, GAMMA or WEIBULL
    shape: float  #: Its shape of highest likelihood; 1 for POISSON
    gain: float  #: Twice the gain in log-likelihood over exponential gaps
    ks: float  #: Kolmogorov-Smirnov distance between the gaps and the family
    decided_by: str  #: "likelihood ratio" or "too few"


@dataclass(frozen=True, slots=True)
class Gaps:
    """Gaps in units of their mean, counted by size."""

    steps: NDArray[np.int64]  #: Distinct gaps in steps of the clock. int64 [U]
    counts: NDArray[np.int64]  #: How often each occurs. int64 [U]
    step: float  #: The clock's step in units of the mean gap

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
    if gaps.counts.sum() < LEAST_GAPS or gaps.steps[-1] == 0:
        return Family(POISSON, 1.0, 0.0, ks_distance(gaps, POISSON, 1.0), "too few")
    fits = {process: _best(gaps, process) for process in (POISSON, GAMMA, WEIBULL)}
    process = GAMMA if fits[GAMMA][1] > fits[WEIBULL][1] else WEIBULL
    gain = 2 * (fits[process][1] - fits[POISSON][1])
    process = process if gain >= NEEDED_GAIN else POISSON
    shape = fits[process][0]
    return Family(process, shape, gain, ks_distance(gaps, process, shape), "likelihood ratio")


def _best(gaps: Gaps, process: int) -> tuple[float, float]:
    """Return shape and log-likelihood at the maximum over shape and mean."""

    def loss(logs: Floats) -> float:
        shape = 1.0 if process == POISSON else float(np.exp(logs[0]))
        return -log_likelihood(gaps, process, shape, float(np.exp(logs[-1])))

    first = [0.0] if process == POISSON else [np.clip(np.log(shape_of_cv(process, gaps.cv())), -4.0, 4.0), 0.0]
    bounds = [(-5.0, 5.0), (-1.5, 1.5)][-len(first) :]
    options: Any = {"xatol": 2e-3, "fatol": 1e-2, "maxiter": 200}
    found: optimize.OptimizeResult = optimize.minimize(
        loss, np.array(first), method="Nelder-Mead", bounds=bounds, options=options
    )
    return 1.0 if process == POISSON else float(np.exp(found.x[0])), -float(found.fun)


def log_likelihood(gaps: Gaps, process: int, shape: float, mean: float) -> float:
    """Return the log-likelihood of gaps whose mean is `mean` times the sample's."""
    step = float(gaps.step / mean)
    near = gaps.steps < DENSITY_STEPS
    counts, far = gaps.counts, np.asarray(gaps.steps[~near] * step)
    total = counts[~near] @ (_log_density(process, shape, far) + np.log(step))
    if near.any():
        # The integral of F is x minus that of the survival function, and the second difference of x is 0.
        edges = np.asarray(np.arange(int(gaps.steps[near][-1]) + 2) * step)
        integral = edges - residual_of(process, shape, edges)
        probability = np.diff(np.diff(integral, prepend=0.0)) / step
        total += counts[near] @ np.log(np.maximum(probability[gaps.steps[near]], 1e-300))
    return float(total)


def _log_density(process: int, shape: float, x: Floats) -> Floats:
    if process == GAMMA:
        return np.asarray(shape * np.log(shape) + (shape - 1) * np.log(x) - shape * x - special.gammaln(shape))
    if process == WEIBULL:
        scaled = x * special.gamma(1 + 1 / shape)
        return np.asarray(np.log(shape) + shape * np.log(scaled) - np.log(x) - scaled**shape)
    return -x


def ks_distance(gaps: Gaps, process: int, shape: float) -> float:
    """Return the largest difference between the gaps' distribution and the family's, both seen through the clock."""

    def seen(steps: NDArray[np.int64]) -> Floats:
        """Return the probability of at most so many steps, 0 for less than none."""
        low, high = (residual_of(process, shape, np.maximum(steps + more, 0) * gaps.step) for more in (0, 1))
        return np.where(steps < 0, 0.0, 1 - (high - low) / gaps.step)

    empirical = np.cumsum(gaps.counts) / gaps.counts.sum()
    # Between two seen sizes the family's distribution goes on rising up to the size before the next one.
    before = np.abs(seen(gaps.steps - 1) - np.concatenate([[0.0], empirical[:-1]]))
    return float(max(np.abs(seen(gaps.steps) - empirical).max(), before.max()))


def shape_of_cv(process: int, cv: float) -> float:
    """Return the shape whose gaps have this CV."""
    if process == GAMMA:
        return float(np.clip(cv**-2.0, 1e-4, 1e4))
    if process == WEIBULL:
        wanted = np.log(np.clip(cv, 0.02, 200.0))
        return float(np.exp(optimize.brentq(lambda s: np.log(gap_cv(WEIBULL, np.exp(s))) - wanted, -2.0, 4.5)))
    return 1.0
