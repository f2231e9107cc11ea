"""Rebuild a window whose worker ended before it handed it over: shared memory tells when the worker stepped."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from eroica.agent.roster import LocalWorker
from eroica.model.window import Capture, ClockPair
from eroica.wire import beat
from eroica.wire.messages import OrderMessage
from eroica.wire.places import write_private

_BEGUN = ("open", "closed")


def leave_capture(local: LocalWorker, order: OrderMessage, path: Path) -> bool:
    """Write the capture of a worker that has ended, without a trace: its window's iterations, as far as it came.

    Args:
        local: The worker.
        order: The window.
        path: Where its capture belongs.

    Returns:
        Whether there was a whole iteration, and so a capture.

    Raises:
        OSError: It cannot be written.
    """
    result = local.result()
    if (result.window_id, result.kind) != (order.window_id, order.kind) or result.status not in _BEGUN:
        return False
    last, boundaries_ns = _iterations(local.reader, order.first_iteration, result.last_iteration)
    if len(boundaries_ns) < 2:
        return False
    capture = Capture(
        worker=local.worker,
        window_id=order.window_id,
        first_iteration=last - len(boundaries_ns) + 1,
        last_iteration=last,
        boundaries_ns=tuple(boundaries_ns),
        clocks=(_clock_pair(),),
        training_thread_id=local.training_thread_id,
        training_thread_ident=local.training_thread_ident,
    )
    write_private(path, msgspec.json.encode(capture))
    return True


def _iterations(reader: beat.BeatReader, first: int, last: int) -> tuple[int, list[int]]:
    """The last whole iteration after `first` and up to `last`, and the boundaries up to it, on CLOCK_MONOTONIC."""
    now = reader.beat()
    if now is None:
        return 0, []
    last = min(last, now.iteration)
    ends_ns = [now.iteration_end_ns - sum(reader.durations(last, now.iteration))]
    for duration_ns in reversed(reader.durations(first, last)):
        if not duration_ns:  # its start is unknown
            break
        ends_ns.append(ends_ns[-1] - duration_ns)
    return last, ends_ns[::-1]


def _clock_pair() -> ClockPair:
    return ClockPair(realtime_ns=time.time_ns(), monotonic_ns=time.monotonic_ns())
