"""One trace file boiled down: what travels from the process that read it to the one that compares."""

from __future__ import annotations

import msgspec

from eroica.model.pattern import WorkerPattern


class TraceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What one trace file holds.

    Attributes:
        path: The file.
        rank: Global rank as the trace itself says, -1 if it does not.
        world_size: Workers of the job as the trace says, 0 if it does not.
        job: Name or id of the job as the trace says, "" if it does not.
        host: Host name as the trace says, "" if it does not.
        start_ns: First boundary of its iterations by its own wall clock, nanoseconds; 0 if there are none.
        end_ns: Last boundary.
        found_by: How its iterations were found: "profiler steps", "optimizer steps", "loader", "repetition", or "span"
            if there are none and the whole trace counts as one.
        steps: First and last number of the profiler's steps that count, (-1, -1) where they have no numbers.
        pattern: The worker's behavior; None where the file could not be used.
        events: Events read.
        bytes_read: Bytes read, unpacked.
        seconds: Time that reading and summarizing took.
        error: Why there is no pattern, "" if there is one.
    """

    path: str
    rank: int = -1
    world_size: int = 0
    job: str = ""
    host: str = ""
    start_ns: int = 0
    end_ns: int = 0
    found_by: str = "span"
    steps: tuple[int, int] = (-1, -1)
    pattern: WorkerPattern | None = None
    events: int = 0
    bytes_read: int = 0
    seconds: float = 0.0
    error: str = ""
