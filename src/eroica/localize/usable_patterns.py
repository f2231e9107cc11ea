"""Check patterns from disk or from strangers, and leave out, with a note, those that cannot be laid side by side."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from eroica.engine import HERE, Engine
from eroica.errors import InputError
from eroica.model.pattern import CollectiveRecord, WorkerPattern
from eroica.model.rows import RowTable
from eroica.model.series import decode_series
from eroica.report.words import worker_list

_EXECUTION = {"sequence": np.int64, "iteration": np.int32, "duration_us": np.float32, "critical_us": np.float32}
#: Patterns that are looked through in one step.
_TOGETHER = 256
_OPTIONAL = {"elements": np.int64, "peers": np.int32, "end_us": np.float64}


def leave_out_damaged(
    patterns: Sequence[WorkerPattern], engine: Engine = HERE
) -> tuple[tuple[WorkerPattern, ...], tuple[str, ...]]:
    """Patterns whose series can be decoded, are possible and fit together.

    Args:
        patterns: Any.
        engine: Where they are looked through.

    Returns:
        These, and a note on the others, if there are any.
    """
    some = (patterns[start : start + _TOGETHER] for start in range(0, len(patterns), _TOGETHER))
    flags = chain.from_iterable(engine.map(are_whole, some))
    kept = tuple(pattern for pattern, is_kept in zip(patterns, flags, strict=True) if is_kept)
    whole = {id(pattern) for pattern in kept}
    damaged = [pattern.worker.global_rank for pattern in patterns if id(pattern) not in whole]
    return kept, (f"patterns with damaged series were left out: {worker_list(damaged)}",) if damaged else ()


def are_whole(patterns: Sequence[WorkerPattern]) -> list[bool]:
    """Return whether every series of each pattern can be decoded."""
    return list(map(is_whole, patterns))


def is_whole(pattern: WorkerPattern) -> bool:
    """Every series of it is one."""
    try:
        times = [decode_series(data, np.float32) for data in (pattern.iteration_us, pattern.wait_us)]
        rows = RowTable.of(pattern.functions)
        times += [decode_series(rows.series_of(at), np.float32) for at in range(len(rows))]
        fitting = all(map(_fits_together, pattern.collectives))
    except InputError:
        return False
    return fitting and all(bool((np.isfinite(series) & (series >= 0)).all()) for series in times)


def _fits_together(record: CollectiveRecord) -> bool:
    columns = [decode_series(getattr(record, name), kind) for name, kind in _EXECUTION.items()]
    optional = [decode_series(getattr(record, name), kind) for name, kind in _OPTIONAL.items()]
    size = columns[0].size
    if any(column.size != size for column in columns) or any(column.size not in (0, size) for column in optional):
        return False
    return all(bool((np.isfinite(column) & (column >= 0)).all()) for column in columns[2:])
