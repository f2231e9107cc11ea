"""Fidelity of arrivals and lengths; method in docs/figures.md.

python benchmarks/fidelity.py [--seeds 20]
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
import pyarrow as pa
from scipy import stats

from records import keep, published
from servegen.arrivals import draw_gaps, gap_cv
from servegen.compose import plan, stream
from servegen.lengths import inverse
from servegen.pool import GAMMA, WEIBULL, Histogram, Lengths, Pool
from servegen.size import pooled, pooled_cv
from servegen.views import dispersion
from servegen.workload import Workload
from truth import times_only

#: Seeds of the naive generators, whose dispersion hardly varies.
NAIVE_SEEDS = 5
POOLS = ("reason-deepseek-r1", "multimodal-mm-image")


def generated(pool: Pool, **fields: object) -> pa.Table:
    return pa.concat_tables(stream(plan(Workload(**fields), pool))).unify_dictionaries().combine_chunks()  # type: ignore[arg-type]


def without_lengths(pool: Pool) -> Pool:
    """Return the pool with one length for all: the arrivals are the same, and it is quicker."""
    one = Lengths(np.array([0]), (Histogram.of(np.ones(1), np.ones(1)),))
    fields = ("input_tokens", "output_tokens")
    return replace(pool, lengths={field: (one,) * len(pool.clients) for field in fields})


def cv_of_windows(pool: Pool, seeds: int) -> dict[str, float]:
    """Mean CV over seeds of each window with at least 100 arrivals, against the CV that its shape gives."""
    wanted = [(c, w) for c, w in zip(*np.nonzero(pool.rate * pool.window_s >= 100), strict=True)]
    seen: dict[tuple[int, int], list[float]] = {key: [] for key in wanted}
    for seed in range(seeds):
        table = generated(without_lengths(pool), hours=pool.span_s / 3600, seed=seed)
        times, client = table["time_us"].to_numpy() / 1e6, table["client"].combine_chunks().indices.to_numpy()
        for c in {c for c, _ in wanted}:
            own = times[client == c]
            for w, part in enumerate(np.split(own, np.searchsorted(own, np.arange(1, pool.windows) * pool.window_s))):
                gaps = np.diff(part)
                # A draw of a very bursty window may be one clump within a microsecond; it has no CV.
                if (c, w) in seen and len(part) > 2 and gaps.any():
                    seen[c, w].append(float(gaps.std() / gaps.mean()))
    result = {}
    for process, name in ((GAMMA, "gamma"), (WEIBULL, "weibull")):
        keys = [key for key in wanted if pool.process[key] == process and seen[key]]
        by_shape = [abs(np.mean(seen[k]) / gap_cv(process, float(pool.shape[k])) - 1) for k in keys]
        recorded = [np.mean(seen[k]) / pool.cv[k] for k in keys]
        result |= {
            f"{name}_windows": len(keys),
            f"{name}_cv_error_median": float(np.median(by_shape)),
            f"{name}_cv_over_recorded_median": float(np.median(recorded)),
        }
    return result


def ks_of_gaps(pool: Pool) -> dict[str, float]:
    """Share of windows whose drawn gaps pass a Kolmogorov-Smirnov test, before they are summed to times."""
    rng = np.random.default_rng(1)
    cells = np.argwhere(pool.rate * pool.window_s >= 100)
    passed = 0
    for c, w in cells:
        process, shape = int(pool.process[c, w]), float(pool.shape[c, w])
        gaps = draw_gaps(rng, process, shape, int(pool.rate[c, w] * pool.window_s))
        law = stats.weibull_min(shape) if process == WEIBULL else stats.gamma(shape)
        passed += stats.kstest(gaps * law.mean(), law.cdf).pvalue > 0.01
    return {"gap_windows": len(cells), "gap_ks_passed": passed / len(cells)}


def ks_of_lengths(pool: Pool) -> dict[str, float]:
    rng = np.random.default_rng(2)
    distances = []
    for column in pool.lengths.values():
        for entry in column:
            for histogram in entry.histograms[:1] if entry else ():
                drawn = np.sort(inverse(histogram, rng.random(10_000)))
                ours = np.searchsorted(drawn, histogram.values, side="right") / 10_000
                distances.append(float(np.abs(ours - histogram.cumulative).max()))
    return {
        "length_histograms": len(distances),
        "length_ks_median": float(np.median(distances)),
        "length_ks_max": max(distances),
    }


def held_out(pool: Pool) -> Pool:
    """Return the pool that knows even hours only.

    Each odd hour's first half mirrors the half hour before it, its second half the half hour after it.
    """
    source = np.arange(pool.windows)
    for hour in range(1, pool.windows // 6, 2):
        first = 6 * hour
        source[first : first + 3] = first - 1 - np.arange(3)
        source[first + 3 : first + 6] = (
            first + 8 - np.arange(3) if first + 8 < pool.windows else first - 4 - np.arange(3)
        )
    return replace(pool, **{name: getattr(pool, name)[:, source] for name in ("rate", "cv", "shape", "process")})


def dispersions(pool: Pool, seeds: int) -> dict[str, object]:
    """Mean dispersion over seeds and odd hours: the held-out day by another sampler, ours, and naive generators."""
    train = without_lengths(held_out(pool))
    steps = [(w * 600.0, float(rate)) for w, rate in enumerate(pool.rate.sum(axis=0))]
    cv = pooled_cv(generated(train, hours=24, seed=0)["time_us"].to_numpy())
    makers = {"servegen": train, "poisson": pooled(train), "gamma": pooled(train, cv)}
    hours = range(1, 24, 2)
    found: dict[str, list[list[float]]] = {name: [] for name in ("held out", *makers)}
    for seed in range(seeds):
        for h in hours:
            found["held out"].append(list(dispersion(times_only(pool, 6 * h, 6 * h + 6, seed * 24 + h), 3600).values()))
        for name, maker in makers.items():
            if name != "servegen" and seed >= NAIVE_SEEDS:
                continue
            times = generated(maker, hours=24, seed=seed, rate=steps)["time_us"].to_numpy() / 1e6
            for h in hours:
                inside = times[(times >= h * 3600) & (times < h * 3600 + 3600)] - h * 3600
                found[name].append(list(dispersion(inside, 3600).values()))
    means = {name: np.mean(rows, axis=0).round(3).tolist() for name, rows in found.items()}
    return {"dispersion_1_10_60_s": means, "pooled_cv": cv}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=20)
    seeds = parser.parse_args().seeds
    found: dict[str, object] = {"seeds": seeds}
    for name in POOLS:
        pool = published(name)
        found[name] = {
            **cv_of_windows(pool, seeds),
            **ks_of_gaps(pool),
            **ks_of_lengths(pool),
            **dispersions(pool, seeds),
        }
        keep("fidelity", found)


if __name__ == "__main__":
    main()
