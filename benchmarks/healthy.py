"""How often Eroica cries wolf: a healthy 4-worker job on the cores that there are, watched for a long time.

`python benchmarks/healthy.py --minutes 60 --by-hand 10 [--json FILE]`. Counts windows that the trigger opened by itself
(at most one an hour is wanted) and causes found in them or in windows opened by hand (none is wanted). A shared machine
has its own moods: once a second some fixed work is timed by its CPU time, and each window says how much longer than
usual that took in the minute before it, and how much longer the job's iterations did.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from injected import write_training
from machine import machine_facts

#: Before a window: what its trigger has seen.
_BEFORE_S = 60.0
_WORK, _BUFFER = 30_000, bytearray(4_000_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--by-hand", type=int, default=10, help="windows opened by hand, evenly spread")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        results = watch(Path(name), options.minutes, options.by_hand, options.workers)
    print(json.dumps({key: value for key, value in results.items() if key != "windows"}, indent=1))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def watch(directory: Path, minutes: float, by_hand: int, workers: int) -> dict[str, object]:
    script, run = write_training(directory), directory / "run"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(workers)]
    training = [*launch, str(script), "--seconds", str(60 * minutes), "--iterations", "100000000"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    job = subprocess.Popen(
        [sys.executable, "-m", "eroica", "run", "--quiet", "--out", str(run), "--", *training],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    begin, asked = time.monotonic(), 0
    yardstick: list[tuple[float, float]] = []
    while job.poll() is None:
        time.sleep(1.0)
        yardstick.append((time.time(), fixed_work_ms()))
        due = 60 * minutes * (asked + 0.5) / max(1, by_hand)
        if asked < by_hand and time.monotonic() - begin > due:
            asked += 1
            command = [sys.executable, "-m", "eroica", "profile", "--out", str(run), "--no-wait"]
            subprocess.run(command, check=False, capture_output=True)
    return {
        "machine": machine_facts(),
        "command": f"python benchmarks/healthy.py --minutes {minutes:g} --by-hand {by_hand} --workers {workers}",
        **count(run, yardstick),
    }


def fixed_work_ms() -> float:
    """CPU time of always the same work: what other programs take from the processor's caches and clock shows in it."""
    began = time.thread_time()
    sum(number * number for number in range(_WORK))
    bytes(_BUFFER)
    return 1e3 * (time.thread_time() - began)


def count(run: Path, yardstick: list[tuple[float, float]]) -> dict[str, object]:
    """Windows by purpose, with what was said about each."""
    status = json.loads((run / "status.json").read_text())
    windows = [
        {name: window.get(name, "") for name in ("window_id", "purpose", "phase", "verdict", "summary")}
        for window in status["windows"]
    ]
    own = [window for window in windows if window["purpose"] == "slow"]
    history = json.loads((run / "history.json").read_text())
    pace = [(history["began"] + at, ms) for at, ms in zip(history["at_s"], history["mean_ms"], strict=True)]
    opened = {one["window_id"]: history["began"] + one["at_s"] for one in history["marks"] if one["kind"] == "window"}
    for window in windows:
        if window["window_id"] in opened:
            at = opened[window["window_id"]]
            window["iterations_longer"] = longer_before(at, pace)
            window["fixed_work_longer"] = longer_before(at, yardstick)
    return {
        "windows_by_trigger": len(own),
        "windows_by_hand": sum(window["purpose"] == "manual" for window in windows),
        "causes_found": sum(window["verdict"] == "slow" for window in windows),
        "windows": windows,
    }


def longer_before(moment: float, values: list[tuple[float, float]]) -> float | None:
    """Median in the minute before a moment, as a multiple of the median of all; None where there is none."""
    recent = [value for at, value in values if moment - _BEFORE_S <= at <= moment]
    return round(median(recent) / median(value for _, value in values), 3) if recent else None


if __name__ == "__main__":
    main()
