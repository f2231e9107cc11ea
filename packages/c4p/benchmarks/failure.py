"""A path is taken down, or slowed, under load: when it is left, and what share of the remaining capacity is used.

Needs root. Shares are of whole operations: `first_2_5s_share` of those that began after the fault and ended within
2.5 s of it, `after_2s_share` of those that began 2 s after it or later.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from c4p.measure import JobSpec, run_jobs
from c4p.testbed import Shape, build

SLOW_MBIT = 5.0


def one(seed: int, paths: int, mbit: float, ports: str, seconds: float, slow: bool) -> dict[str, object]:
    cut = []
    with build(Shape(hosts=2, spines=paths, mbit=mbit), seed=seed) as bed:

        def during() -> None:
            time.sleep(2.0)
            cut.append(time.time())
            if slow:
                bed.throttle("spine1", "host1", SLOW_MBIT)
            else:
                bed.cut("spine1", "host1")

        job = run_jobs(bed, [JobSpec((0, 1), ports, seconds, paths, 8 << 20)], during)[0]
    events = [e for m in job.members for e in m["events"] if e["what"] == "left" and e["time"] > cut[0]]
    left = [e["time"] - cut[0] for e in events]
    rest = (paths - 1) * mbit
    return {
        "seed": seed,
        "ports": ports,
        "right": job.right,
        "before_share": round(job.busbw_mbit(until=cut[0]) / (paths * mbit), 3),
        "first_2_5s_share": round(job.busbw_mbit(since=cut[0], until=cut[0] + 2.5) / rest, 3),
        "after_2s_share": round(job.busbw_mbit(since=cut[0] + 2.0) / rest, 3),
        "first_left_s": round(min(left), 2) if left else None,
        "paths_at_end": min(len({path for _, path, *_ in m["paths"]}) for m in job.members),
        "left": [f"{e['time'] - cut[0]:.2f} {'|'.join(e['path'])} {e['why']}" for e in sorted(events, key=_when)],
    }


def _when(event: dict[str, Any]) -> float:
    return float(event["time"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--paths", type=int, default=4)
    parser.add_argument("--mbit", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--slow", action="store_true", help=f"throttle it to {SLOW_MBIT:g} Mbit/s instead")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    runs = []
    for seed in range(options.runs):
        runs.append(one(seed, options.paths, options.mbit, "planned", options.seconds, options.slow))
        print(json.dumps(runs[-1]), flush=True)
    summary = {
        "runs": len(runs),
        "errors": sum(not run["right"] for run in runs),
        **{
            f"{name}_median": statistics.median(run[name] for run in runs if run[name] is not None)  # type: ignore[type-var]
            for name in ("before_share", "first_2_5s_share", "after_2s_share", "first_left_s")
        },
        "after_2s_share_least": min(run["after_2s_share"] for run in runs),  # type: ignore[type-var]
    }
    print(json.dumps(summary))
    if options.json:
        options.json.write_text(json.dumps({"summary": summary, "runs": runs}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
