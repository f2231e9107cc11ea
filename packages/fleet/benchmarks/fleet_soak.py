"""Jobs that come and go for a long time: does the fleet's service grow?

    python packages/fleet/benchmarks/fleet_soak.py --seconds 3600 --json fleet_soak.json

Jobs begin every few seconds: a real collector with its real reporter, agents that only talk. Service and PostgreSQL are
real. Patterns of a project may take so little room that retention has something to do. Resident memory and open files
of the service, memory of PostgreSQL (its private part) and bytes on disk are written down all the time. The first
quarter after `--settle` is compared with the last one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import psutil

sys.path.extend(str(Path(__file__).resolve().parents[up] / name) for up, name in ((1, "tests"), (3, "benchmarks")))

from machine import machine_facts, revision
from support.emulated_jobs import EmulatedJob

from fleet_chaos import compared
from postgres import Postgres
from serving import Serving

SAMPLE_S, SWEEP_S = 5.0, 20.0


class Soak:
    """The fleet, and what it takes.

    Args:
        place: A directory of its own.
        options: From the command line.
    """

    def __init__(self, place: Path, options: argparse.Namespace) -> None:
        self._place, self._options = place, options
        self._chance = random.Random(options.seed)
        self.database = Postgres() if options.database == "postgresql" else None
        self.url = f"sqlite:///{place / 'fleet.db'}" if self.database is None else self.database.new_database()
        environ = {"EROICA_FLEET_DATABASE": self.url}
        self.service = Serving(place / "data", "--sweep-s", str(SWEEP_S), environ=environ)
        wish = {"quota_bytes": options.quota_bytes}
        self.service.ask("PUT", "/v1/projects/1", self.service.operator, wish)
        self.samples: list[dict[str, float]] = []
        self.totals = {"jobs": 0, "verdicts": 0, "patterns": 0, "without_window": 0, "not_handed_over": 0}
        self.wrong: list[str] = []
        self.kept: list[str] = []

    async def run(self) -> None:
        """Jobs come and go, and are compared with the database once they are over."""
        environ = {**self.service.environ(), "EROICA_FLEET_REPORT_S": "5"}
        began, jobs = time.monotonic(), set[asyncio.Task[None]]()
        sampling = asyncio.create_task(self._sample(began))
        while time.monotonic() - began < self._options.seconds:
            if len(jobs) < self._options.at_once:
                jobs.add(asyncio.create_task(self._one(f"soak-{self.totals['jobs']:05d}", environ)))
                self.totals["jobs"] += 1
            await asyncio.sleep(self._chance.uniform(0.5, 1.5) * self._options.every_s)
            for ended in [job for job in jobs if job.done()]:
                jobs.remove(ended)
                ended.result()
        sampling.cancel()
        await asyncio.gather(sampling, return_exceptions=True)
        await asyncio.gather(*jobs)

    async def _one(self, name: str, environ: dict[str, str]) -> None:
        job = EmulatedJob(self._place, name, environ, self._chance.uniform(5, 15), self._chance)
        try:
            try:
                await job.live()
            except TimeoutError:  # machine too busy for its window: nothing that could be lost
                self.totals["without_window"] += 1
                return
            if not await job.handed_over(300):  # a reporter that got no processor for so long has lost nothing yet
                self.totals["not_handed_over"] += 1
                self.kept += [f"{job.name}: {line}" for line in log_of(job.run)]
                return
            told = await asyncio.to_thread(compared, self.url, [job], with_patterns=False)  # retention may be quicker
            wrong = told["lost"] + told["doubled"] + told["without"]
            self.wrong += wrong
            self.kept += [f"{job.name}: {line}" for line in log_of(job.run)] if wrong else []
            for what in ("verdicts", "patterns"):
                self.totals[what] += told[what]
        finally:
            job.kill()
            shutil.rmtree(job.run, ignore_errors=True)

    async def _sample(self, began: float) -> None:
        service = psutil.Process(self.service.process.pid)
        database = None if self.database is None else psutil.Process(self.database.process.pid)
        while True:
            await asyncio.sleep(SAMPLE_S)
            backends = [] if database is None else [database, *database.children()]
            self.samples.append({
                "at_s": round(time.monotonic() - began, 1),
                "service_mb": round(service.memory_info().rss / 1e6, 2),
                "service_files": service.num_fds(),
                "service_threads": service.num_threads(),
                "postgres_mb": round(sum(map(_private, backends)) / 1e6, 2),
                "patterns_mb": round(_size(self._place / "data" / "patterns") / 1e6, 3),
            })  # fmt: skip

    def close(self) -> None:
        """End what was started."""
        self.service.stop()
        if self.database is not None:
            self.database.stop()


def log_of(run: Path) -> list[str]:
    """What the reporter of a run wrote down."""
    with contextlib.suppress(OSError):
        return (run / "log" / "fleet.log").read_text(encoding="utf-8", errors="replace").splitlines()[-20:]
    return ["no fleet.log"]


def _private(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.Error):
        return float(process.memory_full_info().uss)
    return 0.0


def _size(directory: Path) -> int:
    sizes = 0
    for path in directory.rglob("*.parquet"):
        with contextlib.suppress(OSError):
            sizes += path.stat().st_size
    return sizes


def grown(samples: list[dict[str, float]], settle_s: float) -> dict[str, Any]:
    """The first and the last quarter after settling, medians, and by which share they differ."""
    after = [one for one in samples if one["at_s"] >= settle_s]
    part = max(len(after) // 4, 1)
    told: dict[str, Any] = {}
    for name in ("service_mb", "service_files", "service_threads", "postgres_mb", "patterns_mb"):
        first, last = (median(one[name] for one in some) for some in (after[:part], after[-part:]))
        told[name] = {"first": first, "last": last, "grown": round(last / first - 1, 4) if first else None}
    return told


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All of it."""
    with tempfile.TemporaryDirectory(prefix="eroica-soak-") as name:
        soak = Soak(Path(name), options)
        try:
            asyncio.run(soak.run())
        finally:
            soak.close()
        return {
            "machine": machine_facts(), "revision": revision(), "database": options.database,
            "seconds": options.seconds, "every_s": options.every_s, "at_once": options.at_once,
            "quota_mb": options.quota_bytes / 1e6, **soak.totals, "lost_or_doubled": soak.wrong, "logs": soak.kept,
            "after_settling": grown(soak.samples, options.settle), "settled_after_s": options.settle,
            "samples": soak.samples,
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--settle", type=float, default=600, help="seconds that are not compared")
    parser.add_argument("--every-s", type=float, default=4.0, help="a job begins, on average")
    parser.add_argument("--at-once", type=int, default=8, help="jobs that live at the same time, at most")
    parser.add_argument("--quota-bytes", type=int, default=500_000, help="of the project's patterns")
    parser.add_argument("--database", choices=["postgresql", "sqlite"], default="postgresql")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = measure(options)
    print(json.dumps({**found, "samples": len(found["samples"])}, indent=1))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
