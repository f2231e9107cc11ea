"""One iteration of one worker as it went, and its hardware over the window: for pictures, never a conclusion.

A pattern says how much of what there was; a person who doubts it wants to see one iteration. A timeline of a few
kilobytes travels with the pattern, of the same captured iteration on every worker.
"""

from __future__ import annotations

import msgspec

from eroica.model.pattern import FunctionKind, Phase, ThreadRole


class Track(msgspec.Struct, frozen=True, kw_only=True):
    """Slices of one thread or device stream, or of the critical path, in order of start.

    Attributes:
        name: For people: the thread's name, "stream 7", "critical path".
        thread: Which threads; "training" for the critical path.
        names: The functions that occur, as in `FunctionKey.name`; "many short ones" stands for several.
        kinds: Kind of each of `names`.
        phases: Part of the iteration of each of `names`; empty if unknown.
        function: Of each slice, its place in `names`; int32.
        start_us: Of each slice, after the start of the iteration; float32.
        duration_us: Of each slice; float32.
        dropped: Slices that did not get room, the shortest ones.

    Arrays are made by `eroica.model.series.encode_series` and have one value a slice.
    """

    name: str
    thread: ThreadRole
    names: tuple[str, ...]
    kinds: tuple[FunctionKind, ...]
    function: bytes
    start_us: bytes
    duration_us: bytes
    phases: tuple[Phase, ...] = ()
    dropped: int = 0


class ChannelSeries(msgspec.Struct, frozen=True, kw_only=True):
    """One hardware channel over the whole window.

    Attributes:
        name: Of the channel.
        per_s: Distinct values a second that were really measured; lines are not to be drawn finer.
        at_us: Middle of each bin after the start of the window, rising; float32.
        mean: Mean utilization in each bin, 0-1; NaN where nothing was measured. float32.
        highest: Highest value in each bin, 0-1. float32.
    """

    name: str
    per_s: float
    at_us: bytes
    mean: bytes
    highest: bytes


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """What the pictures of one worker are drawn from.

    Attributes:
        iteration: Captured iteration that is shown, 0-based: the same on all workers of a window.
        start_us: Its start after the start of this worker's window, by its own clock.
        duration_us: How long it took.
        critical: What the worker's iteration waited for, from end to end; without overlaps. None if unknown.
        tracks: Threads and streams, the training thread first.
        channels: Hardware over the window.
    """

    iteration: int
    start_us: float
    duration_us: float
    critical: Track | None = None
    tracks: tuple[Track, ...] = ()
    channels: tuple[ChannelSeries, ...] = ()
