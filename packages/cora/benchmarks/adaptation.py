"""Adaptation on real devices: heavy keys change every ten seconds; slow-tier CPU against an oracle and a static plan.

    python benchmarks/adaptation.py

The oracle runs the same plan with each phase's heavy keys from the start of the phase on. Here that is the steady state
of a phase whose keys never change, measured in a run of its own.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

from cora.functions import load
from cora.measure import cpu_ns, make_bench
from cora.placement import Placement
from cora.traffic import Shape, make_traffic

RESULTS = Path(__file__).parent / "results" / "adaptation.json"
FUNCTION, RATE, PHASE_S = "monitor", 20_000.0, 10.0
PLACEMENT = Placement({"flows": "split", "sources": "both", "stats": "both"}, {"flows": 256})
SHAPE = Shape(skew=1.3, back=0.0, rate_per_s=RATE)


def phases(rotations: list[int], adapt: bool, static_after_s: float = 0.0) -> dict[str, object]:
    """Return ns of slow-tier CPU per packet from one second after each shift to its end, and the totals."""
    with make_bench() as bench:
        process, state = bench.start_run(FUNCTION, {}, PLACEMENT, adapt)
        parts = [(PHASE_S, make_traffic(FUNCTION, replace(SHAPE, rotate=rotation))) for rotation in rotations]
        sender = bench.send(0, RATE, parts)
        begin, rows = time.monotonic(), []
        for number in range(len(rotations)):
            time.sleep(max(0.0, begin + number * PHASE_S + 1.0 - time.monotonic()))
            cpu = cpu_ns(process.pid)
            time.sleep(max(0.0, begin + (number + 1) * PHASE_S - time.monotonic()))
            rows.append((cpu_ns(process.pid) - cpu) / ((PHASE_S - 1.0) * RATE))
        sent = json.loads(sender.communicate()[0])["sent_packets"]
        time.sleep(0.5)
        process.terminate()
        process.communicate(timeout=20)
        end = json.loads(state.read_text(encoding="utf-8"))
        counted = sum(row["value"]["packets"] for row in end["tables"]["flows"])
        counters = end["counters"]
        return {
            "slow_cpu_ns_per_packet": [round(one) for one in rows],
            "replans": counters["replans"],
            "moved_keys": counters["moved"],
            "slowest_move_ns": counters["slowest_move_ns"],
            "packets_sent": sent,
            "packets_in_exact_state": counted,
        }


def main() -> None:
    load(FUNCTION)
    result = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "load": os.getloadavg(),
        "rate_packets_per_s": RATE,
        "oracle": phases([0], adapt=True),
        "adaptive": phases([0, 700, 1400, 2100], adapt=True),
        "static": phases([0, 700], adapt=False),
    }
    print(json.dumps(result, indent=1))
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
