"""A replayed hang as Flight Recorder dumps, one `_dump_<rank>` for each rank, as NCCL's watchdog writes it."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from prismllm.graph import Graph, rows_of
from prismllm.model import Call
from prismllm.replay import Iteration, Track

_START_NS = 1_700_000_000_000_000_000
_NAMES = {"all_gather": "_all_gather_base", "reduce_scatter": "_reduce_scatter_base"}


def write_dumps(graph: Graph, iteration: Iteration, folder: Path, ranks: Iterable[int] | None = None) -> int:
    """Write a dump for each rank: the calls that it has entered in this iteration, and those that have ended.

    Return how many files; all ranks by default.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = rows_of([track.block for track in iteration.tracks], ranks)
    for at, row, rank in rows:
        dump = _dump(graph, iteration, iteration.tracks[at], row, graph.groups_of.get(rank, []))
        (folder / f"_dump_{rank}").write_bytes(pickle.dumps(dump))
    return len(rows)


def _dump(graph: Graph, iteration: Iteration, track: Track, row: int, mine: list[int]) -> dict[str, Any]:
    rank = int(track.block.ranks[row])
    job, layout = graph.job, graph.layout
    step = job.classes[track.block.rank_class].step
    config = {str(number): {"name": str(number), "desc": job.groups[number].description or f"group {number}",
                            "ranks": str(job.groups[number].ranks)} for number in mine}  # fmt: skip
    status = {str(number): {"last_enqueued_collective": 0, "last_started_collective": 0, "last_completed_collective": 0}
              for number in mine}  # fmt: skip
    entries: list[dict[str, Any]] = []
    pairwise = 0
    for at, event in enumerate(step.events):
        if event < 0 or not np.isfinite(track.at_s[at, row]):
            continue
        call = step.calls[event]
        family = layout.family_of(call.group)
        group = layout.group_of(family, rank)
        operation = int(track.block.operations[event][row])
        is_done = bool(np.isfinite(iteration.done_s[operation]))
        counters = status[str(group)]
        if call.is_pairwise:
            pairwise += 1
        else:
            counters["last_enqueued_collective"] += 1
            counters["last_started_collective"] += 1
            if is_done:
                counters["last_completed_collective"] = counters["last_enqueued_collective"]
        now_ns = _START_NS + int(1e9 * track.at_s[at, row])
        entries.append(
            _entry(call, len(entries), group, job.groups[group].description, is_done, now_ns, counters, pairwise)
            | {"profiling_name": _name(call, graph, rank, group, operation)}
        )
    return {"version": "2.4", "pg_config": config, "pg_status": status, "entries": entries}


def _name(call: Call, graph: Graph, rank: int, group: int, operation: int) -> str:
    if not call.is_pairwise:
        return f"nccl:{_NAMES.get(call.op, call.op)}"
    members = graph.job.groups[group].ranks
    source, target = (members.index(int(one)) for one in graph.pair[operation])
    return f"nccl:send {source}->{target}" if call.op == "send" else f"nccl:recv {target}<-{source}"


def _entry(
    call: Call, number: int, group: int, description: str, is_done: bool, now_ns: int, counters: dict[str, int],
    pairwise: int,
) -> dict[str, Any]:  # fmt: skip
    elements = max(1, call.nbytes // 4)
    return {
        "record_id": number, "pg_id": group, "process_group": (str(group), description or f"group {group}"),
        "collective_seq_id": counters["last_enqueued_collective"], "p2p_seq_id": pairwise if call.is_pairwise else 0,
        "op_id": number + 1, "is_p2p": call.is_pairwise, "time_created_ns": now_ns,
        "time_discovered_started_ns": now_ns if is_done else None,
        "time_discovered_completed_ns": now_ns + 1000 if is_done else None,
        "state": "completed" if is_done else "started", "retired": is_done, "timeout_ms": 600_000,
        "input_sizes": [[elements]], "output_sizes": [[elements]], "input_dtypes": ["Float"],
        "output_dtypes": ["Float"],
        "frames": [{"name": "<script>", "filename": call.site.partition(":")[0],
                    "line": int(call.site.rpartition(":")[2] or 0) if ":" in call.site else 0}],
    }  # fmt: skip
