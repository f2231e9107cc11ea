"""How well `fit` finds families, rates and CVs.

python benchmarks/fitting.py [--trials 300]
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
import pyarrow as pa
from scipy import optimize

from records import keep, published
from servegen.arrivals import draw_gaps, gap_cv
from servegen.compose import plan, stream
from servegen.families import Gaps, choose_family, log_likelihood, shape_of_cv
from servegen.fit import fit_log
from servegen.logs import Log
from servegen.pool import GAMMA, POISSON, WEIBULL
from servegen.workload import Workload

CASES = {
    "exponential": (POISSON, 1.0), "gamma cv 2": (GAMMA, 1 / 4), "gamma cv 3": (GAMMA, 1 / 9),
    "gamma cv 0.5": (GAMMA, 4.0), "weibull 0.5": (WEIBULL, 0.5),
}  # fmt: skip
#: Clock step in nanoseconds and requests per second.
CLOCKS = ((10**9, 0.05), (10**9, 0.1), (10**9, 0.5), (10**9, 2.0), (10**6, 9.0), (10**3, 9.0))


def seen(rng: np.random.Generator, process: int, shape: float, rate: float, clock: int, size: int) -> Gaps:
    """Gaps of a stream through a clock."""
    times = np.cumsum(draw_gaps(rng, process, shape, size + 1)) / rate + rng.random()
    return Gaps.of(np.diff((times * 1e9).astype(np.int64) // clock * clock), clock)


def families(trials: int) -> list[dict[str, object]]:
    rng = np.random.default_rng(5)
    rows = []
    for clock, rate in CLOCKS:
        right = {}
        for name, (process, shape) in CASES.items():
            found = [choose_family(seen(rng, process, shape, rate, clock, 500)).process for _ in range(trials)]
            right[name] = float(np.mean(np.array(found) == process))
        rows.append({"clock_s": clock / 1e9, "requests_per_s": rate, **right})
        print(rows[-1], flush=True)
    return rows


def known(trials: int) -> list[dict[str, object]]:
    """Share of right choices between two families if the parameters of both are known: no test of gaps does better.

    The other family is its member of highest likelihood on 200,000 gaps.
    """
    rng = np.random.default_rng(4)
    rows = []
    for clock, rate in CLOCKS:
        right = {}
        for name, (process, shape) in CASES.items():
            if process != POISSON:
                step = clock * rate / 1e9
                other = WEIBULL if process == GAMMA else GAMMA
                closest = closest_of(other, seen(rng, process, shape, rate, clock, 200_000), gap_cv(process, shape))
                draws = [replace(seen(rng, process, shape, rate, clock, 500), step=step) for _ in range(trials)]
                wins = [log_likelihood(g, process, shape, 1.0) > log_likelihood(g, other, *closest) for g in draws]
                right[name] = float(np.mean(wins))
        rows.append({"clock_s": clock / 1e9, "requests_per_s": rate, **right})
        print(rows[-1], flush=True)
    return rows


def closest_of(family: int, gaps: Gaps, cv: float) -> tuple[float, float]:
    """Shape and mean of the highest likelihood."""
    start = np.array([np.log(shape_of_cv(family, cv)), 0.0])
    found = optimize.minimize(lambda p: -log_likelihood(gaps, family, *np.exp(p).tolist()), start, method="Nelder-Mead")
    return tuple(np.exp(found.x).tolist())


def own_values() -> dict[str, float]:
    """Largest relative difference between the fit's rate and CV and the sample's own, over windows of two hours."""
    pool = published("reason-deepseek-r1")
    table = (
        pa.concat_tables(stream(plan(Workload(hours=3, start_hour=10, seed=1), pool)))
        .unify_dictionaries()
        .combine_chunks()
    )
    client = table["client"].combine_chunks()
    times = table["time_us"].to_numpy() * 1000
    lengths = [table[name].to_numpy().astype(np.int64) for name in ("input_tokens", "output_tokens")]
    log = Log(
        tuple(client.dictionary.to_pylist()),
        client.indices.to_numpy(),
        times - times[0],
        *lengths,
        None,
        int(times[0]),
        1000,
        (),
    )
    found = fit_log(log)
    rates, cvs, generating = [], [], []
    for w in found.windows:
        name = found.pool.clients[w.client]
        if not 0 < w.window < found.pool.windows - 1 or w.family.decided_by == "too few" or name == "rest":
            continue
        own = times[client.indices.to_numpy() == pool.clients.index(name)] / 1e9
        inside = own[(own // 600).astype(int) == w.window]
        gaps = np.diff(inside)
        rates.append(abs(w.rate * 600 / len(inside) - 1))
        cvs.append(abs(w.cv / (gaps.std() / gaps.mean()) - 1))
        at = pool.clients.index(name), w.window + 60
        if pool.process[at] == GAMMA and len(inside) >= 10_000 * pool.cv[at] ** 2:
            generating.append((w.rate / pool.rate[at] - 1, w.cv / pool.cv[at] - 1))
    return {
        "windows": len(rates),
        "rate_difference_max": max(rates),
        "cv_difference_max": max(cvs),
        "large_windows": len(generating),
    }


def recovery() -> dict[str, float]:
    """Fit against the generating parameters, for windows with 10,000 times squared CV requests."""
    rng = np.random.default_rng(6)
    errors = []
    for cv in (0.5, 1.0, 2.0, 3.0):
        for _ in range(20):
            size = int(10_000 * max(cv, 1) ** 2)
            times = np.cumsum(draw_gaps(rng, GAMMA, cv**-2.0, size)) / (size / 600)
            ns = (times * 1e9).astype(np.int64)
            ones = np.ones(size, np.int64)
            log = Log(("a",), np.zeros(size, np.int32), ns - ns[0], ones, ones, None, 0, 1000, ())
            pool = fit_log(log).pool
            errors.append((abs(pool.rate[0, 0] / (size / 600) - 1), abs(pool.cv[0, 0] / cv - 1)))
    rate, value = np.array(errors).T
    return {
        "trials": len(errors),
        "rate_within_2_percent": float((rate < 0.02).mean()),
        "cv_within_5_percent": float((value < 0.05).mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=300)
    trials = parser.parse_args().trials
    named = {"families": families(trials), "families_with_known_parameters": known(trials)}
    keep("fitting", {"trials": trials, "own": own_values(), "recovery": recovery(), **named})


if __name__ == "__main__":
    main()
