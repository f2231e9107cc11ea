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

from cora.measure import run_phases
from cora.placement import Placement
from cora.traffic import Shape

RESULTS = Path(__file__).parent / "results" / "adaptation.json"
FUNCTION, RATE, PHASE_S = "monitor", 20_000.0, 10.0
PLACEMENT = Placement({"flows": "split", "sources": "both", "stats": "both"}, {"flows": 256})
SHAPE = Shape(skew=1.3, back=0.0, rate_per_s=RATE)


def phases(rotations: list[int], adapt: bool) -> dict[str, object]:
    """Return ns of slow-tier CPU per packet from one second after each shift to its end, and the totals."""
    shapes = [replace(SHAPE, rotate=rotation) for rotation in rotations]
    run = run_phases(FUNCTION, {}, PLACEMENT, shapes, PHASE_S - 2.2, adapt, settle=1.0)
    counters = run["state"]["counters"]
    return {
        "slow_cpu_ns_per_packet": [round(one["slow_cpu_ns_per_packet"]) for one in run["phases"]],
        "replans": counters["replans"],
        "moved_keys": counters["moved"],
        "slowest_move_ns": counters["slowest_move_ns"],
        "packets_sent": run["sent_packets"],
        "packets_in_exact_state": sum(row["value"]["packets"] for row in run["state"]["tables"]["flows"]),
    }


def main() -> None:
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
