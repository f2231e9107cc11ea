"""How well `fit` finds families, rates and CVs.

python benchmarks/fitting.py [--trials 300]
"""

from __future__ import annotations

import argparse

import numpy as np
import pyarrow as pa

from records import keep, published
from servegen.arrivals import draw_gaps
from servegen.compose import plan, stream
from servegen.families import Gaps, choose_family
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


def families(trials: int) -> list[dict[str, object]]:
    rng = np.random.default_rng(5)
    rows = []
    for clock, rate in CLOCKS:
        right = {}
        for name, (process, shape) in CASES.items():
            count = 0
            for _ in range(trials):
                times = np.cumsum(draw_gaps(rng, process, shape, 501)) / rate + rng.random()
                seen = np.diff((times * 1e9).astype(np.int64) // clock * clock)
                count += choose_family(Gaps.of(seen, clock)).process == process
            right[name] = count / trials
        rows.append({"clock_s": clock / 1e9, "requests_per_s": rate, **right})
        print(rows[-1], flush=True)
    return rows


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
    keep("fitting", {"trials": trials, "own": own_values(), "recovery": recovery(), "families": families(trials)})


if __name__ == "__main__":
    main()
