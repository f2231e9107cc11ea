"""Windows judged in one process and on Ray: the same verdicts, what they take, and how that grows with workers.

    python benchmarks/engines.py --json benchmarks/results/engines.json

Every kept window of the corpus is judged by both, and the verdicts are compared byte for byte but for their costs.
Then windows of synthetic jobs are read from disk and judged: decoded, looked through, compared, explained. Needs Ray
(`pip install '.[ray]'`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil

from corpus_entry import entry_files, read_entry
from eroica.archive.load import open_window
from eroica.archive.store import Store, write_json
from eroica.engine import choose_engine
from eroica.model.verdict import Cost, Verdict
from eroica.model.window import Window
from eroica.offline.saved import usable_patterns
from eroica.pipeline import analyze
from eroica.settings import Settings
from machine import machine_facts, revision
from scale import ITERATIONS, Job, peak_mb

LOCAL, RAY = Settings(engine="local"), Settings(engine="ray")


def start_ray(processes: int) -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    import ray

    ray.init(num_cpus=processes, object_store_memory=2_000_000_000, include_dashboard=False, log_to_driver=False)


def without_cost(verdict: Verdict) -> bytes:
    return msgspec.structs.replace(verdict, cost=Cost()).to_json()


def corpus() -> dict[str, Any]:
    """All kept windows by both engines."""
    start_ray(2)
    windows, differ, elsewhere = 0, [], []
    for path in entry_files():
        entry = read_entry(path)
        before = {one.window.window_id: one for one in entry.windows}
        for one in entry.windows:
            if not one.patterns:
                continue
            baseline = before.get(one.compared_with)
            past = baseline.worker_patterns() if baseline is not None else ()
            asked = entry.name, one.window, one.worker_patterns(), past, one.workers_expected, one.notes
            here, there = analyze(*asked, LOCAL), analyze(*asked, RAY)
            windows += 1
            differ += [] if without_cost(here) == without_cost(there) else [f"{entry.name} {one.window.window_id}"]
            elsewhere += [] if there.cost.engine == "ray" else [there.cost.engine_why]
    return {"windows": windows, "differ": differ, "not_on_ray": elsewhere}


def write(directory: Path, workers: int) -> None:
    store = Store(directory.parent.parent)
    window = Window(window_id=1, purpose="manual", first_iteration=0, last_iteration=ITERATIONS, reason="benchmark")
    write_json(store.window_directory(1) / "window.json", window)
    (directory / "patterns").mkdir()
    for rank, data in enumerate(Job(workers).wire()):
        (directory / "patterns" / f"{rank}.pattern").write_bytes(data)


def one(directory: Path, processes: int) -> dict[str, Any]:
    """One window from disk to its verdict; with 0 processes here, else on so many of Ray's."""
    settings = RAY if processes else LOCAL
    if processes:
        start_ray(processes)
        list(choose_engine("ray", 1).map(abs, range(4 * processes)))  # its workers are there
    largest = _Largest()
    began, cpu = time.perf_counter(), time.process_time()
    engine = choose_engine(settings.engine, 1)
    window, patterns, notes = usable_patterns(open_window(directory), engine)
    read_s = time.perf_counter() - began
    verdict = analyze("engines", window, patterns, notes=notes, settings=settings)
    wall_s = time.perf_counter() - began
    return {
        "workers": len(patterns), "engine": verdict.cost.engine, "processes": processes or 1,
        "read_s": round(read_s, 2), "wall_s": round(wall_s, 2), "us_per_worker": round(1e6 * wall_s / len(patterns)),
        "asker_cpu_s": round(time.process_time() - cpu, 2), "asker_peak_mb": peak_mb(),
        "largest_worker_mb": largest.stop(), "verdict": hashlib.sha256(without_cost(verdict)).hexdigest()[:16],
    }  # fmt: skip


class _Largest:
    """Watches what Ray's workers take beside what they share, MB."""

    def __init__(self) -> None:
        self._over, self.mb = threading.Event(), 0.0
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            for process in psutil.Process().children(recursive=True):
                try:
                    if process.name().startswith("ray::"):
                        self.mb = max(self.mb, process.memory_full_info().uss / 1e6)
                except psutil.Error:
                    continue

    def stop(self) -> int:
        self._over.set()
        self._thread.join()
        return round(self.mb)


def measured(*arguments: str) -> Any:
    """In a process of its own."""
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="*", default=[1024, 10_048, 100_032])
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--no-corpus", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--part", choices=["corpus", "one"])
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    if options.part:
        print(json.dumps(corpus() if options.part == "corpus" else one(options.directory, options.processes[0])))
        return
    found: dict[str, Any] = {"machine": machine_facts(), "revision": revision()}
    if not options.no_corpus:
        found["corpus"] = measured("--part", "corpus")
    found["synthetic"] = []
    for workers in options.workers:
        with tempfile.TemporaryDirectory(prefix="eroica-engines-") as name:
            directory = Path(name) / "windows" / "1"
            write(directory, workers)
            for processes in (0, *options.processes):
                asked = "--part", "one", "--directory", str(directory), "--processes", str(processes)
                found["synthetic"].append(measured(*asked))
    text = json.dumps(found, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
