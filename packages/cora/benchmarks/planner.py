"""Search: time and gap of the three engines on random problems.

    python benchmarks/planner.py

A problem has packets that walk over random tables; a third of the tables' memory fits the fast tier.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from cora.errors import NoPlan
from cora.plan import search
from test_plan import made_instance

RESULTS = Path(__file__).parent / "results" / "planner.json"


def main() -> None:
    rows = []
    for tables, seeds in ((7, 20), (10, 2), (30, 8), (60, 3)):
        for seed in range(seeds):
            instance = made_instance(1000 + seed, tables)
            exact = search(instance, "exact", limit_s=20.0)
            row = {"tables": tables, "seed": seed, "nodes": len(instance.nodes), "exact_s": round(exact.seconds, 4)}
            row["proved"] = exact.optimal
            try:
                spent = time.thread_time()
                greedy = search(instance, "greedy")
                row["greedy_cpu_s"] = round(time.thread_time() - spent, 5)
                row["greedy_s"], row["greedy_gap"] = (
                    round(greedy.seconds, 5),
                    round(greedy.cost.cost_ns / exact.cost.cost_ns - 1, 5),
                )
            except NoPlan as error:
                row["greedy_fails"] = str(error)
            if tables <= 10:
                slow = search(instance, "exhaustive")
                row["exhaustive_s"], row["gap"] = (
                    round(slow.seconds, 3),
                    round(exact.cost.cost_ns - slow.cost.cost_ns, 4),
                )
            rows.append(row)
            print(row, flush=True)
    summary = {}
    for tables in sorted({row["tables"] for row in rows}):
        some = [row for row in rows if row["tables"] == tables]
        summary[tables] = {
            "exact_median_s": float(np.median([row["exact_s"] for row in some])),
            "exact_most_s": max(row["exact_s"] for row in some),
            "greedy_most_s": max(row.get("greedy_s", 0) for row in some),
            "greedy_most_cpu_s": max(row.get("greedy_cpu_s", 0) for row in some),
            "greedy_most_gap": max(row.get("greedy_gap", 0) for row in some),
            "greedy_mean_gap": float(np.mean([row.get("greedy_gap", 0) for row in some])),
            "largest_difference_to_exhaustive_ns": max((abs(row["gap"]) for row in some if "gap" in row), default=None),
        }
    print(json.dumps(summary, indent=1))
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    RESULTS.write_text(json.dumps({"when": when, "summary": summary, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
