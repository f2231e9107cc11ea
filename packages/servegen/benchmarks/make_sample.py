"""Makes the pool that the package ships, in `src/servegen/sample`.

    python benchmarks/make_sample.py

It is drawn, not measured: 40 clients over one day, to the published facts on client skew, CV of client-windows, share
of Gamma and Weibull windows, daily swing, and families of lengths (inputs: log-normal with a Pareto tail; outputs:
exponential). `tests/test_pool.py` checks these facts.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from servegen.families import shape_of_cv
from servegen.pool import GAMMA, POISSON, WEIBULL, Histogram, Lengths, Pool, write_pool

CLIENTS, WINDOWS, WINDOW_S, LENGTHS_S = 40, 144, 600, 21_600
#: Values of each histogram: equally likely quantiles of its distribution.
VALUES = 96


def histogram(quantiles: np.ndarray) -> Histogram:
    values, counts = np.unique(np.maximum(np.rint(quantiles), 1), return_counts=True)
    return Histogram.of(values, counts.astype(float))


def main() -> None:
    rng = np.random.default_rng(20_260)
    weight = (np.arange(1, CLIENTS + 1) ** -1.1) * rng.lognormal(0, 0.3, CLIENTS)
    hours = np.arange(WINDOWS) / 6
    rate = np.zeros((CLIENTS, WINDOWS))
    cv = np.ones_like(rate)
    process = np.full(rate.shape, POISSON, np.int8)
    shape = np.ones_like(rate)
    lengths: dict[str, list[Lengths]] = {"input_tokens": [], "output_tokens": []}
    for c in range(CLIENTS):
        peak = rng.normal(15, 2.5 if c else 1)  # most clients peak in the afternoon
        swing = 1 + 0.6 * np.cos((hours - peak) / 24 * 2 * np.pi)
        drift = np.exp(np.cumsum(rng.normal(0, 0.03, WINDOWS)))
        active = np.ones(WINDOWS, bool)
        if c >= 4:  # small clients come and go
            start, length = rng.integers(WINDOWS), int(rng.uniform(0.15, 0.6) * WINDOWS)
            active = (np.arange(WINDOWS) - start) % WINDOWS < length
        rate[c] = np.where(active, swing * drift, 0)
        rate[c] *= 20 * weight[c] / weight.sum() / rate[c].mean()
        own = rng.lognormal(0.12, 0.4)  # a client's own burstiness is stable
        wild = rng.random(WINDOWS) < 0.13
        cv[c] = np.clip(
            own * rng.lognormal(0, 0.15, WINDOWS) * np.where(wild, rng.uniform(2.6, 4.5, WINDOWS), 1), 0.4, 12
        )
        process[c] = np.where(rng.random(WINDOWS) < 0.76, GAMMA, WEIBULL)
        shape[c] = [shape_of_cv(int(p), float(v)) for p, v in zip(process[c], cv[c], strict=True)]
        share = (np.arange(VALUES) + 0.5) / VALUES
        typical, tail, answer = rng.lognormal(6.3, 0.9), rng.uniform(1.2, 2.5), rng.lognormal(5.4, 0.8)
        heavy = rng.uniform(0.03, 0.2)
        starts = np.arange(0, WINDOWS * WINDOW_S, LENGTHS_S)
        inputs, outputs = [], []
        for _ in starts:
            shift = rng.lognormal(0, 0.1)
            body = typical * shift * np.exp(0.8 * rng.standard_normal(20_000))
            pareto = 2 * typical * shift * (1 - rng.random(20_000)) ** (-1 / tail)
            mixed = np.where(rng.random(20_000) < heavy, pareto, body)
            inputs.append(histogram(np.minimum(np.quantile(mixed, share), 32_000)))
            outputs.append(histogram(np.minimum(-answer * shift * np.log1p(-share), 8192)))
        lengths["input_tokens"].append(Lengths(starts, tuple(inputs)))
        lengths["output_tokens"].append(Lengths(starts, tuple(outputs)))
    names = tuple(f"client-{c:02d}" for c in range(CLIENTS))
    notes = {"source": "drawn to published facts; not measured"}
    pool = Pool(names, WINDOW_S, rate, cv, process, shape, {f: tuple(v) for f, v in lengths.items()}, notes=notes)
    folder = Path(__file__).parent.parent / "src" / "servegen" / "sample"
    write_pool(pool, folder)
    shares = np.sort(pool.shares())[::-1]
    on = rate > 0
    print(f"{CLIENTS} clients, {on.mean():.0%} active, {rate.sum(0).mean():.1f}/s")
    print(f"share of top 1, 5, 10: {shares[0]:.0%}, {shares[:5].sum():.0%}, {shares[:10].sum():.0%}")
    print(f"CV median {np.median(cv[on]):.2f}, p90 {np.quantile(cv[on], 0.9):.2f}, above 1 {(cv[on] > 1).mean():.0%}")
    print(f"Gamma {(process[on] == GAMMA).mean():.0%}")


if __name__ == "__main__":
    main()
