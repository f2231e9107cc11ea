"""Model error in the fast tier: eight functions, three skews, none of them used for calibration.

    python benchmarks/accuracy.py

Each function runs all in the fast tier, and under the plan that the planner chooses. The
kernel replays a trace; the least of several rounds counts. Beside ours: a packet-centric model (one cost a packet, as
LogNIC's, the mean of the other functions) and gradient boosting, both judged on functions that they have not seen.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from cora.calibrate import calibrate
from cora.functions import FUNCTIONS, load
from cora.machine import Costs, Limits, load_costs
from cora.model import predict
from cora.offline import Offline
from cora.placement import FAST, SLOW, SPLIT
from cora.plan import Problem, placement_of, search, simple_plans
from cora.profile import make_profile
from cora.traffic import Shape, make_traffic

RESULTS = Path(__file__).parent / "results" / "accuracy.json"
SKEWS = (0.6, 1.0, 1.3)
PACKETS = 16_384
ROUNDS = 12
KEYS = 4096


def measure(function: str, skew: float, costs: Costs, directory: Path) -> list[dict[str, object]]:
    program = load(function)
    packets = make_traffic(function, Shape(keys=KEYS, skew=skew, packets=PACKETS, rate_per_s=8e6))
    later = packets[-1].time_ns - packets[0].time_ns + 1000
    twice = packets + [packet._replace(time_ns=packet.time_ns + later) for packet in packets]
    profile = make_profile(program, twice, warm=0.5)
    instance = Problem(program, profile, costs, Limits()).instance
    plans = {"all fast": simple_plans(program, instance)["all fast"], "planned": search(instance).chosen}
    rows = []
    for name, chosen in plans.items():
        placement = placement_of(chosen)
        where = directory / f"{function}_{skew}_{name}".replace(" ", "_")
        with Offline(program, placement, where, trace=PACKETS) as tiers:
            for packet in packets:
                tiers.run(packet.frame, packet.port, packet.time_ns)
            for table in program.tables.values():
                if placement.homes[table.name] == SPLIT:
                    items = sorted(tiers.tables.slow_items(table), reverse=True)
                    for _, key, _ in items[: placement.fast_entries[table.name]]:
                        tiers.tables.raise_key(table.name, key)
            tiers.load_trace([(packet.frame, packet.port) for packet in packets])
            ns = min(tiers.replay_fast(PACKETS) for _ in range(ROUNDS + 1))
        prediction = predict(program, profile, costs, chosen)
        rows.append(
            {
                "function": function,
                "skew": skew,
                "plan": name,
                "placement": placement.label(),
                "measured_ns": ns,
                "predicted_ns": round(prediction.fast_ns, 2),
                "crossing_share": round(prediction.crossing_share, 4),
                "features": features(program, profile, placement),
            }
        )
    return rows


def features(program, profile, placement) -> list[float]:  # type: ignore[no-untyped-def]
    """Return what a black-box predictor may know: steps, operations by kind of table, working sets, homes."""
    counts = dict.fromkeys(("array", "hash", "lpm", "sketch"), 0.0)
    sets = []
    for use in profile.uses:
        if placement.homes[use.table] != SLOW:
            counts[program.tables[use.table].storage] += use.share
        sets.append(use.working_set * use.share)
    split = sum(home == SPLIT for home in placement.homes.values())
    fast = sum(home == FAST for home in placement.homes.values())
    steps = sum(profile.visits.values())
    return [steps, *counts.values(), float(np.log1p(sum(sets))), float(split), float(fast), float(program.uses_time)]


def boosting(rows: list[dict[str, object]]) -> list[float]:
    """Return gradient boosting's predictions, each function predicted by the other seven."""
    from sklearn.ensemble import GradientBoostingRegressor

    out = [0.0] * len(rows)
    for function in FUNCTIONS:
        train = [i for i, row in enumerate(rows) if row["function"] != function]
        model = GradientBoostingRegressor(random_state=1)
        model.fit([rows[i]["features"] for i in train], [rows[i]["measured_ns"] for i in train])
        for i, row in enumerate(rows):
            if row["function"] == function:
                out[i] = float(model.predict([row["features"]])[0])
    return out


def packet_centric(rows: list[dict[str, object]]) -> list[float]:
    """Return the prediction of one service time a packet: the mean of the other functions (LogNIC's view of a node)."""
    return [
        float(np.mean([other["measured_ns"] for other in rows if other["function"] != row["function"]]))  # type: ignore[misc]
        for row in rows
    ]


def errors(rows: list[dict[str, object]], predicted: list[float]) -> dict[str, float]:
    parts = [abs(p - r["measured_ns"]) / r["measured_ns"] for p, r in zip(predicted, rows, strict=True)]  # type: ignore[operator]
    return {"mean": round(float(np.mean(parts)), 4), "worst": round(float(np.max(parts)), 4)}


def main() -> None:
    costs = load_costs(Path(sys.argv[1])) if len(sys.argv) > 1 else calibrate()
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for function in FUNCTIONS:
            for skew in SKEWS:
                rows += measure(function, skew, costs, Path(scratch))
                for row in rows[-2:]:
                    wrong = row["predicted_ns"] / row["measured_ns"] - 1  # type: ignore[operator]
                    print(f"{function:9} {skew} {row['plan']:9} {row['measured_ns']:6.0f} ns {wrong:+.1%}", flush=True)
    result = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "where": costs.where,
        "load": os.getloadavg(),
        "calibrated_on": "micro-programs of cora.calibrate only",
        "state_centric": errors(rows, [row["predicted_ns"] for row in rows]),  # type: ignore[misc]
        "packet_centric": errors(rows, packet_centric(rows)),
        "gradient_boosting": errors(rows, boosting(rows)),
        "rows": rows,
    }
    print({name: value for name, value in result.items() if name != "rows"})
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
