"""Provisioning error against held-out hours; a simulation with an assumed engine, no GPU.

    python benchmarks/provisioning.py [--seeds 5] [--hours 7 9 11 13 15 17]

Truth: the requests of one hour of deepseek-r1, drawn by the sampler in `truth.py`, scaled to RATE. The generators know
another draw of that hour as a log: a pool fitted to it (servegen), its total rate and pooled lengths (poisson), and its
pooled CV, too (gamma). "beside" is servegen with a pool that knows only the hours before and after, and the rate; its
error holds the change of the clients themselves. n* is the fewest instances within the limits. Beside it are slots
of a plain queue, first come, first served.
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
from servegen.fit import fit_log
from servegen.logs import Log
from servegen.pool import Pool
from servegen.size import Load, SizeOptions, fewest_instances, pooled, pooled_cv
from servegen.workload import Slo, Workload

#: Requests per second on average over the day.
RATE = 6.0
#: A small instance, so that fleets have some tens of instances and one is a small step.
ENGINE = Engine(
    fixed_s=0.012, per_sequence_s=0.0004, per_prefill_token_s=0.00005, sequences=12, batch_tokens=1024, blocks=16_384
)
OPTIONS = SizeOptions(ENGINE, Slo(ttft_s=4.0, tbt_s=0.1, quantile=0.99))
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]
NAMES = ("truth", "servegen", "poisson", "gamma", "servegen, lengths shuffled", "servegen, beside")


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


def generated(source: Pool, **fields: object) -> Arrays:
    table = pa.concat_tables(stream(plan(Workload(**fields), source)))  # type: ignore[arg-type]
    return table["time_us"].to_numpy() / 1e6, table["input_tokens"].to_numpy(), table["output_tokens"].to_numpy()


def one(pool: Pool, beside: Pool, hour: int, seed: int) -> dict[str, object]:
    """Size one held-out hour with one seed."""
    factor = RATE / pool.rate.sum(axis=0).mean()
    first = 6 * hour
    real = truth.requests(pool, first, first + 6, seed, factor)
    known = truth.requests(pool, first, first + 6, seed + 1000, factor)
    ns = (known[0] * 1e9).astype(np.int64)
    log = Log(pool.clients, known[1].astype(np.int32), ns - ns[0], known[2], known[3], None, int(ns[0]), 1000, ())
    fitted = fit_log(log).pool
    cv = pooled_cv((known[0] * 1e6).astype(np.int64))
    steps = [(600.0 * i, float(r) * factor) for i, r in enumerate(pool.rate[:, first : first + 6].sum(axis=0))]
    fields: dict[str, object] = {"hours": 1, "seed": seed, "rate": steps}
    ours = generated(fitted, **fields)
    shuffled = np.random.default_rng(seed).permutation(np.stack(ours[1:], 1)).T
    loads: dict[str, Arrays] = {
        "truth": (real[0], real[2], real[3]),
        "servegen": ours,
        "poisson": generated(pooled(fitted), **fields),
        "gamma": generated(pooled(fitted, cv), **fields),
        "servegen, lengths shuffled": (ours[0], shuffled[0], shuffled[1]),
        "servegen, beside": generated(beside, start_hour=hour, **fields),
    }
    result: dict[str, object] = {"hour": hour, "seed": seed, "pooled_cv": cv, "requests": len(real[0])}
    for name, load in loads.items():
        if "shuffled" not in name and ("beside" not in name or seed == 0):
            found = fewest_instances(Load(load[0], load[1].tolist(), load[2].tolist()), OPTIONS)[0]
            result[f"{name}: instances"] = found
        result[f"{name}: slots"] = slots(*load)
    print(result, flush=True)
    return result


def summarize(rows: list[dict]) -> dict[str, object]:
    """Return the errors of each generator: of each hour's median over seeds, and of all seeds."""
    summary: dict[str, object] = {"rate": RATE, "rows_done": len(rows)}
    hours = sorted({r["hour"] for r in rows})
    for unit in ("instances", "slots"):
        for name in NAMES:
            key = f"{name}: {unit}"
            real = {h: float(np.median([r[f"truth: {unit}"] for r in rows if r["hour"] == h])) for h in hours}
            errors = [r[key] / real[r["hour"]] - 1 for r in rows if key in r]
            by_hour = [
                float(np.median([r[key] for r in rows if r["hour"] == h and key in r] or [np.nan])) / real[h] - 1
                for h in hours
            ]
            if errors:
                summary[key] = {
                    "median_error_of_hours": round(float(np.nanmedian(by_hour)), 4),
                    "median_absolute_error_of_hours": round(float(np.nanmedian(np.abs(by_hour))), 4),
                    "range_of_hours": [round(float(np.nanmin(by_hour)), 4), round(float(np.nanmax(by_hour)), 4)],
                    "range_of_all_seeds": [round(min(errors), 4), round(max(errors), 4)],
                }
    return summary


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--hours", type=int, nargs="+", default=[7, 9, 11, 13, 15, 17])
    arguments = parser.parse_args()
    pool = published("reason-deepseek-r1")
    beside = held_out(pool)
    rows: list[dict] = []
    for seed in range(arguments.seeds):
        rows += [one(pool, beside, hour, seed) for hour in arguments.hours]
        keep("provisioning", {**summarize(rows), "seeds_done": seed + 1, "hours": arguments.hours, "rows": rows})


if __name__ == "__main__":
    main()
