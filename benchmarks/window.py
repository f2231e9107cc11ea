"""What a window costs the training: stall, slowdown inside, memory, speed afterwards; beside torch.profiler.

`python benchmarks/window.py [--device cuda] [--json FILE]`. For each shape of job, in one run: the
job under `eroica run` with a window opened by hand, then the same job profiling the same number of iterations by
itself with `torch.profiler(with_stack=True)` and `export_chrome_trace`.

`--crowded RANKS`: so many ranks that compute and wait for each other, default settings. How many times as long
iterations are in the seconds of the baseline window, and in those in which it is summarized, as beside both.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from eroica.archive.load import open_window, read_patterns
from injected import write_training
from machine import machine_facts

JOB = Path(__file__).with_name("jobs") / "timed.py"
FIRST = 150
#: After a window closes its summaries are made; so long after it, the job is as beside it.
AFTER_S = 10.0


def measures(record: dict[str, list[float]], first: int, last: int, stall_s: float) -> dict[str, float]:
    """Figures of one job whose iterations `first ... last - 1` were captured."""
    durations, memory = record["durations"], record["memory"]
    healthy = statistics.median(durations[FIRST // 3 : first - 5])
    inside = durations[first + 1 : last - 1] or durations[first:last]
    after = durations[last + 20 : last + 220]
    return {
        "iterations": last - first,
        "healthy_ms": 1e3 * healthy,
        "stall_s": stall_s,
        "longest_iteration_s": max(durations[first - 2 : last + 3]),
        "inside_ratio": statistics.median(inside) / healthy,
        "after_ratio": statistics.median(after) / healthy,
        "memory_growth_mb": (max(memory[first - 2 : last + 50]) - memory[first - 20]) / 1e6,
        "memory_kept_mb": (memory[-1] - memory[first - 20]) / 1e6,
    }


def with_eroica(shape: str, device: str, directory: Path, seconds: float) -> dict[str, float]:
    out, run = directory / "eroica.json", directory / "run"
    options = ["--set", "baseline_window=false", "--set", "slowdown=10", "--set", "window_s=10"]
    command = [sys.executable, str(JOB), "--shape", shape, "--seconds", str(seconds), "--out", str(out)]
    command += ["--device", device]
    job = subprocess.Popen(
        [sys.executable, "-m", "eroica", "run", "--quiet", "--out", str(run), *options, "--", *command]
    )
    try:
        while True:
            time.sleep(0.5)
            status = run / "status.json"
            if status.exists() and json.loads(status.read_text()).get("iteration", 0) >= FIRST:
                break
        subprocess.run([sys.executable, "-m", "eroica", "profile", "--out", str(run), "--no-wait"], check=True)
    finally:
        job.wait()
    _, (pattern,), _ = read_patterns(open_window(run / "windows" / "1"))
    record = json.loads(out.read_text())
    figures = measures(record, pattern.first_iteration, pattern.last_iteration, pattern.stall_s)
    figures["pattern_bytes"] = (run / "windows" / "1" / "patterns" / "0.pattern").stat().st_size
    return figures


def with_torch_profiler(shape: str, device: str, directory: Path, iterations: int, seconds: float) -> dict[str, float]:
    out = directory / "torch.json"
    command = [sys.executable, str(JOB), "--shape", shape, "--seconds", str(seconds), "--out", str(out)]
    command += ["--device", device]
    command += ["--profile-at", str(FIRST), "--profile-iterations", str(iterations)]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    record = json.loads(out.read_text())
    return measures(record, FIRST, FIRST + iterations, record["stall"])


def crowded(ranks: int, directory: Path, seconds: float) -> dict[str, float]:
    """Iterations of a job while its baseline window is open and summarized, over those beside it."""
    run, script = directory / "run", write_training(directory / "job")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [sys.executable, "-m", "eroica", "run", "--quiet", "--out", str(run), "--", *launch, str(script)]
    subprocess.run([*command, "--seconds", str(seconds)], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    history = json.loads((run / "history.json").read_bytes())
    window = open_window(run / "windows" / "1")
    _, patterns, _ = read_patterns(window)
    first, last = patterns[0].first_iteration, patterns[0].last_iteration
    rows = list(zip(history["at_s"], history["iteration"], history["mean_ms"], strict=True))
    opened_s = max(at for at, iteration, _ in rows if iteration <= first)
    closed_s = min(at for at, iteration, _ in rows if iteration >= last)
    beside = [ms for at, _, ms in rows if closed_s + AFTER_S < at < closed_s + 4 * AFTER_S]
    healthy_ms = statistics.median(beside)
    inside = [ms for at, _, ms in rows if opened_s < at <= closed_s]
    after = [ms for at, _, ms in rows if closed_s < at <= closed_s + AFTER_S / 2]
    return {
        "ranks": ranks,
        "healthy_ms": healthy_ms,
        "inside_ratio": statistics.fmean(inside) / healthy_ms,
        "summaries_ratio": statistics.fmean(after) / healthy_ms,
        "worst_second_ratio": max(inside + after) / healthy_ms,
        "summarize_s": max(pattern.summarize_s for pattern in patterns),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--shapes", nargs="+", default=["model", "calls", "tiny"])
    parser.add_argument("--seconds", type=float, default=45.0, help="of a job under Eroica; twice that beside it")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--crowded", type=int, metavar="RANKS", help="only that: the baseline window of so many ranks")
    options = parser.parse_args()
    if options.crowded:
        with tempfile.TemporaryDirectory() as name:
            figures = crowded(options.crowded, Path(name), options.seconds)
        print(json.dumps({"machine": machine_facts("cpu"), "crowded": figures}, indent=1))
        return
    shapes = " ".join(options.shapes)
    command = f"python benchmarks/window.py --device {options.device} --seconds {options.seconds:g} --shapes {shapes}"
    results = {"machine": machine_facts(options.device), "command": command, "shapes": {}}
    for shape in options.shapes:
        with tempfile.TemporaryDirectory() as name:
            ours = with_eroica(shape, options.device, Path(name), options.seconds)
            # the traced job cannot afford as many iterations of Python calls: compare a tenth, scaled by the reader
            count = int(ours["iterations"]) if shape != "calls" else max(2, int(ours["iterations"]) // 10)
            theirs = with_torch_profiler(shape, options.device, Path(name), count, 2 * options.seconds)
        results["shapes"][shape] = {"eroica": ours, "torch_profiler_with_stack": theirs}
        print(f"\n{shape}")
        for figure, value in ours.items():
            print(f"  {figure:22} {value:12.3f}   torch.profiler {theirs.get(figure, float('nan')):12.3f}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
