"""Speed and memory of generation.

    python benchmarks/speed.py [--day]

One hour of m-mid in one process to Parquet, in three ways; with --day, 24 hours of m-mid at its own total rate, about
155 million requests.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import scipy.stats

from records import keep, published
from servegen.compose import plan, stream
from servegen.export import write_requests
from servegen.workload import Workload


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def measure(fields: dict[str, Any], processes: int, answer: Any) -> None:
    """Generate to a file; report requests, seconds and the resident memory above what the imports take."""
    import aiohttp  # part of what the imports take

    assert aiohttp and scipy.stats
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    base = resident_mb()
    peak = [base]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            peak[0] = max(peak[0], resident_mb())

    watcher = threading.Thread(target=watch)
    watcher.start()
    pool = published("language-m-mid")
    start = int(fields["start_hour"] * 6)
    steps = [
        (600.0 * w, float(rate))
        for w, rate in enumerate(pool.rate.sum(axis=0)[start : start + int(fields["hours"] * 6)])
    ]
    wall, used = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "w.parquet"
        count = write_requests(stream(plan(Workload(rate=steps, **fields), pool), processes), path, "parquet")
        size = path.stat().st_size
    used, wall = time.process_time() - used, time.perf_counter() - wall
    done.set()
    watcher.join()
    answer.send(
        {"requests": count, "cpu_s": used, "wall_s": wall, "per_cpu_s": count / used, "bytes_per_request": size / count,
         "base_mb": base, "above_imports_mb": peak[0] - base}
    )  # fmt: skip


def run(processes: int = 1, **fields: Any) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=measure, args=(fields, processes, theirs))
    process.start()
    theirs.close()
    found = ours.recv()
    process.join()
    print(fields, processes, found, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--day", action="store_true")
    day = parser.parse_args().day
    if day:
        keep("speed_day", {"day": run(hours=24, start_hour=192, seed=1)})
        return
    hour = {"hours": 1, "start_hour": 38, "seed": 1}
    found = {
        "renewal, independent": run(**hour),
        "exact, comonotone": run(**hour, counts="exact", coupling="comonotone"),
        "renewal, rank 0.3": run(**hour, coupling="rank:0.3"),
        "renewal, independent, 2 processes": run(2, **hour),
    }
    keep("speed", found)


if __name__ == "__main__":
    main()
