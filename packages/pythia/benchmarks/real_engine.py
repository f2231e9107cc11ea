"""Two real engines of four slots: policies in turn on the same runs, and the simulator's error against them.

python benchmarks/real_engine.py [--seconds 60] [--turns 1]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from demo import KV_TOKENS, MIXTURE, SLOTS, capacity, engines, get, learn, measure, schedule

from pythia.profile import Profiles
from pythia.simulation import POLICIES, Engine, simulate

OUT = Path(__file__).parent / "results"


def fitted(urls: list[str]) -> Engine:
    """Fit iteration times by least squares: fixed, per decoding sequence, per prefilled token."""
    rows = np.array([r for url in urls for r in get(url + "/pythia/stats?iterations=1")["iterations"]])
    rows = rows[rows[:, 3] < np.quantile(rows[:, 3], 0.99)]
    matrix = np.column_stack([np.ones(len(rows)), rows[:, 0], rows[:, 1]])
    fixed, sequence, prefill = np.maximum(np.linalg.lstsq(matrix, rows[:, 3], rcond=None)[0], 0.0)
    return Engine(float(fixed), float(sequence), float(prefill), batch_tokens=256, slots=SLOTS, kv_tokens=KV_TOKENS)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--policy", action="append", help="default: all five")
    options = parser.parse_args()
    found: dict = {"load_average": os.getloadavg()[0], "rows": [], "simulated": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        learn(folder, MIXTURE)
        with engines(folder) as urls:
            rate = capacity(urls, MIXTURE, 30)
            found["tokens_per_s"] = rate
            for turn in range(options.turns):
                plans = schedule(MIXTURE, rate, 0.97, options.seconds, turn)
                for policy in options.policy or ("fcfs+least", "by session", "sticky", "prefix-aware", "pythia"):
                    row, _, _ = measure(folder, urls, policy, POLICIES[policy], plans, f"/{turn}")
                    found["rows"].append({"turn": turn, **row, "load_average": os.getloadavg()[0]})
                    print(found["rows"][-1], flush=True)
                engine = fitted(urls)
                for policy in [p for p in ("fcfs+least", "by session", "pythia") if p in (options.policy or POLICIES)]:
                    r = simulate(
                        plans, POLICIES[policy], engine, profiles=Profiles.load(folder / "profiles.bin"), models={"": 2}
                    )
                    real = next(x for x in found["rows"] if x["turn"] == turn and x["policy"] == policy)
                    row = {
                        "turn": turn,
                        "policy": policy,
                        "mean_s": r.mean_s,
                        "error_mean": r.mean_s / real["mean_s"] - 1,
                        "error_p95": r.p95_s / real["p95_s"] - 1,
                    }
                    found["simulated"].append(row)
                    print(row, flush=True)
                found["engine"] = {k: getattr(engine, k) for k in engine.__struct_fields__}
    OUT.mkdir(exist_ok=True)
    (OUT / "real_engine.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
