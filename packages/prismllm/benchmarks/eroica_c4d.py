"""Faults of known truth in a rehearsed job, and what C4D, the watch of the ways between hosts, says about each.

    python benchmarks/eroica_c4d.py --capture DIRECTORY --json benchmarks/results/eroica_c4d.json

The job is healthy for two minutes, then the fault comes and stays for 40 s. Slow ranks and hangs are not to be told:
they are left to Eroica's windows and looks. The watch is fed with the records that agents would send, made from
the replay by `prismllm.views.communication`; no process runs. It has no entry point for files, so it is imported here.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np
from eroica.collector.windows import Windows
from eroica.model.worker import Worker
from eroica.settings import Settings
from eroica.wire.messages import AgentReport, WorkerStatus
from eroica_c4d.records import HostRecord
from eroica_c4d.watch import Found, Watch

from prismllm import Rehearsal
from prismllm.costs import Costs, Link
from prismllm.rehearsal import read_changes
from prismllm.replay import Iteration
from prismllm.views.communication import Span, write_records

HEALTHY_S = 120.0
#: Change, and the hosts whose way C4D should name; none where it should tell nothing.
FAULTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("", ()),
    ("slow rank=713 by=3", ()),
    ("slow rank=6 by=4", ()),
    ("hang rank=713 op=0", ()),
    ("network by=0.3", ()),
    ("cut host=17 by=0.05", ("host17",)),
    ("cut host=90 by=0.1", ("host90",)),
    ("cut host=100 by=0.15", ("host100",)),
    ("cut hosts=30-28 by=0.05", ("host28", "host30")),
)


def watch(path: Path, world: int) -> list[Found]:
    """What the watch says of a file of records."""
    windows = Windows("rehearsed", Settings())
    sense, told, now = Watch(windows), list[Found](), 0.0

    def tick() -> None:
        for found in sense.tick(now):
            told.append(found)
            windows.ledger.show(found.window, "done", found.verdict)

    with path.open("rb") as file:
        for line in file:
            row = json.loads(line)
            if row["at"] != now:
                tick()
                now = row["at"]
            windows.take(now, report_of(row, world))
            sense.reported(now, row["host"], msgspec.convert(row["record"], HostRecord))
    tick()
    return told


def report_of(row: dict[str, Any], world: int) -> AgentReport:
    """The report of that host with which a line of the file comes."""
    workers = tuple(
        WorkerStatus(worker=Worker(global_rank=int(rank), world_size=world, host=row["host"], pid=1000 + int(rank)),
                     state="steady", iteration=iteration)
        for rank, iteration in row["iterations"].items()
    )  # fmt: skip
    return AgentReport(host=row["host"], pid=1, workers=workers)


def try_fault(rehearsal: Rehearsal, change: str, hosts: Sequence[str], seed: int) -> dict[str, Any]:
    """One fault: write what agents would tell, watch, compare the first verdict."""
    changes = [change] if change else []
    calm = rehearsal.run(iterations=5, noise=seed, keep=4)
    hangs = math.isinf(rehearsal.predict(*changes).seconds)
    fault = rehearsal.run(changes, iterations=1) if hangs else rehearsal.run(changes, iterations=5, noise=seed, keep=4)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.jsonl"
        spans = [Span(calm, seconds=HEALTHY_S), Span(fault, read_changes(changes))]
        count = write_records(rehearsal.graph, rehearsal.costs, spans, path)
        begun = time.monotonic()
        told = watch(path, rehearsal.job.world)
    place = told[0].verdict.communication["place"] if told and told[0].verdict.communication else None
    return {"change": change or "none", "hosts": list(hosts), "records": count,
            "cost": None if hangs else mean_s(fault) / mean_s(calm) - 1, "place": place, "verdicts": len(told),
            "summary": told[0].verdict.summary if told else "",
            "is_right": set(place["hosts"] if place else ()) == set(hosts),
            "watched_s": time.monotonic() - begun}  # fmt: skip


def mean_s(iterations: Sequence[Iteration]) -> float:
    """Of an iteration, all ranks' mean; seconds."""
    began, ended = (np.concatenate([getattr(track, name) for track in one.tracks])
                    for one, name in ((iterations[0], "begin_s"), (iterations[-1], "end_s")))  # fmt: skip
    return float((ended - began).mean()) / len(iterations)


@click.command()
@click.option("--json", "out", type=click.Path(path_type=Path))
@click.option("--capture", type=click.Path(path_type=Path), required=True, help="a capture of 1,024 ranks")
@click.option("--net", default=3e6, show_default=True, help="bytes a second between hosts")
@click.option("--only", type=int, multiple=True, help="numbers of faults; all by default")
def main(out: Path | None, capture: Path, net: float, only: tuple[int, ...]) -> None:
    """Try all faults."""
    plain = Rehearsal.open(capture)
    rehearsal = Rehearsal(plain.job, Costs(host=Link(5e-6, 100 * net), net=Link(1e-4, net)))
    rows = []
    for seed, fault in enumerate(FAULTS):
        if only and seed not in only:
            continue
        row = try_fault(rehearsal, *fault, seed)
        rows.append(row)
        print(f"{row['change']:24} {'right' if row['is_right'] else 'WRONG':6} {row['summary']}", flush=True)
        if out is not None:
            out.write_text(json.dumps(rows, indent=1))
    print(f"{sum(row['is_right'] for row in rows)} of {len(rows)} right")


if __name__ == "__main__":
    main()
