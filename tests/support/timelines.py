"""One iteration of synthetic workers as it went: functions one after another in the order of an iteration."""

from __future__ import annotations

import msgspec
import numpy as np

from eroica.model.pattern import FunctionPattern, Phase, Timeline, Track, WorkerPattern
from eroica.model.series import decode_series, encode_series
from eroica.wire.codec import encode_record

_ORDER: tuple[Phase, ...] = ("input", "forward", "backward", "other", "optimizer")


def with_timeline(pattern: WorkerPattern, iteration: int = 0) -> WorkerPattern:
    """The same pattern with a timeline, and with ends of its collectives that fit to it.

    Args:
        pattern: Of `support.fleet`: two all-reduces an iteration, the second one at its end.
        iteration: Captured iteration to show.
    """
    iterations_us = decode_series(pattern.iteration_us, np.float32).astype(np.float64)
    starts = np.concatenate([[0.0], np.cumsum(iterations_us)])
    rows = [row for row in pattern.functions if _time(row, iteration) > 0]
    rows.sort(key=lambda row: (_ORDER.index(row.key.phase), row.key.kind == "collective"))
    length_us = np.asarray([_time(row, iteration) for row in rows])
    end_us = np.cumsum(length_us)
    critical = Track(
        names=tuple(row.key.name for row in rows),
        kinds=tuple(row.key.kind for row in rows),
        function=encode_series(np.arange(len(rows), dtype=np.int32)),
        start_us=encode_series((end_us - length_us).astype(np.float32), exact=True),
        duration_us=encode_series(length_us.astype(np.float32), exact=True),
    )
    whole = Timeline(
        iteration=iteration,
        start_us=float(starts[iteration]),
        duration_us=float(iterations_us[iteration]),
        critical=critical,
    )
    together = [end for row, end in zip(rows, end_us.tolist(), strict=True) if row.key.kind == "collective"]
    ends = starts[:-1] + next(iter(together), 0.0)
    both = np.stack([ends - 0.3 * iterations_us, ends], axis=1).ravel()
    records = tuple(msgspec.structs.replace(one, end_us=encode_series(both)) for one in pattern.collectives)
    return msgspec.structs.replace(pattern, timeline=encode_record(whole), collectives=records)


def _time(row: FunctionPattern, iteration: int) -> float:
    values = decode_series(row.per_iteration_us, np.float32)
    return float(values[iteration]) if iteration < values.size else 0.0
