"""Provisioning error against held-out hours; a simulation with an assumed engine, no GPU.

    python benchmarks/provisioning.py [--seeds 5] [--hours 7 9 11 13 15 17]

Truth: requests of an odd hour of deepseek-r1, by the sampler in `truth.py`, scaled to RATE. The generators know the
hours beside it only, and the held-out hour's total rate per window. n* is the fewest instances within the limits. Beside
it stand slots of a plain queue (first come, first served).
"""

from __future__ import annotations

import argparse
import heapq

import numpy as np
import pyarrow as pa

import truth
from fidelity import held_out
from records import keep, published
from servegen.compose import plan, stream
from servegen.engine import Engine
from servegen.parallel import map_ordered
from servegen.pool import Pool
from servegen.size import SizeOptions, fewest_instances, pooled, pooled_cv
from servegen.workload import Slo, Workload

#: Requests per second on average over the day.
RATE = 8.0
#: A small instance, so that fleets have some tens of instances and one is a small step.
ENGINE = Engine(
    fixed_s=0.012,
    per_sequence_s=0.0004,
    per_prefill_token_s=0.00005,
    per_cached_token_s=2e-8,
    sequences=16,
    batch_tokens=1024,
    blocks=16_384,
)
SLO = Slo(ttft_s=4.0, tbt_s=0.1, quantile=0.99)


def slots(times: np.ndarray, inputs: np.ndarray, outputs: np.ndarray) -> int:
    """Return the fewest slots with P99 wait <= 1 s: 0.2 ms per input token and 20 ms per output token."""
    service = 0.0002 * np.asarray(inputs) + 0.02 * np.asarray(outputs)

    def wait(count: int) -> float:
        free = [0.0] * count
        waits = []
        for t, s in zip(times.tolist(), service.tolist(), strict=True):
            begin = max(heapq.heappop(free), t)
            waits.append(begin - t)
            heapq.heappush(free, begin + s)
        return float(np.quantile(waits, 0.99))

    low, high = 0, max(int(service.sum() / 3600 * 4), 8)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if wait(middle) <= 1 else (middle, high)
    return high


def one(pools: tuple[Pool, Pool, Pool], task: tuple[int, int]) -> dict[str, object]:
    """Size one held-out hour with one seed."""
    pool, train, naive = pools
    hour, seed = task
    factor = RATE / pool.rate.sum(axis=0).mean()
    steps = [(600.0 * i, float(r) * factor) for i, r in enumerate(pool.rate[:, 6 * hour : 6 * hour + 6].sum(axis=0))]
    fields = {"hours": 1, "start_hour": hour, "seed": seed, "rate": steps}

    def generated(source: Pool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        table = pa.concat_tables(stream(plan(Workload(**fields), source)))
        return table["time_us"].to_numpy() / 1e6, table["input_tokens"].to_numpy(), table["output_tokens"].to_numpy()

    ours = generated(train)
    cv = pooled_cv((ours[0] * 1e6).astype(np.int64))
    loads = {
        "truth": truth.requests(pool, 6 * hour, 6 * hour + 6, seed, factor),
        "servegen": ours,
        "poisson": generated(naive),
        "gamma": generated(pooled(train, cv)),
    }
    rng = np.random.default_rng(seed)
    loads["servegen, lengths shuffled"] = (ours[0], *(rng.permutation(np.stack(ours[1:], 1)).T))
    options = SizeOptions(ENGINE, SLO)
    result: dict[str, object] = {"hour": hour, "seed": seed, "pooled_cv": cv, "requests": len(loads["truth"][0])}
    for name, load in loads.items():
        if "shuffled" not in name:
            result[f"{name}: instances"] = fewest_instances((load[0], load[1].tolist(), load[2].tolist()), options, {})
        result[f"{name}: slots"] = slots(*load)
    print(result, flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--hours", type=int, nargs="+", default=[7, 9, 11, 13, 15, 17])
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    pool = published("reason-deepseek-r1")
    train = held_out(pool)
    tasks = [(hour, seed) for seed in range(arguments.seeds) for hour in arguments.hours]
    rows = list(map_ordered(one, (pool, train, pooled(train)), tasks, arguments.workers))
    summary: dict[str, object] = {"rate": RATE, "seeds": arguments.seeds, "hours": arguments.hours}
    for unit in ("instances", "slots"):
        hours: dict[int, float] = {
            h: float(np.median([r[f"truth: {unit}"] for r in rows if r["hour"] == h])) for h in arguments.hours
        }
        for name in ("truth", "servegen", "poisson", "gamma", "servegen, lengths shuffled")[
            : 4 if unit == "instances" else 5
        ]:
            errors = [r[f"{name}: {unit}"] / hours[r["hour"]] - 1 for r in rows]  # type: ignore[operator, index]
            per_hour = [
                float(np.median([r[f"{name}: {unit}"] for r in rows if r["hour"] == h])) / hours[h] - 1
                for h in arguments.hours
            ]  # type: ignore[misc]
            summary[f"{name}: {unit}"] = {
                "median_error_of_hours": round(float(np.median(per_hour)), 4),
                "median_absolute_error_of_hours": round(float(np.median(np.abs(per_hour))), 4),
                "range_of_hours": [round(min(per_hour), 4), round(max(per_hour), 4)],
                "range_of_all_seeds": [round(min(errors), 4), round(max(errors), 4)],
            }
    keep("provisioning", {**summary, "rows": rows})


if __name__ == "__main__":
    main()
