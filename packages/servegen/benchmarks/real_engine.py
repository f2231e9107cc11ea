"""The simulator against two instances of a real engine: `transformers serve` with a tiny model of random weights.

    python benchmarks/real_engine.py [--seconds 20] [--rate 6]

One workload calibrates the engine, two others of other rates check it. Both servers and the sender share this machine's
cores, so run it while nothing else does (`flock`).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from records import HERE, keep
from servegen.calibrate import agreement, calibrate
from servegen.compose import plan, stream
from servegen.engine import Engine
from servegen.pool import read_pool
from servegen.replay import ReplayOptions, replay_requests, summarize, write_records
from servegen.workload import Slo, Workload

sys.path.insert(0, str(HERE.parent / "examples"))
import tiny_server


def workload(rate: float, seconds: float, seed: int) -> pa.Table:
    """The sample pool's clients with lengths that a tiny engine on two cores can take."""
    table = pa.concat_tables(
        stream(plan(Workload(rate=rate, hours=seconds / 3600, start_hour=12, seed=seed), read_pool("sample")))
    )
    inputs = np.clip(table["input_tokens"].to_numpy() // 4, 10, 800)
    outputs = np.clip(table["output_tokens"].to_numpy() // 4, 4, 80)
    table = table.set_column(2, "input_tokens", pa.array(inputs, pa.int32()))
    table = table.set_column(3, "output_tokens", pa.array(outputs, pa.int32()))
    return table.set_column(1, "client", table["client"].cast(pa.string()))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rate", type=float, default=6)
    arguments = parser.parse_args()
    records = {}
    lateness = {}
    runs = {
        "calibration": (arguments.rate, 1),
        "check": (arguments.rate, 2),
        "check, rate x 0.6": (0.6 * arguments.rate, 3),
    }
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_server.make_model(Path(folder))
        with tiny_server.serve(model, 2) as urls:
            options = ReplayOptions(tuple(urls), str(model))
            replay_requests(workload(2, 5, 0), options)  # warms both servers
            for name, (rate, seed) in runs.items():
                replay = replay_requests(workload(rate, arguments.seconds, seed), options)
                records[name] = replay.records
                summary = summarize(replay, Slo())
                lateness[name] = {"failed": summary["all"]["failed"], "sender": summary["sender"]}
                write_records(replay.records, HERE / "results" / f"real_engine_{name.split(',')[0]}_{seed}.parquet")
    engine, found = calibrate(records["calibration"], Engine(batch_tokens=512, blocks=512, block_tokens=32))
    result = {"engine": msgspec.to_builtins(engine), "runs": {}}
    for name, rows in records.items():
        agreed = found if name == "calibration" else agreement(engine, rows)
        result["runs"][name] = {**msgspec.to_builtins(agreed), "errors": agreed.errors(), **lateness[name]}
    keep("real_engine", result)


if __name__ == "__main__":
    main()
