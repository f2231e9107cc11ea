"""Hybrid emulation: some ranks run the script for real, the assistant plays all others."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prismllm.assistant import Assistant, VirtualJob
from prismllm.capture import CONTEXT, CaptureOptions, rank_file, run_slices, start_server
from prismllm.errors import InputError
from prismllm.model import RankRecord, read_record
from prismllm.rehearsal import Rehearsal, read_changes
from prismllm.whatif import Change, check_changes


@dataclass(frozen=True)
class Emulated:
    """The result of an emulation.

    Attributes:
        seconds: Of each iteration, virtual time from the last rank's end to the next one's.
        records: Of the ranks that ran: calls with the source of each payload, real peak memory.
        stuck: Rank -> call in which it stands for ever.
        ready_ns: When the assistant began to serve; monotonic clock, as `RankRecord.grouped_ns` and `stepped_ns` are.
    """

    seconds: list[float]
    records: dict[int, RankRecord]
    stuck: dict[int, str]
    ready_ns: int = 0

    def sources(self) -> Counter[str]:
        """Count the calls of an iteration by the source of their result."""
        return Counter(call.source for record in self.records.values() for call in record.step.calls)


def emulate(
    rehearsal: Rehearsal,
    directory: Path,
    ranks: Sequence[int],
    changes: Sequence[Change | str] = (),
    *,
    iterations: int = 5,
    is_strict: bool = True,
    timeout_s: float = 120.0,
) -> Emulated:
    """Run some ranks of the captured script in the time of the whole job.

    The ranks run at the same time; `directory` is the capture, where recorded payloads lie. With `is_strict`, control
    flow that reads an unsent value is an error; without, it goes unnoticed.

    Raises:
        InputError: There is no such rank, or the script has moved.
        UnsentValueError: A rank decides by a value that came from zeros; rank and line are named.
    """
    job = rehearsal.job
    wanted = read_changes(changes)
    check_changes(wanted, job)
    if not ranks or not all(0 <= rank < job.world for rank in ranks):
        raise InputError(f"name ranks between 0 and {job.world - 1} that are to run (--ranks), not {list(ranks)}")
    warmup = len(read_record(directory / rank_file(job.classes[0].rank), RankRecord).setup)
    options = CaptureOptions(tuple(job.script), job.world, directory, len(ranks), warmup, iterations, job.local_world,
                             timeout_s)  # fmt: skip
    start_server()  # it loads torch while the stage is set
    stage = VirtualJob(rehearsal.graph, rehearsal.costs, ranks, wanted)
    ours, theirs = zip(*(CONTEXT.Pipe() for _ in ranks), strict=True)
    with Assistant(stage, dict(zip(ranks, ours, strict=True))) as assistant:
        ready_ns = time.monotonic_ns()
        try:
            run_slices(options, [sorted(ranks)], part="sandbox", assistants=dict(zip(ranks, theirs, strict=True)),
                       timed=iterations, is_profiled=True, is_strict=is_strict)  # fmt: skip
        except Exception:
            if assistant.error is not None:
                raise assistant.error from None
            raise
        stuck = {}
        for rank, sandbox in stage.sandboxes.items():
            if sandbox.stuck_at >= 0:
                call = job.classes[job.class_of[rank]].step.calls[sandbox.stuck_at]
                stuck[rank] = f"call {sandbox.stuck_at}, {call.op} at {call.site}"
    records = {rank: read_record(directory / rank_file(rank, "sandbox"), RankRecord) for rank in ranks}
    return Emulated(stage.seconds[:iterations], records, stuck, ready_ns)
