"""What watching the keys of a split table costs, apart from what it saves.

    python benchmarks/watching.py

Keys settle under steady traffic first. Then the same process watches and does not watch in turns. Traffic, keys in the
fast tier and crossing packets stay the same, so that the difference of CPU time is the cost of watching.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from cora.engine import Engine, Options
from cora.functions import load
from cora.measure import make_bench, pin
from cora.namespaces import check_device
from cora.placement import BOTH, SPLIT, Placement
from cora.traffic import Shape, make_traffic

RESULTS = Path(__file__).parent / "results" / "watching.json"
PLACEMENT = Placement({"flows": SPLIT, "sources": BOTH, "stats": BOTH}, {"flows": 256})
RATE, SETTLE_S, TURN_S, TURNS = 20_000.0, 8.0, 4.0, 6


def inside() -> None:
    """Run the monitor between the devices; print CPU and packets of each turn as one JSON line."""
    devices = (check_device("in", False), check_device("out", False))
    engine, rows = Engine(load("monitor"), PLACEMENT, devices, Options()), []
    with engine:
        print("ready", flush=True)
        for turn in range(2 * TURNS + 1):
            engine.options.seconds, engine.options.adapt = (TURN_S if turn else SETTLE_S), turn % 2 == 0
            before, spent, replans = engine.counters()["fast"], time.process_time_ns(), engine.replans
            engine.crossed = before["crossed"]  # what crossed while nobody watched is no growth
            engine.run()
            after, spent = engine.counters()["fast"], time.process_time_ns() - spent
            packets = after["packets"] - before["packets"]
            row = {"watched": engine.options.adapt, "packets": packets, "ns_per_packet": spent / max(1, packets)}
            row["crossing_share"] = (after["crossed"] - before["crossed"]) / max(1, packets)
            rows += [row | {"replans": engine.replans - replans}] if turn else []
    print(json.dumps(rows))


def main() -> None:
    with make_bench() as bench:
        command = [*pin(1), sys.executable, str(Path(__file__)), "--inside"]
        process = bench.bed.start("middle", command, stdout=subprocess.PIPE, text=True)
        assert process.stdout and process.stdout.readline() == "ready\n"
        traffic = make_traffic("monitor", Shape(skew=1.2, back=0.0, rate_per_s=RATE))
        bench.send(0, RATE, [(SETTLE_S + 2 * TURNS * TURN_S + 5, traffic)])
        rows: list[dict[str, Any]] = json.loads(process.stdout.readline())
    cost = {
        watched: statistics.median(row["ns_per_packet"] for row in rows if row["watched"] is watched)
        for watched in (True, False)
    }
    result = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "load": os.getloadavg(),
        "rate_packets_per_s": RATE,
        "ns_per_packet_watched": round(cost[True], 1),
        "ns_per_packet_unwatched": round(cost[False], 1),
        "overhead_share": round(cost[True] / cost[False] - 1, 4),
        "rows": rows,
    }
    print({name: value for name, value in result.items() if name != "rows"})
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    inside() if "--inside" in sys.argv else main()
