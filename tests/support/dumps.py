"""Flight Recorder dumps, made up: who entered and completed what, written as torch writes it.

job = DumpedJob(8)
job.enter(range(8), completed=range(8))
job.enter([0, 1, 2, 4, 5, 6, 7])
verdict = diagnose_dumps(job.dumps(), "demo", Settings())
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from eroica.diagnosis.blocked import diagnose_blockage
from eroica.model.verdict import Verdict
from eroica.offline.standstills import build_blockage
from eroica.settings import Settings
from eroica.trace.flight import FlightDump, parse_dump, read_dump


class DumpedJob:
    """A job of which everybody's recorder is still empty.

    Args:
        workers: Workers of the job; the default group "0" holds them all.
        entered: Sequence number of the last collective that every group has finished before, without entries.
        only_active: Completed entries are left out of the dumps, as `TORCH_INCLUDE_ONLY_ACTIVE` does.
    """

    def __init__(self, workers: int, entered: int = 11, *, only_active: bool = False) -> None:
        self.workers = workers
        self.entered = entered
        self.only_active = only_active
        self.groups: dict[str, tuple[str, list[int]]] = {}
        self.entries: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(workers)}
        self.counters: dict[int, dict[str, list[int]]] = {rank: {} for rank in range(workers)}
        self.without: set[int] = set()
        self.add_group("0", range(workers), "default_pg")

    def add_group(self, name: str, ranks: Iterable[int], description: str = "") -> None:
        """A process group; names are numbers, as torch gives them."""
        self.groups[name] = description, list(ranks)
        for rank in self.groups[name][1]:
            self.counters[rank][name] = [self.entered, self.entered, 0]

    def enter(
        self,
        ranks: Iterable[int],
        group: str = "0",
        operation: str = "nccl:all_reduce",
        completed: Iterable[int] = (),
        elements: int = 4096,
    ) -> None:
        """These workers enter the next collective of the group, and some of them complete it."""
        done = set(completed)
        for rank in ranks:
            counters = self.counters[rank][group]
            counters[0] += 1
            if rank in done:
                counters[1] = counters[0]
            self._record(rank, group, operation, rank in done, elements, pairwise=False)

    def send(self, source: int, target: int, group: str = "0", *, completed: bool = False) -> None:
        """One worker sends to another, which may or may not receive."""
        at = self.groups[group][1].index
        self._record(source, group, f"nccl:send {at(source)}->{at(target)}", completed, 64, pairwise=True)

    def receive(self, target: int, source: int, group: str = "0", *, completed: bool = False) -> None:
        """One worker expects something from another."""
        at = self.groups[group][1].index
        self._record(target, group, f"nccl:recv {at(target)}<-{at(source)}", completed, 64, pairwise=True)

    def lose(self, *ranks: int) -> None:
        """There is no dump of these workers."""
        self.without.update(ranks)

    def _record(self, rank: int, group: str, name: str, completed: bool, elements: int, *, pairwise: bool) -> None:
        counters = self.counters[rank][group]
        counters[2] += pairwise
        self.entries[rank].append(
            {
                "record_id": len(self.entries[rank]),
                "pg_id": 3 * sorted(self.counters[rank], key=int).index(group),
                "process_group": (group, self.groups[group][0]),
                "collective_seq_id": counters[0],
                "p2p_seq_id": counters[2] if pairwise else 0,
                "op_id": counters[0] + counters[2],
                "profiling_name": name,
                "time_created_ns": 1_758_610_505_000_000_000 + len(self.entries[rank]),
                "input_sizes": [[elements // 4, 4]],
                "input_dtypes": ["BFloat16"],
                "output_sizes": [[elements // 4, 4]],
                "output_dtypes": ["BFloat16"],
                "state": "completed" if completed else "scheduled",
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": None,
                "retired": completed,
                "timeout_ms": 600_000,
                "is_p2p": pairwise,
            }
        )

    def content(self, rank: int) -> dict[str, Any]:
        """One worker's dump; as torch does it, the last send or receive overwrites the counter of its group."""
        names = sorted(self.counters[rank], key=int)
        status = {}
        for at, name in enumerate(names):
            enqueued, completed, pairs = self.counters[rank][name]
            last = next((one for one in reversed(self.entries[rank]) if one["process_group"][0] == name), None)
            status[str(3 * at)] = {
                "last_enqueued_collective": pairs if last is not None and last["is_p2p"] else enqueued,
                "last_started_collective": -1,
                "last_completed_collective": completed,
            }
        listed = [one for one in self.entries[rank] if not (self.only_active and one["state"] == "completed")]
        return {
            "version": "2.9",
            "pg_config": {
                name: {"name": name, "desc": self.groups[name][0], "ranks": str(self.groups[name][1])} for name in names
            },
            "nccl_version": "2.27.3",
            "pg_status": status,
            "entries": listed,
        }

    def pickled(self, rank: int) -> bytes:
        """One worker's dump as the watchdog writes it."""
        return pickle.dumps(self.content(rank), protocol=2)

    def as_json(self, rank: int) -> bytes:
        """One worker's dump as `_dump_fr_trace_json` returns it: counters are text."""
        content = self.content(rank)
        content["pg_status"] = {
            key: {name: str(number) for name, number in counts.items()} for key, counts in content["pg_status"].items()
        }
        return json.dumps(dict(sorted(content.items()))).encode()

    def dumps(self) -> list[FlightDump]:
        """Everybody's dump, read; every other one by way of JSON."""
        return [
            parse_dump(self.as_json(rank) if rank % 2 else self.pickled(rank), rank)
            for rank in range(self.workers)
            if rank not in self.without
        ]

    def write(self, folder: Path, form: str = "_dump_{rank}") -> list[Path]:
        """Everybody's dump as a file; JSON where the name says so."""
        paths = []
        for rank in sorted(set(range(self.workers)) - self.without):
            path = folder / form.format(rank=rank)
            path.write_bytes(self.as_json(rank) if path.suffix == ".json" else self.pickled(rank))
            paths.append(path)
        return paths


def diagnose_dumps(dumps: Iterable[Path | FlightDump], job: str, settings: Settings) -> Verdict:
    """Return the verdict on dumps, or files of them, of one job."""
    read = [one if isinstance(one, FlightDump) else read_dump(one) for one in dumps]
    verdict = diagnose_blockage(build_blockage(read), job, settings)
    assert verdict is not None
    return verdict
