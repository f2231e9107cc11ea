"""Collectives of one worker as they travel: durations and sequence numbers per process group and kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import CollectiveRecord
from eroica.model.series import encode_series
from eroica.model.worker import ProcessGroup
from eroica.summarize.collectives import POINT_TO_POINT, Execution, Pairing

MOST_RECORDS = 1000
#: Recorded traces are paired by ends, and ranks leave microseconds apart. Online, ends only say what came before what,
#: and a pattern has to stay small: coarser steps save a quarter of their bytes.
RECORDED_GRAIN_NS = 125
ONLINE_GRAIN_NS = 8_000


class CollectiveSeries(NamedTuple):
    """One record before it is encoded: its last executions in columns. C of them.

    Attributes:
        group: Name of the group.
        kind: Kind of the collective.
        total: Executions of which these are the last.
        pairing: Of each, in order.
        columns: int64 or float32 [C], named as in `CollectiveRecord`.
    """

    group: str
    kind: str
    total: int
    pairing: list[Pairing]
    columns: dict[str, NDArray[Any]]

    def encode(self, limit: int) -> CollectiveRecord:
        """The record with its last `limit` executions; sends and receives pair as far as their other side is known."""
        pairing = self.pairing[-limit:] if limit > 0 else []
        first = len(self.pairing) - len(pairing)
        kept = {name: values[first:] for name, values in self.columns.items()}
        if "peers" in kept:
            told = kept["peers"] >= 0
            pairing = [one for one, is_told in zip(pairing, told.tolist(), strict=True) if is_told] or pairing
            if not told.any():
                del kept["peers"]
        return CollectiveRecord(
            group=self.group,
            kind=self.kind,
            paired_by=_record_pairing(pairing),
            executions=len(self.pairing) - first,
            dropped=self.total - (len(self.pairing) - first),
            **{name: encode_series(values) for name, values in kept.items()},
        )


def collective_series(
    executions: Sequence[Execution],
    critical_ns: NDArray[np.int64],
    edges_ns: NDArray[np.int64],
    groups: Sequence[ProcessGroup],
    global_rank: int,
    limit: int,
    grain_ns: int = RECORDED_GRAIN_NS,
) -> tuple[CollectiveSeries, ...]:
    """One series per group and kind, each with its last `limit` executions; of too many those with most of them.

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
        grain_ns: Ends are told in steps of this.
    """
    rows: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, one in enumerate(executions):
        rows[one.group, one.kind].append(number)
    others = {group.name: _other(group, global_rank) for group in groups}
    most = sorted(rows, key=lambda key: -len(rows[key]))[:MOST_RECORDS]
    found = []
    for group, kind in sorted(most):
        numbers = rows[group, kind]
        numbered = [number for number in numbers if executions[number].paired_by == "sequence"]
        kept = (numbered or numbers)[-limit:] if limit > 0 else []
        chosen = [executions[number] for number in kept]
        columns = _columns(chosen, critical_ns[kept], edges_ns)
        columns["end_us"] = _ends(chosen, edges_ns, grain_ns)
        if kind in POINT_TO_POINT:
            peers = [one.peer if one.peer >= 0 else others.get(group, -1) for one in chosen]
            columns["peers"] = np.array(peers, dtype=np.int32)
        found.append(CollectiveSeries(group, kind, len(numbers), [one.paired_by for one in chosen], columns))
    return tuple(found)


def _ends(chosen: list[Execution], edges_ns: NDArray[np.int64], grain_ns: int) -> NDArray[np.float64]:
    """Ends in whole steps, microseconds: what lies between would only cost bytes."""
    end = np.array([one.end_ns for one in chosen], dtype=np.int64) - edges_ns[0]
    ends: NDArray[np.float64] = np.rint(end / grain_ns) * (grain_ns / 1e3)
    return ends


def _other(group: ProcessGroup, global_rank: int) -> int:
    rest = [rank for rank in group.ranks if rank != global_rank]
    return rest[0] if len(rest) == 1 else -1


def _columns(
    chosen: list[Execution], critical_ns: NDArray[np.int64], edges_ns: NDArray[np.int64]
) -> dict[str, NDArray[Any]]:
    end = np.array([one.end_ns for one in chosen], dtype=np.int64)
    start = np.array([one.start_ns for one in chosen], dtype=np.int64)
    iteration = np.clip(np.searchsorted(edges_ns, end, side="left") - 1, 0, len(edges_ns) - 2)
    return {
        "sequence": np.array([one.sequence for one in chosen], dtype=np.int64),
        "iteration": iteration.astype(np.int32),
        "duration_us": ((end - start) / 1000.0).astype(np.float32),
        "critical_us": (critical_ns / 1000.0).astype(np.float32),
        "elements": np.array([one.elements for one in chosen], dtype=np.int64),
    }


def _record_pairing(pairing: list[Pairing]) -> Pairing:
    """The weakest of the pairings of executions."""
    kinds = set(pairing)
    if kinds == {"sequence"}:
        return "sequence"
    return "order" if kinds == {"order"} else "none"
