"""Hybrid emulation: some ranks run the script for real, the assistant plays all others."""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prismllm.assistant import Assistant, Stage
from prismllm.capture import CaptureOptions, Workshop, rank_file
from prismllm.errors import InputError
from prismllm.model import RankRecord, read_record
from prismllm.rehearsal import Rehearsal, read_changes
from prismllm.whatif import Change, check_change


@dataclass(frozen=True)
class Emulated:
    """What came of an emulation.

    Attributes:
        seconds: Of each iteration, virtual time from the last rank's end to the next one's.
        records: Of the ranks that ran: calls with the source of each payload, real peak memory.
        stuck: Rank -> call in which it stands for ever.
    """

    seconds: list[float]
    records: dict[int, RankRecord]
    stuck: dict[int, str]

    def sources(self) -> Counter[str]:
        """How many calls of an iteration got their result from where."""
        return Counter(call.source for record in self.records.values() for call in record.step.calls)


def emulate(
    rehearsal: Rehearsal,
    directory: Path,
    ranks: Sequence[int],
    changes: Sequence[Change | str] = (),
    *,
    iterations: int = 5,
    is_strict: bool = False,
    timeout_s: float = 120.0,
    shop: Workshop | None = None,
) -> Emulated:
    """Run some ranks of the captured script in the time of the whole job.

    Args:
        rehearsal: The captured job.
        directory: Its capture, where recorded payloads lie.
        ranks: That run for real, all at the same time.
        changes: What is different from the capture.
        iterations: In emulated time.
        is_strict: Control flow that reads an invented value is an error.
        timeout_s: Most that it may take.
        shop: An open process with torch loaded, for whoever emulates several times; its options are changed.

    Raises:
        InputError: There is no such rank, or the script has moved.
        PrismError: What the script ran into.
    """
    job = rehearsal.job
    wanted = read_changes(changes)
    for change in wanted:
        check_change(change, job.world, [len(job.kinds[kind].step.calls) for kind in job.kind_of],
                     -(-job.world // job.local_world))  # fmt: skip
    if not ranks or not all(0 <= rank < job.world for rank in ranks):
        raise InputError(f"name ranks between 0 and {job.world - 1} that are to run (--ranks), not {list(ranks)}")
    warmup = len(read_record(directory / rank_file(job.kinds[0].rank), RankRecord).setup)
    options = CaptureOptions(tuple(job.script), job.world, directory, len(ranks), warmup, iterations, job.local_world,
                             timeout_s, is_strict)  # fmt: skip
    stage = Stage(rehearsal.graph, rehearsal.costs, ranks, wanted)
    with tempfile.TemporaryDirectory() as folder, Assistant(stage, f"{folder}/assistant") as assistant:
        with contextlib.nullcontext(shop) if shop is not None else Workshop(options) as opened:
            opened.options = options
            try:
                opened.run([sorted(ranks)], kind="sandbox", timed=iterations, is_profiled=True,
                         assistant=assistant.path)  # fmt: skip
            except Exception:
                if assistant.error is not None:
                    raise assistant.error from None
                raise
        stuck = {rank: _call_of(rehearsal, rank, sandbox.stuck_at)
                 for rank, sandbox in stage.sandboxes.items() if sandbox.stuck_at >= 0}  # fmt: skip
    records = {rank: read_record(directory / rank_file(rank, "sandbox"), RankRecord) for rank in ranks}
    return Emulated(stage.seconds[:iterations], records, stuck)


def _call_of(rehearsal: Rehearsal, rank: int, place: int) -> str:
    call = rehearsal.job.kinds[rehearsal.job.kind_of[rank]].step.calls[place]
    return f"call {place}, {call.op} at {call.site}"
