"""Collectives of one worker as they travel: durations and sequence numbers per process group and kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import CollectiveRecord
from eroica.model.worker import ProcessGroup
from eroica.summarize.collectives import POINT_TO_POINT, Execution, Pairing
from eroica.summarize.series import encode_series


def collective_records(
    executions: Sequence[Execution],
    critical_ns: NDArray[np.int64],
    edges_ns: NDArray[np.int64],
    groups: Sequence[ProcessGroup],
    global_rank: int,
    limit: int,
    with_ends: bool = False,
) -> tuple[CollectiveRecord, ...]:
    """One record per group and kind, each with its last `limit` executions.

    Executions without a number, where others of their kind have one, count as dropped. The last ones are kept because
    every worker keeps the same ones then: the window ends at the same iteration everywhere, and the Flight Recorder
    forgets the oldest first.

    Args:
        executions: C of them.
        critical_ns: Critical part of each. int64 [C].
        edges_ns: Boundaries of the captured iterations, wall clock. int64 [iterations + 1].
        groups: Process groups, to tell the other side of a send in a group of two.
        global_rank: This worker.
        limit: Executions kept per record.
        with_ends: Tell when each ended.
    """
    rows: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, one in enumerate(executions):
        rows[one.group, one.kind].append(number)
    others = {group.name: _other(group, global_rank) for group in groups}
    records = []
    for (group, kind), numbers in sorted(rows.items()):
        numbered = [number for number in numbers if executions[number].paired_by == "sequence"]
        kept = (numbered or numbers)[-limit:] if limit > 0 else []
        chosen = [executions[number] for number in kept]
        record = _record(chosen, critical_ns[kept], edges_ns, others.get(group, -1), len(numbers), (group, kind))
        records.append(msgspec.structs.replace(record, end_us=_ends(chosen, edges_ns)) if with_ends else record)
    return tuple(records)


def _ends(chosen: list[Execution], edges_ns: NDArray[np.int64]) -> bytes:
    """Ends in eighths of a microsecond; finer ones would only cost bytes: ranks leave microseconds apart."""
    end = np.array([one.end_ns for one in chosen], dtype=np.int64) - edges_ns[0]
    return encode_series(np.rint(end / 125.0) / 8.0)


def _other(group: ProcessGroup, global_rank: int) -> int:
    rest = [rank for rank in group.ranks if rank != global_rank]
    return rest[0] if len(rest) == 1 else -1


def _record(
    chosen: list[Execution],
    critical_ns: NDArray[np.int64],
    edges_ns: NDArray[np.int64],
    other: int,
    total: int,
    key: tuple[str, str],
) -> CollectiveRecord:
    end = np.array([one.end_ns for one in chosen], dtype=np.int64)
    start = np.array([one.start_ns for one in chosen], dtype=np.int64)
    iteration = np.clip(np.searchsorted(edges_ns, end, side="left") - 1, 0, len(edges_ns) - 2)
    peers = [one.peer if one.peer >= 0 else other for one in chosen]
    return CollectiveRecord(
        group=key[0],
        kind=key[1],
        paired_by=_record_pairing(chosen),
        executions=len(chosen),
        sequence=encode_series(np.array([one.sequence for one in chosen], dtype=np.int64)),
        iteration=encode_series(iteration.astype(np.int32)),
        duration_us=encode_series(((end - start) / 1000.0).astype(np.float32)),
        critical_us=encode_series((critical_ns / 1000.0).astype(np.float32)),
        elements=encode_series(np.array([one.elements for one in chosen], dtype=np.int64)),
        peers=encode_series(np.array(peers, dtype=np.int32)) if key[1] in POINT_TO_POINT else b"",
        dropped=total - len(chosen),
    )


def _record_pairing(chosen: list[Execution]) -> Pairing:
    """The weakest pairing of the executions."""
    kinds = {one.paired_by for one in chosen}
    if kinds == {"sequence"}:
        return "sequence"
    return "order" if kinds == {"order"} else "none"
