"""Maximum rate at 0.1 % loss, plan by plan.

    python benchmarks/ceiling.py

The rate doubles until a run loses more than 0.1 % of the packets between the tiers or the sender sends less than asked
for, then the interval is halved.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from cora.measure import run_phases
from cora.placement import BOTH, FAST, SLOW, SPLIT, Placement
from cora.traffic import Shape

RESULTS = Path(__file__).parent / "results" / "ceiling.json"
FUNCTION, MOST_LOST, FIRST_RATE, LAST_RATE = "monitor", 0.001, 10_000.0, 1_280_000.0
PLANS = {
    "all slow": Placement({"flows": SLOW, "sources": SLOW, "stats": SLOW}, {}),
    "split, room for 256": Placement({"flows": SPLIT, "sources": BOTH, "stats": BOTH}, {"flows": 256}),
    "all fast": Placement({"flows": FAST, "sources": BOTH, "stats": BOTH}, {}),
}


def tried(placement: Placement, rate: float) -> dict[str, Any]:
    """Run two seconds at a rate; return the rate that came, and the share that was lost."""
    run = run_phases(FUNCTION, {}, placement, [Shape(skew=1.2, back=0.0, rate_per_s=rate)], 2.0, settle=2.0)
    came = run["phases"][0]["rate_packets_per_s"]
    return {"asked": rate, "came": round(came), "lost": run["lost_between_tiers"] / run["sent_packets"]}


def ceiling(placement: Placement) -> list[dict[str, Any]]:
    """Return the tries, the best one last."""
    rate, good, tries = FIRST_RATE, None, []
    while rate <= LAST_RATE:
        tries.append(tried(placement, rate))
        if tries[-1]["lost"] > MOST_LOST or tries[-1]["came"] < 0.9 * rate:
            break
        good, rate = tries[-1], 2 * rate
    low, high = (good["asked"] if good else 0.0), rate
    for _ in range(3):
        tries.append(tried(placement, (low + high) / 2))
        if tries[-1]["lost"] > MOST_LOST or tries[-1]["came"] < 0.9 * tries[-1]["asked"]:
            high = tries[-1]["asked"]
        else:
            good, low = tries[-1], tries[-1]["asked"]
    return [*tries, good or {}]


def main() -> None:
    result: dict[str, Any] = {"when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "load": os.getloadavg()}
    for name, placement in PLANS.items():
        result[name] = ceiling(placement)
        print(name, result[name][-1], flush=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
