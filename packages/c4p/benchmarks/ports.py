"""Planned against random source ports, and against plain TCP with more sockets; many draws; needs root."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from c4p.measure import JobSpec, run_jobs
from c4p.testbed import Shape, Testbed, build


def plain_tcp(bed: Testbed, sockets: int, seconds: float) -> float:
    """Mbit/s that the slower of two hosts receives by plain TCP."""
    argv = [sys.executable, str(Path(__file__).with_name("plain_tcp.py")), "--sockets", str(sockets)]
    argv += ["--seconds", str(seconds)]
    ends = [["--own", bed.addresses[host], "--peer", bed.addresses[1 - host]] for host in range(2)]
    running = [bed.start(host, [*argv, *end], stdout=subprocess.PIPE) for host, end in enumerate(ends)]
    return min(float(one.communicate(timeout=60 + seconds)[0]) for one in running)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=30)
    parser.add_argument("--first", type=int, default=0, help="number of the first draw; earlier ones are in --json")
    parser.add_argument("--seconds", type=float, default=1.2)
    parser.add_argument("--paths", type=int, default=4)
    parser.add_argument("--mbit", type=float, default=200.0)
    parser.add_argument("--rival", type=int, default=16, help="sockets of the rival")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    total = options.paths * options.mbit
    rival = f"plain_tcp_{options.rival}_sockets"
    cases = ["planned", "random", "plain_tcp", rival]
    known = json.loads(options.json.read_text())["draws"] if options.first and options.json else []
    draws = known[: options.first]
    for number in range(options.first, options.first + options.draws):
        with build(Shape(hosts=2, spines=options.paths, mbit=options.mbit), seed=number) as bed:
            got = {}
            for name in cases[:: -1 if number % 2 else 1]:
                if name.startswith("plain"):
                    got[name] = plain_tcp(bed, options.rival if name == rival else options.paths, options.seconds)
                else:
                    spec = JobSpec((0, 1), name, options.seconds, options.paths, 16 << 20)
                    got[name] = run_jobs(bed, [spec])[0].busbw_mbit()
        draws.append(got)
        print(json.dumps({"draw": number, **{name: round(value, 1) for name, value in got.items()}}), flush=True)
    summary: dict[str, object] = {"draws": len(draws), "sum_of_paths_mbit": total}
    for name in cases:
        rates = [draw[name] for draw in draws if name in draw]
        ratios = [draw[name] / draw["planned"] for draw in draws if name in draw]
        summary[name] = {
            "share_of_paths_median": round(statistics.median(rates) / total, 3),
            "share_of_paths_least": round(min(rates) / total, 3),
            "over_planned_mean": round(statistics.mean(ratios), 3),
            "over_planned_most": round(max(ratios), 3),
        }
    print(json.dumps(summary))
    if options.json:
        options.json.write_text(json.dumps({"summary": summary, "draws": draws}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
