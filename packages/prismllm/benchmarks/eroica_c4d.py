"""Faults of known truth in a rehearsed job, and what Eroica's always-on watch of communication (C4D) says about each.

    python benchmarks/eroica_c4d.py --capture DIRECTORY --json benchmarks/results/eroica_c4d.json

The job is healthy for two minutes, then the fault comes and stays for 40 s. What makes iterations less than
`communication_slow` longer is not to be told. The watch is fed with the records that agents would send, made from
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
from eroica.collector.communication_watch import Sense, Sensed
from eroica.collector.windows import Windows
from eroica.model.communication import HostCommunication
from eroica.model.worker import Worker
from eroica.settings import Settings
from eroica.wire.messages import AgentReport, WorkerStatus

from prismllm import Rehearsal
from prismllm.costs import Costs, Link
from prismllm.rehearsal import read_changes
from prismllm.replay import Iteration
from prismllm.views.communication import Span, write_records

HEALTHY_S = 120.0
#: Change, class that C4D should tell, and the workers or hosts that it should name; none for healthy.
FAULTS: tuple[tuple[str, str, tuple[int, ...], tuple[str, ...]], ...] = (
    ("", "", (), ()),
    ("slow rank=713 by=2", "non-communication-slow", (713,), ("host89",)),
    ("slow rank=713 by=3", "non-communication-slow", (713,), ("host89",)),
    ("slow rank=6 by=1.5", "non-communication-slow", (6,), ("host0",)),
    ("slow rank=6 by=4", "non-communication-slow", (6,), ("host0",)),
    ("cut host=17 by=0.05", "communication-slow", (), ("host17",)),
    ("cut host=90 by=0.1", "communication-slow", (), ("host90",)),
    ("hang rank=713 op=0", "non-communication-hang", (713,), ("host89",)),
    ("hang rank=6 op=11", "non-communication-hang", (6,), ("host0",)),
)
#: Another set. The hang of rank 901, rank 555 and the slow network had been seen before the last mend, the others not.
EXAM: tuple[tuple[str, str, tuple[int, ...], tuple[str, ...]], ...] = (
    *((f"hang rank={rank} op={op}", "non-communication-hang", (rank,), (f"host{rank // 8}",))
      for rank, op in ((400, 1), (817, 13), (510, 20), (77, 9), (606, 28), (901, 17))),
    *((f"slow rank={rank} by={by}", "non-communication-slow", (rank,), (f"host{rank // 8}",))
      for rank, by in ((555, 3), (130, 4), (709, 3), (444, 4))),
    ("cut host=100 by=0.15", "communication-slow", (), ("host100",)),
    ("cut hosts=30-28 by=0.05", "communication-slow", (), ("host28", "host30")),
    ("network by=0.3", "", (), ()),
)  # fmt: skip


def watch(path: Path, world: int) -> list[Sensed]:
    """What the watch says of a file of records."""
    settings = Settings(communication=True)
    windows = Windows("rehearsed", settings)
    sense = Sense(windows, settings)
    told: list[Sensed] = []

    def tick() -> None:
        for sensed in sense.tick(now):
            told.append(sensed)
            windows.ledger.show(sensed.window, "done", sensed.verdict)

    now = 0.0
    with path.open("rb") as file:
        for line in file:
            row = json.loads(line)
            if row["at"] != now:
                tick()
                now = row["at"]
            report = report_of(row, world)
            windows.take(now, report)
            sense.reported(now, report)
    tick()
    return told


def report_of(row: dict[str, Any], world: int) -> AgentReport:
    """A line of the file as the agent of that host would send it."""
    workers = tuple(
        WorkerStatus(worker=Worker(global_rank=int(rank), world_size=world, host=row["host"], pid=1000 + int(rank)),
                     state="steady", iteration=iteration)
        for rank, iteration in row["iterations"].items()
    )  # fmt: skip
    record = msgspec.convert(row["record"], HostCommunication)
    return AgentReport(host=row["host"], pid=1, workers=workers, communication=record)


def try_fault(rehearsal: Rehearsal, change: str, kind: str, workers: Sequence[int], hosts: Sequence[str],
              seed: int) -> dict[str, Any]:  # fmt: skip
    """One fault: write what agents would tell, watch, compare the first verdict."""
    changes = [change] if change else []
    calm = rehearsal.run(iterations=5, noise=seed, keep=4)
    hangs = math.isinf(rehearsal.predict(*changes).seconds)
    fault = rehearsal.run(changes, iterations=1) if hangs else rehearsal.run(changes, iterations=5, noise=seed, keep=4)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.jsonl"
        spans = [Span(calm, seconds=HEALTHY_S), Span(fault, read_changes(changes))]
        count = write_records(rehearsal.graph, rehearsal.costs, spans, path, seed=seed)
        begun = time.monotonic()
        told = watch(path, rehearsal.job.world)
    cost = None if hangs else mean_s(fault) / mean_s(calm) - 1
    is_small = cost is not None and cost < Settings().communication_slow
    kind, workers, hosts = ("", (), ()) if is_small else (kind, workers, hosts)
    said = told[0].verdict if told else None
    found = said.communication if said is not None else None
    is_right = (found is None and not kind) or (
        found is not None and found.kind == kind
        and (set(found.place.workers) == set(workers) if workers else set(found.place.hosts) == set(hosts))
    )  # fmt: skip
    place = msgspec.to_builtins(found.place) if found is not None else None
    either = found is not None and any(f"worker {worker} " in one for worker in workers for one in found.place.instead)
    return {"change": change or "none", "truth": kind, "workers": list(workers), "hosts": list(hosts), "records": count,
            "cost": cost, "kind": found.kind if found is not None else "", "place": place,
            "verdicts": len(told), "summary": said.summary if said is not None else "",
            "is_right": is_right, "is_either": either, "watched_s": time.monotonic() - begun}  # fmt: skip


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
@click.option("--exam", is_flag=True, help="other faults")
def main(out: Path | None, capture: Path, net: float, only: tuple[int, ...], exam: bool) -> None:
    """Try all faults."""
    plain = Rehearsal.open(capture)
    rehearsal = Rehearsal(plain.job, Costs(host=Link(5e-6, 100 * net), net=Link(1e-4, net)))
    rows = []
    for seed, fault in enumerate(EXAM if exam else FAULTS):
        if only and seed not in only:
            continue
        row = try_fault(rehearsal, *fault, seed)
        rows.append(row)
        said = "right" if row["is_right"] else "either" if row["is_either"] else "WRONG" if row["kind"] else "untold"
        print(f"{row['change']:22} {row['kind']:24} {said:6}  {row['summary']}", flush=True)
        if out is not None:
            out.write_text(json.dumps(rows, indent=1))
    print(f"{sum(row['is_right'] for row in rows)} of {len(rows)} right")


if __name__ == "__main__":
    main()
