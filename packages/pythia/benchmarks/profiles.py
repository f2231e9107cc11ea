"""Coverage of length bounds over 200 roles, of expressions on later runs, and next-role accuracy.

python benchmarks/profiles.py
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from pythia.estimates import Lengths
from pythia.pathregex import accepts
from pythia.profile import Profiles
from pythia.records import Identifiers, Step
from pythia.workflow import arrivals, read_workflow

OUT = Path(__file__).parent / "results"


def bounds() -> list[dict]:
    rng = np.random.default_rng(1)
    draws = {
        "log-normal": lambda n: rng.lognormal(4, 1.0, n), "exponential": lambda n: rng.exponential(100, n),
        "bimodal": lambda n: np.where(rng.random(n) < 0.2, rng.normal(900, 50, n), rng.normal(60, 10, n)),
        "heavy tail": lambda n: (rng.pareto(1.1, n) + 1) * 20,
    }  # fmt: skip
    rows = []
    for name, draw in draws.items():
        for alpha in (0.05, 0.01):
            for n in (30, 100, 300, 1000):
                covered, tight, without = [], [], 0
                for _ in range(200):
                    lengths = Lengths()
                    for value in draw(n):
                        lengths.add(int(max(1, value)))
                    bound = lengths.bound(alpha)
                    if bound is None:
                        without += 1
                        continue
                    covered.append(float((draw(4000) <= bound).mean()))
                    tight.append(bound / lengths.mean)
                row = {"lengths": name, "nominal": 1 - alpha, "n": n, "roles_without_bound": without}
                if covered:
                    row |= {
                        "covered": round(float(np.mean(covered)), 4),
                        "lowest_role": round(min(covered), 4),
                        "bound_over_mean": round(float(np.mean(tight)), 2),
                    }
                rows.append(row)
                print(row)
    return rows


def paths() -> list[dict]:
    rows = []
    for name in ("coding", "research", "support", "reviews"):
        plans = arrivals([(read_workflow(name), 1.0)], 1.0, 500.0, 3)
        profiles, hits, looked, covered = Profiles(), 0, 0, 0
        for i, plan in enumerate(plans):
            steps, hoped = plan.steps, None
            for j, step in enumerate(steps):
                run, place, prediction = profiles.begin(
                    Identifiers(name, plan.name, step.role, j == len(steps) - 1), "", float(i), 0.01
                )
                if i >= 100 and hoped is not None:
                    looked += 1
                    hits += hoped == step.role
                hoped = prediction.next_role
                if i == 100 and j == 0:
                    node = profiles.known["", name].expression
                profiles.end(run, place, Step(name, "", step.role, 0.0, step.output), float(i))
            covered += i >= 100 and accepts(node, [s.role for s in steps])
        row = {
            "workflow": name,
            "path": profiles.known["", name].text,
            "later_runs": len(plans) - 100,
            "accepted": covered / (len(plans) - 100),
            "next_role_top1": round(hits / looked, 4),
            "false_alarms": profiles.known["", name].changes,
        }
        rows.append(row)
        print(row)
    return rows


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    (OUT / "profiles.json").write_text(json.dumps({"bounds": bounds(), "paths": paths()}, indent=1) + "\n")
