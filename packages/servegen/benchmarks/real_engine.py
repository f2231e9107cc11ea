"""The simulator against two instances of a real engine: `transformers serve` with a tiny model of random weights.

    python benchmarks/real_engine.py [--rounds 4] [--seconds 15] [--rate 6]

Requests go to the two instances in turn. Those of the first calibrate the engine, those of the second check it: other
requests, at the same moments. Both servers and the sender share this machine's cores, and so may other programs, which
then slow both instances alike. Stretches of two rates are replayed in turn.
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
from servegen.replay import Record, ReplayOptions, replay_requests, summarize, write_records
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


#: Seconds between two stretches of a workload in the joined records; the simulated engine is idle then.
PAUSE_S = 600.0
#: Rates of the stretches, as parts of --rate. The engine is calibrated on both together and checked on each.
FACTORS = (1.0, 0.6)


def later(record: Record, seconds: float) -> Record:
    """The record with all its moments moved."""
    moments = {name: getattr(record, name) for name in ("planned_s", "sent_s", "first_s", "last_s")}
    moved = {name: None if moment is None else moment + seconds for name, moment in moments.items()}
    return msgspec.structs.replace(record, **moved)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--rate", type=float, default=6)
    arguments = parser.parse_args()
    records: dict[str, list[Record]] = {}
    late = []
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_server.make_model(Path(folder))
        with tiny_server.serve(model, 2) as urls:
            options = ReplayOptions(tuple(urls), str(model))
            replay_requests(workload(2, 5, 0), options)  # warms both servers
            for turn in range(arguments.rounds * len(FACTORS)):
                factor = FACTORS[turn % len(FACTORS)]
                replay = replay_requests(workload(factor * arguments.rate, arguments.seconds, turn + 1), options)
                for record in replay.records:
                    name = "calibration" if record.url == urls[0] else f"check, rate x {factor:g}"
                    records.setdefault(name, []).append(later(record, turn * PAUSE_S))
                late.append(summarize(replay, Slo())["sender"]["lateness_s"]["p99"])
    for name, rows in records.items():
        write_records(rows, HERE / "results" / f"real_engine_{name.replace(',', '').replace(' ', '_')}.parquet")
    engine = calibrate(records["calibration"], Engine(batch_tokens=512, blocks=512, block_tokens=32))
    result = {"engine": msgspec.to_builtins(engine), "sender_late_p99_s": late, "runs": {}}
    for name, rows in records.items():
        agreed = agreement(engine, rows)
        failed = sum(bool(record.error) for record in rows)
        result["runs"][name] = {**msgspec.to_builtins(agreed), "errors": agreed.errors(), "failed": failed}
    keep("real_engine", result)


if __name__ == "__main__":
    main()
