"""How many instances serve a workload within its limits: ServeGen's workload, naive ones, and a real log."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

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


class Load(NamedTuple):
    """Requests to serve, in order of time: seconds, float64 [N], input and output tokens, [N] each."""

    times_s: Floats
    inputs: list[int]
    outputs: list[int]

    @classmethod
    def of(cls, table: pa.Table) -> Load:
        """Return the load of requests as `compose.stream` or `export.read_requests` give them."""
        tokens = (table[name].to_pylist() for name in ("input_tokens", "output_tokens"))
        return cls(table["time_us"].to_numpy() / 1e6, *tokens)


def pooled(pool: Pool, cv: float = 1.0) -> Pool:
    """Return the naive view of a pool: one client with the total rate, one CV, and all clients' lengths mixed.

    Args:
        pool: The pool; clients without histograms are left out.
        cv: CV of the gaps; 1 makes them exponential.
    """
    pool = pool.only(pool.complete())
    rate = pool.rate.sum(axis=0, keepdims=True)
    lengths: dict[str, tuple[Lengths | None, ...]] = {}
    for field, column in pool.lengths.items():
        entries = [entry for entry in column if entry is not None]
        starts = np.unique(np.concatenate([entry.starts_s for entry in entries]))
        ends = np.append(starts[1:], max(pool.span_s, starts[-1] + 1))
        mixed = []
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            weights = pool.rate[:, start // pool.window_s : -(-end // pool.window_s)].sum(axis=1)
            weights = weights if weights.any() else np.ones(len(entries))
            parts = [(entry.at(start), float(w)) for entry, w in zip(entries, weights, strict=True) if w > 0]
            mixed.append(Histogram.mixed(parts))
        lengths[field] = (Lengths(starts, tuple(mixed)),)
    grids = np.full(rate.shape, cv), np.full(rate.shape, POISSON if cv == 1 else GAMMA, np.int8)
    return Pool(("all",), pool.window_s, rate, *grids, np.full(rate.shape, cv**-2.0), lengths)


def pooled_cv(time_us: np.ndarray, window_s: int = 600) -> float:
    """Return the mean CV of the gaps of all requests together, over windows with at least 100 requests."""
    windows = np.split(time_us, np.flatnonzero(np.diff(time_us // (window_s * 1_000_000))) + 1)
    gaps = [np.diff(times) for times in windows if len(times) >= 100] or [np.diff(time_us)]
    return float(np.mean([g.std() / g.mean() for g in gaps]))


@dataclass(frozen=True)
class SizeOptions:
    """How to size."""

    engine: Engine  #: One instance
    slo: Slo  #: Limits; the workload's quantile must stay within them
    router: str = "round-robin"  #: "round-robin" or "least-requests"
    seeds: int = 5  #: How many seeds each generator gets
    workers: int = 1  #: Processes or Ray workers
    parallel: ParallelEngine = "process"  #: "process" or "ray"
    generators: tuple[Generator, ...] = GENERATORS  #: Which generators to size


@dataclass(frozen=True)
class Need:
    """Instances that one workload needs, and what one fewer would do."""

    generator: str  #: "servegen", "poisson", "gamma" or "log"
    seed: int  #: Its seed; 0 for a log
    requests: int  #: Its requests
    instances: int  #: The fewest instances within the limits
    #: Per number of instances that was simulated: quantiles of TTFT and TBT, None if it was far too slow
    tried: dict[int, tuple[float, float] | None]


@dataclass(frozen=True)
class _Job:
    workload: Workload
    pools: dict[str, Pool]
    options: SizeOptions
    log: Load | None


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
    if log is not None:
        tasks.append(("log", 0))
    job = _Job(workload, pools, options, None if log is None else Load.of(log))
    return list(map_ordered(_need, job, tasks, options.workers, options.parallel))


def _need(job: _Job, task: tuple[str, int]) -> Need:
    generator, seed = task
    load = job.log
    if load is None or generator != "log":
        workload = msgspec.structs.replace(job.workload, seed=seed, only_clients=[])
        load = Load.of(pa.concat_tables(stream(plan(workload, job.pools[generator]))))
    instances, tried = fewest_instances(load, job.options)
    return Need(generator, seed, len(load.times_s), instances, dict(sorted(tried.items())))


def fewest_instances(load: Load, options: SizeOptions) -> tuple[int, dict[int, tuple[float, float] | None]]:
    """Return the fewest instances within the limits, and `Need.tried`, by a guess, larger steps and bisection.

    Raises:
        BadRequest: Not even MOST_INSTANCES suffice.
    """
    slo, tried = options.slo, dict[int, tuple[float, float] | None]()

    def enough(instances: int) -> bool:
        served = simulate(options.engine, instances, *load, options.router, slo.ttft_s, 1 - slo.quantile)
        if served.given_up:
            tried[instances] = None
            return False
        seen = float(np.quantile(served.ttft_s, slo.quantile, method="higher")), served.gap_quantile(slo.quantile)
        tried[instances] = seen
        return seen[0] <= slo.ttft_s and seen[1] <= slo.tbt_s

    if not len(load.times_s):
        return 0, tried
    alone = np.quantile(np.asarray(load.inputs) * options.engine.per_prefill_token_s, slo.quantile)
    if alone > slo.ttft_s:
        raise BadRequest(f"prefill alone takes {alone:.2f} s for the longest requests, more than --ttft; raise it")
    high = _first_guess(load, options.engine)
    while not enough(high):
        high = math.ceil(high * 1.25) + 1
        if high > MOST_INSTANCES:
            raise BadRequest(f"not even {MOST_INSTANCES} instances keep the limits; raise --ttft or --tbt")
    low = max((n for n in tried if n < high), default=0)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high, tried


def _first_guess(load: Load, engine: Engine) -> int:
    """Return the instances that the mean load would need with full batches."""
    held = float(np.mean(load.inputs) + np.mean(load.outputs) / 2)
    batch = min(engine.sequences, engine.blocks * engine.block_tokens / max(held, 1))
    step = engine.fixed_s / batch + engine.per_sequence_s + engine.per_cached_token_s * held
    work = sum(load.inputs) * engine.per_prefill_token_s + sum(load.outputs) * step
    return max(math.ceil(float(work / max(load.times_s[-1] - load.times_s[0], 1.0))), 1)


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
