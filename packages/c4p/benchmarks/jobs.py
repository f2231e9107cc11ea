"""Several jobs at once on a Clos network: planned together, each alone, or random; needs root."""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from c4p.measure import JobSpec, run_jobs
from c4p.testbed import Shape, Testbed, build


def serve(bed: Testbed, folder: str) -> tuple[list[subprocess.Popen[str]], str]:
    """A planner, and a link from every host to it: a namespace of its own on the first spine's loopback."""
    spine = bed.namespace("spine0")
    address = bed.routers["spine0"]
    argv = [sys.executable, "-m", "c4p.cli", "serve", "--open", "--host", address, "--state", f"{folder}/state.sqlite"]
    process = subprocess.Popen(["ip", "netns", "exec", spine, *argv], text=True, stdout=subprocess.DEVNULL)
    url = f"http://{address}:7440"
    for _ in range(100):
        probe = ["ip", "netns", "exec", spine, sys.executable, "-c", f"import urllib.request as u;u.urlopen('{url}')"]
        if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
            return [process], url
        time.sleep(0.1)
    raise RuntimeError("the planner did not start")


def run(bed: Testbed, jobs: int, how: str, seconds: float, seed: int) -> dict[str, object]:
    hosts = list(range(len(bed.hosts)))
    random.Random(seed).shuffle(hosts)
    size = len(hosts) // jobs
    half = len(hosts) // 2
    # each job has members on both sides of the network
    low, high = [h for h in hosts if h < half], [h for h in hosts if h >= half]
    members = [tuple(low[k::jobs] + high[k::jobs]) for k in range(jobs)]
    with tempfile.TemporaryDirectory() as folder:
        servers, url = serve(bed, folder) if how == "planned" else ([], "")
        try:
            specs = [JobSpec(m, "random" if how == "random" else "planned", seconds, 4, 4 << 20, url) for m in members]
            results = run_jobs(bed, specs, limit_s=120)
        finally:
            for server in servers:
                server.kill()
                server.wait()
    starts = max(r.operations[0]["end"] for r in results)
    ends = min(r.operations[-1]["end"] for r in results)
    rates = [round(r.busbw_mbit(starts, ends), 1) for r in results]
    return {
        "how": how,
        "seed": seed,
        "members": size,
        "right": all(r.right for r in results),
        "mbit": rates,
        "slowest_over_fastest": round(min(rates) / max(rates), 3),
        "mean_mbit": round(sum(rates) / len(rates), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--hosts", type=int, default=16)
    parser.add_argument("--spines", type=int, default=4)
    parser.add_argument("--mbit", type=float, default=25.0)
    parser.add_argument("--oversubscription", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    records = []
    shape = Shape("clos", options.hosts, options.spines, options.mbit, 2, options.oversubscription)
    for seed in range(options.seeds):
        for how in ("planned", "alone", "random"):
            with build(shape, seed=seed) as bed:
                records.append(run(bed, options.jobs, how, options.seconds, seed))
            print(json.dumps(records[-1]), flush=True)
    best = 2 * options.mbit / options.oversubscription
    if options.json:
        body = {"best_mbit": best, "oversubscription": options.oversubscription, "records": records}
        options.json.write_text(json.dumps(body, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
