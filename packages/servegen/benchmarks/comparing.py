"""How often `compare` names an injected change, and nobody in unchanged traffic.

    python benchmarks/comparing.py [--trials 100]

Each trial is one hour of deepseek-r1 at its own rate, at a random hour. A random client with at least 100 requests
sends 2.5 times as much, or has inputs or outputs 1.5 times as long.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
import pyarrow as pa

from records import keep, published
from servegen.compare import compare_log
from servegen.compose import plan, stream
from servegen.logs import Log
from servegen.pool import Pool
from servegen.workload import Workload


def log_of(pool: Pool, hour: float, seed: int) -> Log:
    table = (
        pa.concat_tables(stream(plan(Workload(hours=1, start_hour=hour, seed=seed), pool)))
        .unify_dictionaries()
        .combine_chunks()
    )
    client, times = table["client"].combine_chunks(), table["time_us"].to_numpy() * 1000
    lengths = [table[name].to_numpy().astype(np.int64) for name in ("input_tokens", "output_tokens")]
    return Log(
        tuple(client.dictionary.to_pylist()),
        client.indices.to_numpy(),
        times - times[0],
        *lengths,
        None,
        int(times[0]),
        1000,
        (),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=100)
    trials = parser.parse_args().trials
    pool = published("reason-deepseek-r1")
    rng = np.random.default_rng(11)
    exactly = dict.fromkeys(("rate", "input_tokens", "output_tokens"), 0)
    named = dict(exactly)
    alarms = 0
    missed = []
    for seed in range(trials):
        hour = float(rng.integers(0, 23))
        log = log_of(pool, hour, 1000 + seed)
        alarms += bool(compare_log(log, pool, start_hour=hour).changes)
        counts = np.bincount(log.client, minlength=len(log.clients))
        for quantity in exactly:
            victim = int(rng.choice(np.flatnonzero(counts >= 100)))
            name = log.clients[victim]
            if quantity == "rate":
                factor = np.where(np.array(pool.clients) == name, 2.5, 1.0)[:, None]
                changed = log_of(replace(pool, rate=pool.rate * factor), hour, 1000 + seed)
            else:
                values = getattr(log, quantity)
                changed = replace(
                    log, **{quantity: np.where(log.client == victim, np.rint(values * 1.5).astype(np.int64), values)}
                )
            found = [(f.client, f.quantity) for f in compare_log(changed, pool, start_hour=hour).changes]
            exactly[quantity] += found == [(name, quantity)]
            named[quantity] += (name, quantity) in found
            if found != [(name, quantity)]:
                missed.append(
                    {
                        "seed": seed,
                        "quantity": quantity,
                        "client": name,
                        "requests": int(counts[victim]),
                        "named": found,
                    }
                )
    keep(
        "comparing",
        {
            "trials": trials,
            "named": named,
            "named_and_nobody_else": exactly,
            "unchanged_with_an_alarm": alarms,
            "missed": missed,
        },
    )


if __name__ == "__main__":
    main()
