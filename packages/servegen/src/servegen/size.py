"""How many instances serve a workload within its limits: ServeGen's workload, naive ones, and a real log."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa

from servegen.compose import plan, stream
from servegen.engine import Engine, simulate
from servegen.errors import BadRequest
from servegen.parallel import Engine as ParallelEngine
from servegen.parallel import map_ordered
from servegen.pool import GAMMA, POISSON, Floats, Histogram, Lengths, Pool
from servegen.workload import Slo, Workload

#: Version of the JSON that a sizing writes.
SCHEMA = "servegen.size/1"
Generator = Literal["servegen", "poisson", "gamma"]
GENERATORS: tuple[Generator, ...] = ("servegen", "poisson", "gamma")
#: Instances beyond which the search ends.
MOST_INSTANCES = 2000


def pooled(pool: Pool, cv: float = 1.0) -> Pool:
    """Return the naive view of a pool: one client with the total rate, one CV, and all clients' lengths mixed.

    Args:
        pool: The pool; clients without histograms are left out.
        cv: CV of the gaps; 1 makes them exponential.
    """
    pool = pool.only(pool.complete())
    rate = pool.rate.sum(axis=0, keepdims=True)
    grid = rate.shape
    lengths: dict[str, tuple[Lengths | None, ...]] = {}
    for field, column in pool.lengths.items():
        starts = np.unique(np.concatenate([entry.starts_s for entry in column if entry is not None]))
        edges = [*starts.tolist()[1:], max(pool.span_s, int(starts[-1]) + 1)]
        mixed = [_mixed(pool, column, start, end) for start, end in zip(starts.tolist(), edges, strict=True)]
        lengths[field] = (Lengths(starts, tuple(mixed)),)
    process = np.full(grid, POISSON if cv == 1 else GAMMA, np.int8)
    return Pool(("all",), pool.window_s, rate, np.full(grid, cv), process, np.full(grid, cv**-2.0), lengths)


def _mixed(pool: Pool, column: Sequence[Lengths | None], start: int, end: int) -> Histogram:
    low, high = max(start // pool.window_s, 0), max(-(-end // pool.window_s), 1)
    weights = pool.rate[:, low:high].sum(axis=1)
    parts = [
        (entry.at(max(start, 0)), float(weights[c]))
        for c, entry in enumerate(column)
        if entry is not None and weights[c] > 0
    ]
    return Histogram.mixed(parts or [(entry.at(start), 1.0) for entry in column if entry is not None])


def pooled_cv(time_us: np.ndarray, window_s: int = 600) -> float:
    """Return the mean CV of the gaps of all requests together, over windows with at least 100 requests."""
    windows = np.split(time_us, np.flatnonzero(np.diff(time_us // (window_s * 1_000_000))) + 1)
    gaps = [np.diff(times) for times in windows if len(times) >= 100]
    if not gaps:
        gaps = [np.diff(time_us)]
    return float(np.mean([g.std() / g.mean() for g in gaps]))


@dataclass(frozen=True)
class SizeOptions:
    """How to size.

    Attributes:
        engine: One instance.
        slo: Limits; the workload's quantile must stay within them.
        router: "round-robin" or "least-requests".
        seeds: How many seeds each generator gets.
        workers: Processes or Ray workers.
        parallel: "process" or "ray".
        generators: Which generators to size.
    """

    engine: Engine
    slo: Slo
    router: str = "round-robin"
    seeds: int = 5
    workers: int = 1
    parallel: ParallelEngine = "process"
    generators: tuple[Generator, ...] = GENERATORS


@dataclass(frozen=True)
class Need:
    """Instances that one workload needs, and what one fewer would do.

    Attributes:
        generator: "servegen", "poisson", "gamma" or "log".
        seed: Its seed; 0 for a log.
        requests: Its requests.
        instances: The fewest instances within the limits.
        tried: Per number of instances that was simulated: quantiles of TTFT and TBT, None if it was far too slow.
    """

    generator: str
    seed: int
    requests: int
    instances: int
    tried: dict[int, tuple[float, float] | None]


@dataclass(frozen=True)
class _Job:
    workload: Workload
    pools: dict[str, Pool]
    options: SizeOptions
    log: tuple[Floats, list[int], list[int]] | None


def size_workload(workload: Workload, pool: Pool, options: SizeOptions, log: pa.Table | None = None) -> list[Need]:
    """Return the instances that each generator's workload needs, for each seed, and those that a log needs.

    Results do not depend on the number of workers or on the parallel engine.

    Args:
        workload: What to generate; its seed is the first of the seeds.
        pool: Its pool.
        options: Engine, limits and generators.
        log: Requests to size beside, such as a held-out log; None for none.
    """
    workload = msgspec.structs.replace(workload, pool_digest="")
    pools = {"servegen": pool, "poisson": pooled(pool)}
    if "gamma" in options.generators:
        times = pa.concat_tables(stream(plan(workload, pool)))["time_us"].to_numpy()
        if len(times) < 3:
            raise BadRequest("the workload has too few requests to size; check its rate and hours")
        pools["gamma"] = pooled(pool, pooled_cv(times, pool.window_s))
    tasks: list[tuple[str, int]] = [(g, workload.seed + s) for s in range(options.seeds) for g in options.generators]
    columns = None
    if log is not None:
        columns = _columns(log)
        tasks.append(("log", 0))
    job = _Job(workload, pools, replace(options, workers=1), columns)
    return list(map_ordered(_need, job, tasks, options.workers, options.parallel))


def _columns(table: pa.Table) -> tuple[Floats, list[int], list[int]]:
    return table["time_us"].to_numpy() / 1e6, table["input_tokens"].to_pylist(), table["output_tokens"].to_pylist()


def _need(job: _Job, task: tuple[str, int]) -> Need:
    generator, seed = task
    if generator == "log":
        assert job.log is not None
        requests = job.log
    else:
        workload = msgspec.structs.replace(job.workload, seed=seed, only_clients=[])
        requests = _columns(pa.concat_tables(stream(plan(workload, job.pools[generator]))))
    tried: dict[int, tuple[float, float] | None] = {}
    instances = fewest_instances(requests, job.options, tried)
    return Need(generator, seed, len(requests[0]), instances, dict(sorted(tried.items())))


def fewest_instances(
    requests: tuple[Floats, list[int], list[int]], options: SizeOptions, tried: dict[int, tuple[float, float] | None]
) -> int:
    """Return the fewest instances within the limits: doubling, then bisection.

    Raises:
        BadRequest: Not even MOST_INSTANCES suffice.
    """

    def enough(instances: int) -> bool:
        slo = options.slo
        served = simulate(options.engine, instances, *requests, options.router, slo.ttft_s, 1 - slo.quantile)
        if served.given_up:
            tried[instances] = None
            return False
        seen = float(np.quantile(served.ttft_s, slo.quantile, method="higher")), served.gap_quantile(slo.quantile)
        tried[instances] = seen
        return seen[0] <= slo.ttft_s and seen[1] <= slo.tbt_s

    if not len(requests[0]):
        return 0
    alone = np.quantile(np.asarray(requests[1]) * options.engine.per_prefill_token_s, options.slo.quantile)
    if alone > options.slo.ttft_s:
        raise BadRequest(f"prefill alone takes {alone:.2f} s for the longest requests, more than --ttft; raise it")
    high = _first_guess(requests, options.engine)
    while not enough(high):
        high = math.ceil(high * 1.25) + 1
        if high > MOST_INSTANCES:
            raise BadRequest(f"not even {MOST_INSTANCES} instances keep the limits; raise --ttft or --tbt")
    low = max((n for n in tried if n < high), default=0)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _first_guess(requests: tuple[Floats, list[int], list[int]], engine: Engine) -> int:
    """Return the instances that the mean load would need with full batches."""
    times, inputs, outputs = requests
    tokens = float(np.sum(inputs)) * engine.per_prefill_token_s
    batch = min(
        engine.sequences, engine.blocks * engine.block_tokens / max(float(np.mean(inputs) + np.mean(outputs) / 2), 1)
    )
    cached = engine.per_cached_token_s * float(np.mean(inputs) + np.mean(outputs) / 2)
    step = engine.fixed_s / batch + engine.per_sequence_s + cached
    return max(math.ceil((tokens + float(np.sum(outputs)) * step) / max(float(times[-1] - times[0]), 1.0)), 1)


def to_json(
    needs: Sequence[Need], options: SizeOptions, workload: Workload, engine_error: dict[str, float] | None
) -> dict[str, Any]:
    """Return a sizing as JSON values; docs/files.md describes them."""
    groups = {}
    truth = next((need.instances for need in needs if need.generator == "log"), None)
    for generator in dict.fromkeys(need.generator for need in needs):
        found = [need.instances for need in needs if need.generator == generator]
        groups[generator] = {
            "instances_median": float(np.median(found)),
            "instances_low": min(found),
            "instances_high": max(found),
            "seeds": len(found),
            "against_log": None if truth is None else float(np.median(found)) / truth - 1,
        }
    return {
        "schema": SCHEMA,
        "workload": msgspec.to_builtins(workload),
        "slo": msgspec.to_builtins(options.slo),
        "engine": msgspec.to_builtins(options.engine),
        "engine_error": engine_error,
        "router": options.router,
        "generators": groups,
        "needs": [asdict(need) for need in needs],
    }
