"""Planned against random source ports: 4 flows on 4 paths, many draws; needs root."""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from c4p.measure import JobSpec, run_jobs
from c4p.testbed import Shape, build


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=30)
    parser.add_argument("--first", type=int, default=0, help="number of the first draw; earlier ones are in --json")
    parser.add_argument("--seconds", type=float, default=1.2)
    parser.add_argument("--paths", type=int, default=4)
    parser.add_argument("--mbit", type=float, default=200.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    total = options.paths * options.mbit
    known = json.loads(options.json.read_text())["draws"] if options.first and options.json else []
    pairs = known[: options.first]
    for number in range(options.first, options.first + options.draws):
        with build(Shape(hosts=2, spines=options.paths, mbit=options.mbit), seed=number) as bed:
            got = {}
            for ports in ("random", "planned") if number % 2 else ("planned", "random"):
                spec = JobSpec((0, 1), ports, options.seconds, options.paths, 16 << 20)
                got[ports] = run_jobs(bed, [spec])[0].busbw_mbit()
        pairs.append(got)
        print(json.dumps({"draw": number, **{name: round(value, 1) for name, value in got.items()}}), flush=True)
    ratios = [pair["planned"] / pair["random"] for pair in pairs]
    summary = {
        "draws": len(pairs),
        "sum_of_paths_mbit": total,
        "planned_over_random_mean": round(statistics.mean(ratios), 3),
        "planned_over_random_least": round(min(ratios), 3),
        "planned_share_of_paths_median": round(statistics.median(p["planned"] for p in pairs) / total, 3),
        "planned_share_of_paths_least": round(min(p["planned"] for p in pairs) / total, 3),
        "random_share_of_paths_mean": round(statistics.mean(p["random"] for p in pairs) / total, 3),
    }
    print(json.dumps(summary))
    if options.json:
        options.json.write_text(json.dumps({"summary": summary, "draws": pairs}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
