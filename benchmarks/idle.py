"""What watching costs paced jobs of 1, 2, 4 and 8 ranks, and steps of 1.5 ms; beside TraceML where it is installed.

    python benchmarks/idle.py [--minutes 2] [--sleep-ms 250] [--python PATH] [--json FILE]

Blocks with nobody, with Eroica and with TraceML are interleaved inside one job; the ratio is of the means of the middle
60 % of all iterations (a scheduler's delays are far larger than what is looked for), bootstrap over rounds. `--python`
is an interpreter with torch, eroica and traceml-ai; TraceML's own samplers and its patches of torch stay in the blocks
of the others, so its figure is the cost of its `trace_step` only.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from machine import machine_facts

JOB = Path(__file__).with_name("jobs") / "idle.py"
#: Ranks, and milliseconds that each iteration sleeps beside its compute of about 1 ms.
JOBS = ((1, 0.5), (1, 20.0), (2, 20.0), (4, 20.0), (8, 20.0))
BLOCK = 4
NOBODY = "nobody"


def measured(python: str, ranks: int, sleep_ms: float, minutes: float, traceml: bool) -> dict[str, object]:
    """One job: mean and 95 % interval of the slowdown by each watcher."""
    watchers = 3 if traceml else 2
    rounds = int(minutes * 60e3 / (watchers * (BLOCK + 1) * (sleep_ms + 1.0 + 0.3 * ranks)))
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        out = place / "record.json"
        arguments = ["--rounds", str(rounds), "--block", str(BLOCK), "--sleep-ms", str(sleep_ms), "--out", str(out)]
        launch = [python, "-m", "eroica", "run", "--quiet", "--out", str(place / "run")]
        launch += ["--set", "baseline_window=false", "--set", "slowdown=10", "--"]
        if traceml:
            launch += [str(Path(python).with_name("traceml")), "run", str(JOB), "--nproc-per-node", str(ranks)]
            launch += ["--logs-dir", str(place / "logs"), "--run-name", "job", "--args", "--traceml", *arguments]
        else:
            launch += [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
            launch += [str(JOB), *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        done = subprocess.run(launch, env=environment, cwd=place, capture_output=True, text=True, check=False)
        if not out.exists():
            raise SystemExit(f"the job of {ranks} ranks wrote no record:\n{done.stderr[-2000:]}")
        record = json.loads(out.read_text())
    usual = sorted(time for times in record for time in times[NOBODY])
    found: dict[str, object] = {"ranks": ranks, "iteration_ms": 1e3 * usual[len(usual) // 2], "rounds": len(record)}
    for watcher in record[0]:
        if watcher != NOBODY:
            found[watcher] = slowdown(record, watcher)
    return found


def slowdown(record: list[dict[str, list[float]]], watcher: str) -> dict[str, float]:
    """Slowdown by a watcher and its bootstrap 95 % interval, as fractions of the time with nobody."""
    with_W, alone_W = (np.array([times[name] for times in record]) for name in (watcher, NOBODY))

    def ratio(rounds: np.ndarray) -> float:
        return _middle(with_W[rounds]) / _middle(alone_W[rounds]) - 1

    coin = np.random.default_rng(1)
    resampled = sorted(ratio(coin.integers(len(record), size=len(record))) for _ in range(2000))
    return {"mean": ratio(np.arange(len(record))), "lower95": resampled[50], "upper95": resampled[1949]}


def _middle(times: np.ndarray) -> float:
    ordered = np.sort(times, axis=None)
    cut = len(ordered) // 5
    return float(ordered[cut : len(ordered) - cut].mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--minutes", type=float, default=2.0, help="of each job")
    parser.add_argument("--sleep-ms", type=float, help="1, 2, 4 and 8 ranks at this pace, instead of the usual jobs")
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    jobs = JOBS if options.sleep_ms is None else tuple((ranks, options.sleep_ms) for ranks in (1, 2, 4, 8))
    traceml = Path(options.python).with_name("traceml").exists()
    results = {"machine": machine_facts(), "command": " ".join(["python", *sys.argv]), "jobs": []}
    for ranks, sleep_ms in jobs:
        found = measured(options.python, ranks, sleep_ms, options.minutes, traceml)
        results["jobs"].append(found)
        print(json.dumps(found), flush=True)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
