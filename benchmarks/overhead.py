"""What Eroica costs a training that it only watches: per event, per iteration, in memory, in a Python without torch.

`python benchmarks/overhead.py [--json FILE]`. Slowdown: on- and off-blocks interleaved inside one DDP job under
`eroica run`, ratio pair by pair, bootstrap over pairs. One rank by default, so that agent and collector have a core
of their own: with a rank on each of two cores the scheduler's noise is several percent a pair.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from eroica.worker import bootstrap_directory
from machine import machine_facts

JOB = Path(__file__).with_name("jobs") / "toggled.py"
MEMORY = """
import torch, torch.utils.data as d
p = torch.nn.Parameter(torch.zeros(3)); o = torch.optim.SGD([p], 0.1)
for (x,) in d.DataLoader(d.TensorDataset(torch.zeros(400, 1))):
    p.grad = torch.zeros(3); o.step()
print(next(l.split()[1] for l in open('/proc/self/status') if l.startswith('VmRSS')))
"""


def in_a_job(directory: Path, ranks: int, *arguments: str) -> dict[str, list]:
    out = directory / "record.json"
    launch = [sys.executable, "-m", "eroica", "run", "--quiet", "--out", str(directory / "run")]
    launch += ["--set", "baseline_window=false", "--set", "slowdown=10", "--"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*launch, *torchrun, str(JOB), "--out", str(out), *arguments], check=True, env=environment)
    return json.loads(out.read_text())


def slowdown(pairs: list[list[float]]) -> dict[str, float]:
    """Mean of the middle 80 % of the paired ratios, with its bootstrap 95 % interval, as fractions above 1."""
    ratios = [on / off for on, off in pairs]

    def middle(values: list[float]) -> float:
        cut = len(values) // 10
        return statistics.fmean(sorted(values)[cut : len(values) - cut])

    coin = random.Random(1)
    resampled = sorted(middle(coin.choices(ratios, k=len(ratios))) for _ in range(2000))
    return {
        "mean": middle(ratios) - 1,
        "lower95": resampled[50] - 1,
        "upper95": resampled[1949] - 1,
        "pairs": len(ratios),
    }


def less_empty(spent: dict[str, list[int]], alone: dict[str, list[int]]) -> dict[str, list[float]]:
    """Times of hooks less the median of an empty one in their place: what the call and the two clock readings cost."""
    return {name: [time - statistics.median(alone[name]) for time in times] for name, times in spent.items()}


def memory_mb(repeats: int = 5) -> float:
    """Median growth of resident memory through the hooks, MB."""
    growth = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as name:
            plain = [sys.executable, "-c", MEMORY]
            watched = [sys.executable, "-m", "eroica", "run", "--quiet", "--out", name, "--", *plain]
            used = [int(subprocess.run(job, capture_output=True, check=True).stdout) for job in (watched, plain)]
        growth.append((used[0] - used[1]) / 1024)
    return statistics.median(growth)


def start_ms(repeats: int = 40) -> dict[str, float]:
    """Start of a Python that never imports torch, with the bootstrap and without, paired; milliseconds."""
    code = "import time,sys;sys.stdout.write(str(time.monotonic()))"
    differences, plain = [], []
    import time

    for _ in range(repeats):
        taken = []
        for env in ({**os.environ, "PYTHONPATH": str(bootstrap_directory())}, dict(os.environ)):
            begin = time.monotonic()
            end = float(subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True).stdout)
            taken.append(1e3 * (end - begin))
        differences.append(taken[0] - taken[1])
        plain.append(taken[1])
    return {"bootstrap_ms": statistics.median(differences), "python_ms": statistics.median(plain)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--pairs", type=int, default=1500)
    parser.add_argument("--ranks", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        pairs = in_a_job(Path(name), options.ranks, "--pairs", str(options.pairs))["pairs"]
    with tempfile.TemporaryDirectory() as name:
        timed = in_a_job(Path(name), options.ranks, "--time-events")
    by_event = less_empty(timed["events_ns"], timed["empty_ns"])
    events = sorted(duration for durations in by_event.values() for duration in durations)
    results = {
        "machine": machine_facts(),
        "command": "python benchmarks/overhead.py",
        "event_us": {
            "median": events[len(events) // 2] / 1e3,
            "p99": events[int(len(events) * 0.99)] / 1e3,
            "events": len(events),
            **{f"median_{name}": statistics.median(durations) / 1e3 for name, durations in by_event.items()},
            **{f"empty_{name}": statistics.median(alone) / 1e3 for name, alone in timed["empty_ns"].items()},
        },
        "slowdown": slowdown(pairs),
        "memory_mb": memory_mb(),
        "start": start_ms(),
        "raw_pairs": pairs,
    }
    print(json.dumps({name: value for name, value in results.items() if name != "raw_pairs"}, indent=1))
    if options.json:
        options.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
