"""Slow-tier CPU on real veth traffic: predicted beside measured over many plans, and the plan beside simple ones.

    python benchmarks/endtoend.py [costs.json]

CPU is that of `cora run` from the scheduler, at a stated packet rate, after the keys have settled: the model knows no
moves, and some thousand keys take several re-plans.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
from scipy.stats import spearmanr

from cora.calibrate import calibrate
from cora.files import write
from cora.functions import load
from cora.machine import Limits, load_costs
from cora.measure import network_costs, run_phases
from cora.model import Choice, placement_of, predict
from cora.plan import Problem, search, simple_plans
from cora.profile import SPLITS, make_profile
from cora.traffic import Shape, make_traffic

RESULTS = Path(__file__).parent / "results" / "endtoend.json"
FUNCTION, RATE, SECONDS, SETTLE = "monitor", 12_000.0, 3.0, 12.0


def plans() -> list[tuple[str, float, dict[str, Choice]]]:
    """Return (label, skew, choices): splits of all sizes at several skews, and the simple plans."""
    found = []
    for skew in (0.6, 1.0, 1.3):
        homes = [Choice("slow"), Choice("fast"), *[Choice("split", room) for room in SPLITS[:5]]]
        rest = {"sources": Choice("both"), "stats": Choice("both")}
        found += [(f"{one.home} {one.entries}", skew, {"flows": one, **rest}) for one in homes]
    return found


def main() -> None:
    costs = load_costs(Path(sys.argv[1])) if len(sys.argv) > 1 else calibrate()
    if not costs.network:
        costs = msgspec.structs.replace(costs, network=network_costs(costs))
        print("network", costs.network, flush=True)
        if len(sys.argv) > 1:
            write(Path(sys.argv[1]), costs)
    program, rows, profiles = load(FUNCTION), [], {}
    for label, skew, chosen in plans():
        shape = Shape(skew=skew, rate_per_s=RATE, back=0.0, keys=4096)
        if skew not in profiles:
            packets = make_traffic(FUNCTION, shape)
            later = packets[-1].time_ns - packets[0].time_ns + 1000
            again = [packet._replace(time_ns=packet.time_ns + later) for packet in packets]
            profiles[skew] = make_profile(program, packets + again, warm=0.5)
        profile = profiles[skew]
        run = run_phases(FUNCTION, {}, placement_of(chosen), [shape], SECONDS, settle=SETTLE)
        run |= run["phases"][0]
        predicted = predict(program, profile, costs, chosen, rate_per_s=run["rate_packets_per_s"])
        rows.append(
            {
                "plan": label,
                "skew": skew,
                "rate_packets_per_s": run["rate_packets_per_s"],
                "measured_slow_cpu_ns": run["slow_cpu_ns_per_packet"],
                "predicted_slow_cpu_ns": predicted.slow_cpu_ns,
                "measured_crossing_share": run["crossing_share"],
                "predicted_crossing_share": predicted.crossing_share,
                "lost_between_tiers": run["lost_between_tiers"],
                "replans": run["replans"],
            }
        )
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
        save(costs, rows, program, profile)


def save(costs, rows, program, profile) -> None:  # type: ignore[no-untyped-def]
    """Write the figures of the rows so far."""
    measured = np.array([row["measured_slow_cpu_ns"] for row in rows])
    predicted = np.array([row["predicted_slow_cpu_ns"] for row in rows])
    errors = np.abs(predicted - measured) / measured
    instance = Problem(program, profile, costs, Limits(bytes=200_000)).instance
    legal = [name for name, chosen in simple_plans(program, instance).items() if not instance.broken_rule(chosen)]
    result = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "where": costs.where,
        "load": os.getloadavg(),
        "network_costs_ns": costs.network,
        "plans": len(rows),
        "mean_error": round(float(errors.mean()), 4),
        "worst_error": round(float(errors.max()), 4),
        "spearman": round(float(spearmanr(measured, predicted).statistic), 4) if len(rows) > 2 else None,
        "planner_at_200000_bytes": placement_of(search(instance).chosen).label(),
        "simple_plans_within_the_limits": legal,
        "rows": rows,
    }
    print({name: result[name] for name in ("plans", "mean_error", "worst_error", "spearman")}, flush=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
