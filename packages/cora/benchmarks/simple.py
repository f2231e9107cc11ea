"""The planner's plan beside the plans that people make by hand, on real devices: slow-tier CPU per packet.

    python benchmarks/simple.py [costs.json]

"By state" puts arrays into the fast tier and all else into the slow one; packets bounce where the order asks for it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from cora.functions import load
from cora.machine import Limits, load_costs, shipped
from cora.measure import run_phases
from cora.placement import FAST, SLOW, Placement, why_illegal
from cora.plan import Problem, placement_of, simple_plans
from cora.planfile import solve
from cora.profile import make_profile
from cora.traffic import Shape, make_traffic

RESULTS = Path(__file__).parent / "results" / "simple.json"
FUNCTIONS = ("balancer", "monitor", "bucket", "nat")
SHAPE = Shape(skew=1.2, keys=4096, rate_per_s=12_000.0, back=0.0)
MEMORY, SECONDS, SETTLE = 64 * 1024, 3.0, 5.0


def main() -> None:
    costs = load_costs(Path(sys.argv[1]) if len(sys.argv) > 1 else shipped("reference-costs"))
    rows = []
    for function in FUNCTIONS:
        program = load(function)
        profile = make_profile(program, make_traffic(function, SHAPE))
        answer = solve(Problem(program, profile, costs, Limits(bytes=MEMORY)))
        instance = answer.problem.instance
        plans = {"planned": placement_of(answer.plan.chosen)}
        for name, chosen in simple_plans(program, instance).items():
            if not instance.broken_rule(chosen):
                plans[name] = placement_of(chosen)
        homes = {t.name: FAST if t.storage == "array" else SLOW for t in program.tables.values()}
        by_state = Placement(homes, {}, bounces=True)
        if not why_illegal(program, by_state):
            plans["by state"] = by_state
        for name, placement in plans.items():
            run = run_phases(function, {}, placement, [SHAPE], SECONDS, settle=SETTLE)
            phase = run["phases"][0]
            rows.append(
                {
                    "function": function,
                    "plan": name,
                    "placement": placement.label(),
                    "slow_cpu_ns_per_packet": round(phase["slow_cpu_ns_per_packet"]),
                    "crossing_share": round(phase["crossing_share"], 4),
                    "rate_packets_per_s": round(phase["rate_packets_per_s"]),
                    "lost_between_tiers": run["lost_between_tiers"],
                }
            )
            print(rows[-1], flush=True)
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    result = {"when": when, "load": os.getloadavg(), "fast_bytes": MEMORY, "rows": rows}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
