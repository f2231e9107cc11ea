"""The critical path of one iteration of one worker: for pictures, never a conclusion.

A pattern says how much of what there was; a person who doubts it wants to see one iteration. It travels with the
pattern, of the same captured iteration on every worker.
"""

from __future__ import annotations

import msgspec

from eroica.model.pattern import FunctionKind, Phase


class Track(msgspec.Struct, frozen=True, kw_only=True):
    """Slices of the critical path, in order of start.

    Attributes:
        name: For people: "critical path".
        names: The functions that occur, as in `FunctionKey.name`.
        kinds: Kind of each of `names`.
        phases: Part of the iteration of each of `names`; empty if unknown.
        function: Of each slice, its place in `names`; int32.
        start_us: Of each slice, after the start of the iteration; float32.
        duration_us: Of each slice; float32.
        dropped: Slices that did not get room, the shortest ones.

    Arrays are made by `eroica.model.series.encode_series` and have one value a slice.
    """

    name: str
    names: tuple[str, ...]
    kinds: tuple[FunctionKind, ...]
    function: bytes
    start_us: bytes
    duration_us: bytes
    phases: tuple[Phase, ...] = ()
    dropped: int = 0


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """What the picture of one worker is drawn from where its raw trace is gone.

    Attributes:
        iteration: Captured iteration that is shown, 0-based: the same on all workers of a window.
        start_us: Its start after the start of this worker's window, by its own clock.
        duration_us: How long it took.
        critical: What the worker's iteration waited for, from end to end; without overlaps. None if unknown.
    """

    iteration: int
    start_us: float
    duration_us: float
    critical: Track | None = None
