"""The fleet's service under load: a thousand jobs that report, and pages over a hundred thousand verdicts.

    python packages/fleet/benchmarks/fleet.py --json packages/fleet/benchmarks/results/fleet.json

A real `eroica serve` in a process of its own, on PostgreSQL (a server of its own, too) or SQLite. Jobs are emulated:
one process sends what the reporters of so many jobs would, on connections that stay open. CPU time is the service's own
(and PostgreSQL's beside it), so that other load of the machine shows in the latencies only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil

sys.path.extend(str(Path(__file__).resolve().parents[up] / name) for up, name in ((1, "tests"), (3, "benchmarks")))

from eroica.fleet.records import Batch, Beat, Points
from machine import machine_facts
from support.run_directories import a_verdict

from bulk import fill
from eroica_fleet.database import open_database
from filling import facts_of, patterns_piece, verdict_piece
from postgres import Postgres
from serving import Serving

REPORT_S = 30.0
PAGES = (
    "/v1/runs?limit=25", "/v1/runs?q=job-07", "/v1/runs?q=node0042", "/v1/runs?state=slow", "/v1/runs/{run}",
    "/runs/{run}", "/v1/hosts", "/v1/functions", "/v1/trends", "/v1/runs/{run}/earlier",
)  # fmt: skip


def share(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def cpu_s(*roots: int) -> float:
    """Seconds of CPU of these processes and their children so far."""
    total = 0.0
    for root in roots:
        for process in (psutil.Process(root), *psutil.Process(root).children(recursive=True)):
            times = process.cpu_times()
            total += times.user + times.system
    return total


async def report(url: str, token: str, jobs: int, seconds: float) -> dict[str, Any]:
    """Beats of all jobs every 30 s, spread evenly; each has a verdict with patterns of 8 workers once in 5 min."""
    latencies: list[float] = []
    failures = 0
    limits = httpx.Limits(max_connections=64, max_keepalive_connections=64)
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, limits=limits, timeout=60, trust_env=False) as client:
        patterns = patterns_piece(facts_of("any", 0.0), 1, 0.2)  # built once: it is the service that is measured
        facts = [facts_of(f"load-{number:04d}", time.time() - 1000 + number / 1000) for number in range(jobs)]
        began = time.monotonic()

        async def one(number: int, turn: int) -> None:
            nonlocal failures
            at = tuple(turn * REPORT_S + second for second in range(30))
            points = Points(
                at_s=at, iteration=tuple(map(int, at)), mean_ms=(100.0,) * 30, slowest_ms=(101.0,) * 30,
                slowest_worker=(0,) * 30,
            )  # fmt: skip
            pieces = ()
            if (number + turn) % 10 == 0:
                verdict = verdict_piece(facts[number], turn + 1, time.time(), a_verdict(facts[number].job))
                mine = msgspec.structs.replace(patterns, facts=facts[number], key=f"patterns/{turn + 1}/0")
                pieces = (verdict, mine)
            hosts = tuple(f"n{(number + at) % 5000}" for at in range(2)) if turn == 0 else None
            beat = Beat(
                facts=facts[number], at=time.time(), phase="watching", iteration=turn, mean_ms=100.0, best_ms=99.0,
                workers=16, hosts=hosts, points=points,
            )  # fmt: skip
            body = msgspec.msgpack.encode(Batch(pieces=pieces, beat=beat))
            asked = time.perf_counter()
            try:
                answer = await client.post("/v1/reports", content=body)
                failures += not answer.is_success
            except httpx.HTTPError:
                failures += 1
            latencies.append(time.perf_counter() - asked)

        tasks = []
        while (now := time.monotonic() - began) < seconds:
            due = int(now * jobs / REPORT_S)
            while len(tasks) <= due:
                tasks.append(asyncio.create_task(one(len(tasks) % jobs, len(tasks) // jobs)))
            await asyncio.sleep(0.005)
        await asyncio.gather(*tasks)
    return {
        "jobs": jobs, "seconds": round(time.monotonic() - began, 1), "reports": len(latencies), "failures": failures,
        "p50_ms": round(1e3 * share(latencies, 0.5), 1), "p99_ms": round(1e3 * share(latencies, 0.99), 1),
    }  # fmt: skip


def pages(service: Serving, rounds: int) -> dict[str, Any]:
    """How long pages and their data take, one after another; insights are worked out anew every half minute."""
    found: dict[str, list[float]] = {page: [] for page in PAGES}
    headers = {"Authorization": f"Bearer {service.operator}"}
    with httpx.Client(base_url=service.url, headers=headers, timeout=60, trust_env=False) as client:
        for turn in range(rounds):
            for page in PAGES:
                began = time.perf_counter()
                answer = client.get(page.replace("{run}", str(1 + 997 * turn % 1000)))
                found[page].append(1e3 * (time.perf_counter() - began))
                assert answer.is_success, (page, answer.text)
    every = [one for times in found.values() for one in times]
    return {
        "p95_ms": round(share(every, 0.95), 1), "longest_ms": round(max(every), 1),
        "each": {page: [round(share(times, part), 1) for part in (0.5, 0.95)] for page, times in found.items()},
    }  # fmt: skip


def measure(database: str, options: argparse.Namespace) -> dict[str, Any]:
    server = Postgres() if database == "postgresql" else None
    place = Path(tempfile.mkdtemp(prefix="eroica-bench-fleet-"))
    environ = {"EROICA_FLEET_DATABASE": server.new_database()} if server is not None else {}
    service = Serving(place / "data", environ=environ)
    try:
        url = environ.get("EROICA_FLEET_DATABASE", f"sqlite:///{place / 'data' / 'fleet.db'}")
        engine = open_database(url)
        began = time.monotonic()
        fill(engine, options.runs, options.hosts, options.verdicts)
        engine.dispose()
        result: dict[str, Any] = {
            "database": database, "runs": options.runs, "hosts": options.hosts, "verdicts": options.verdicts,
            "filled_s": round(time.monotonic() - began, 1), "pages": pages(service, options.rounds),
        }  # fmt: skip
        token = service.token("report")
        roots = [service.process.pid]
        before, base = cpu_s(*roots), cpu_s(server.process.pid) if server is not None else 0.0
        load = asyncio.run(report(service.url, token, options.jobs, options.seconds))
        load["service_core"] = round((cpu_s(*roots) - before) / load["seconds"], 3)
        if server is not None:
            load["postgres_core"] = round((cpu_s(server.process.pid) - base) / load["seconds"], 3)
        load["service_rss_mb"] = round(psutil.Process(service.process.pid).memory_info().rss / 1e6)
        result["load"] = load
        result["load_average"] = os.getloadavg()
        return result
    finally:
        service.stop()
        if server is not None:
            server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--databases", default="postgresql,sqlite")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--hosts", type=int, default=12_500)
    parser.add_argument("--verdicts", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    found = [measure(database, options) for database in options.databases.split(",")]
    text = json.dumps({"machine": machine_facts(), "measured": found}, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
