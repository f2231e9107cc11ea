"""Small pools, tables and logs for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from servegen.arrivals import gap_cv
from servegen.compose import plan, stream
from servegen.logs import Log
from servegen.pool import GAMMA, Histogram, Lengths, Pool
from servegen.workload import Workload


def pool_of(
    rates: Sequence[Sequence[float]],
    shapes: Sequence[Sequence[float]] | None = None,
    processes: Sequence[Sequence[int]] | None = None,
    inputs: Histogram | None = None,
    outputs: Histogram | None = None,
    window_s: int = 600,
) -> Pool:
    """A pool of clients "a", "b", ... with Gamma windows unless said otherwise."""
    rate = np.array(rates, float)
    shape = np.ones_like(rate) if shapes is None else np.array(shapes, float)
    process = np.full(rate.shape, GAMMA, np.int8) if processes is None else np.array(processes, np.int8)
    cv = np.array(
        [[gap_cv(int(p), k) for p, k in zip(ps, ks, strict=True)] for ps, ks in zip(process, shape, strict=True)]
    )
    inputs = inputs or Histogram.of(np.arange(1.0, 401.0), np.ones(400))
    outputs = outputs or Histogram.of(np.arange(1.0, 101.0), np.ones(100))
    lengths = {
        field: tuple(Lengths(np.array([0]), (histogram,)) for _ in rate)
        for field, histogram in (("input_tokens", inputs), ("output_tokens", outputs))
    }
    names = tuple(chr(ord("a") + c) for c in range(len(rate)))
    return Pool(names, window_s, rate, cv, process, shape, lengths)


def requests(pool: Pool, processes: int = 1, **fields: Any) -> pa.Table:
    return pa.concat_tables(stream(plan(Workload(**fields), pool), processes)).unify_dictionaries().combine_chunks()


def log_of(table: pa.Table) -> Log:
    client = table["client"].combine_chunks()
    times = table["time_us"].to_numpy() * 1000
    lengths = (table[name].to_numpy().astype(np.int64) for name in ("input_tokens", "output_tokens"))
    names = tuple(client.dictionary.to_pylist())
    return Log(names, client.indices.to_numpy(), times - times[0], *lengths, None, int(times[0]), 1000, ())


def requests_table(rows: Sequence[tuple[float, str, int, int]]) -> pa.Table:
    """Requests of (second, client, input tokens, output tokens)."""
    seconds, clients, inputs, outputs = zip(*rows, strict=True)
    return pa.table(
        {
            "time_us": pa.array([int(s * 1e6) for s in seconds], pa.int64()),
            "client": list(clients),
            "input_tokens": pa.array(inputs, pa.int32()),
            "output_tokens": pa.array(outputs, pa.int32()),
        }
    )
