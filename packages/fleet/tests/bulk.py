"""A large fleet put into the database's tables at once, for pages and timings: rows as the intake makes them."""

from __future__ import annotations

import json
import random
import time
import zlib
from typing import Any

import msgspec
import sqlalchemy as sa
from eroica.fleet.records import Points
from support.run_directories import a_verdict

from eroica_fleet.database import culprits, findings, run_hosts, runs, times, verdicts, writing

CAUSES = ("slow-data-loading", "compute-slow", "slow-link", "garbage-collection", "slow-storage-read")
WORDS = ("healthy", "slow", "slow", "undetermined", "blocked")
BAD = "node00042"


def fill(
    engine: sa.Engine, jobs: int, hosts: int, verdicts_in_all: int, *, project_id: int = 1, evil: str = ""
) -> None:
    """So many runs, hosts and verdicts; host `BAD` is to blame in the runs that it takes part in.

    Args:
        engine: The database.
        jobs: Runs, one of each job.
        hosts: Different hosts over all runs.
        verdicts_in_all: Verdicts over all runs.
        project_id: Whose.
        evil: Text that is put into names, for pages that must not obey it.
    """
    chance, now = random.Random(1), time.time()
    per_run = -(-hosts // jobs) + 3
    packed = zlib.compress(msgspec.msgpack.encode(_points(120, chance)), 6)
    record = zlib.compress(msgspec.json.encode(a_verdict()), 6)
    tables = {
        "runs": runs, "hosts": run_hosts, "times": times, "verdicts": verdicts, "findings": findings,
        "culprits": culprits,
    }  # fmt: skip
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in tables}
    of_run: dict[int, list[str]] = {}
    for number in range(jobs):
        run_id = number + 1
        mine = sorted({f"node{(number * per_run + at) % hosts:05d}" for at in range(per_run)})
        if number % 50 == 1:
            mine = sorted({*mine, BAD})
        of_run[run_id] = mine
        word = WORDS[number % len(WORDS)]
        rows["runs"].append(_run(run_id, number, project_id, mine, word, now, evil))
        rows["hosts"] += [{"run_id": run_id, "host": host, "project_id": project_id} for host in mine]
        rows["times"].append({"project_id": project_id, "run_id": run_id, "until_s": 120.0, "columns": packed})
    for number in range(verdicts_in_all):
        run_id = number % jobs + 1
        word, at = WORDS[(run_id - 1) % len(WORDS)], now - chance.uniform(60, 20 * 86_400)
        _verdict(rows, number + 1, run_id, project_id, word, at, record, of_run[run_id], chance)
    with writing(engine).begin() as connection:
        for name, table in tables.items():
            for at in range(0, len(rows[name]), 5000):
                connection.execute(sa.insert(table), rows[name][at : at + 5000])
        if engine.dialect.name == "postgresql":
            for name in ("runs", "times", "verdicts", "findings", "culprits"):
                connection.execute(sa.text(f"select setval('{name}_id_seq', (select max(id) from {name}))"))


def _points(number: int, chance: random.Random) -> Points:
    means = tuple(100 + chance.uniform(-2, 2) + 30 * (at > number / 2) for at in range(number))
    numbers = tuple(range(1, number + 1))
    return Points(
        at_s=tuple(map(float, numbers)),
        iteration=numbers,
        mean_ms=means,
        slowest_ms=means,
        slowest_worker=(0,) * number,
    )


def _run(
    run_id: int, number: int, project_id: int, hosts: list[str], word: str, now: float, evil: str
) -> dict[str, Any]:
    over = number % 10 == 9
    cause = "" if word in ("healthy", "undetermined") else CAUSES[number % len(CAUSES)]
    return {
        "id": run_id, "project_id": project_id, "run": f"{run_id:032x}", "job": f"job-{number:05d}{evil}",
        "until_s": 120.0, "search": f"job-{number:05d}{evil} c{number % 97:04d}",
        "commit_id": f"c{number % 97:04d}", "host": hosts[0], "eroica_version": "0", "began_at": now - 21 * 86_400,
        "heard_at": now - (5000 + number if over else number / 1000), "beat_at": now,
        "phase": "over" if over else "watching",
        "message": "all well", "iteration": 1000 + number, "mean_ms": 100.0 + number % 40, "best_ms": 98.0,
        "workers": 8 * len(hosts), "hosts": len(hosts), "verdict": word, "cause": cause,
        "spark": json.dumps([100.0 + (at * number) % 7 for at in range(60)]),
        "summary": f"Worker 3 of job {number} spends 57 ms in read_block{evil}.", "judged_at": now - 100,
        "changed": int(1000 * now) - 60_000,
    }  # fmt: skip


def _verdict(  # noqa: PLR0913, PLR0917
    rows: dict[str, list[dict[str, Any]]],
    verdict_id: int,
    run_id: int,
    project_id: int,
    word: str,
    at: float,
    record: bytes,
    hosts: list[str],
    chance: random.Random,
) -> None:
    number = run_id - 1
    named = word in ("slow", "blocked")
    cause = CAUSES[number % len(CAUSES)] if named else ""
    ours = {"project_id": project_id, "run_id": run_id}
    rows["verdicts"].append({
        **ours, "id": verdict_id, "window_id": verdict_id + 1, "piece_at": at, "judged_at": at, "purpose": "slow",
        "verdict": word, "summary": f"{word} in window", "cause": cause, "function": "read_block", "gain": 0.2,
        "confidence": 0.9, "baseline_ms": 98.0, "current_ms": 120.0, "record": record,
    })  # fmt: skip
    if not named:
        return
    rows["findings"].append({
        **ours, "id": verdict_id, "verdict_id": verdict_id, "window_id": verdict_id + 1, "judged_at": at,
        "cause": cause, "function": f"f{number % 500}", "kind": "python", "scope": "some", "workers": 1, "gain": 0.2,
        "confidence": 0.9,
    })  # fmt: skip
    host = BAD if number % 50 == 1 else chance.choice(hosts)
    rows["culprits"].append({
        **ours, "id": verdict_id, "finding_id": verdict_id, "judged_at": at, "host": host, "device": f"GPU-{host}",
        "global_rank": 3,
    })  # fmt: skip
