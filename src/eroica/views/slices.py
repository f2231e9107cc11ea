"""Slices of one track as arrays, as far as a picture has room for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from eroica.errors import InputError
from eroica.model.series import decode_series
from eroica.model.timeline import Track


@dataclass(frozen=True, kw_only=True, eq=False)
class Slices:
    """What ran on one thread or stream, in order of start.

    Attributes:
        names: Functions that occur; not clean yet.
        kinds: Of each.
        function: Of each slice, its place in `names`. int64.
        start_ms: After the start of the iteration. float64.
        duration_ms: float64.
        depth: How many slices enclose it. int64.
    """

    names: Sequence[str]
    kinds: Sequence[str]
    function: NDArray[np.int64]
    start_ms: NDArray[np.float64]
    duration_ms: NDArray[np.float64]
    depth: NDArray[np.int64]

    def name(self, at: int) -> str:
        """Of one slice."""
        return self.names[int(self.function[at])]

    def kind(self, at: int) -> str:
        """Of one slice."""
        return self.kinds[int(self.function[at])]

    def totals(self) -> dict[str, float]:
        """Milliseconds of each function; of the critical path, whose slices do not overlap."""
        sums = np.bincount(self.function, weights=self.duration_ms, minlength=len(self.names))
        return {name: float(total) for name, total in zip(self.names, sums, strict=True) if total > 0}


def joined(slices: Slices, gap_ms: float) -> Slices:
    """Slices of one Python function with next to nothing between them as one, which lies under what is between.

    Args:
        slices: In order of start.
        gap_ms: They lie at most so far apart.
    """
    kept: list[int] = []
    ends: list[float] = []
    latest: dict[tuple[int, int], int] = {}
    for at in range(slices.start_ms.size):
        start, end = float(slices.start_ms[at]), float(slices.start_ms[at] + slices.duration_ms[at])
        which = int(slices.depth[at]), int(slices.function[at])
        before = latest.get(which, -1)
        if before >= 0 and slices.kind(at) == "python" and start - ends[before] <= gap_ms:
            ends[before] = max(ends[before], end)
            continue
        latest[which] = len(kept)
        kept.append(at)
        ends.append(end)
    return replace(
        slices,
        function=slices.function[kept],
        start_ms=slices.start_ms[kept],
        duration_ms=np.array(ends) - slices.start_ms[kept],
        depth=slices.depth[kept],
    )


def read_slices(track: Track, most: int, depths: int = 255) -> Slices | None:
    """The longest slices of a track; None where its columns are damaged or do not fit to each other.

    Args:
        track: As it came.
        most: Slices at most.
        depths: Levels of nesting at most.
    """
    try:
        function, start, long, depth = (
            decode_series(data, kind).astype(np.float64)
            for data, kind in (
                (track.function, np.int32),
                (track.start_us, np.float32),
                (track.duration_us, np.float32),
                (track.depth, np.uint8),
            )
        )
    except InputError:
        return None
    depth = depth if depth.size else np.zeros(start.size)
    if len({function.size, start.size, long.size, depth.size}) != 1 or len(track.kinds) < len(track.names):
        return None
    whole = np.isfinite(start) & np.isfinite(long) & (long >= 0) & (depth < depths)
    whole &= (function >= 0) & (function < len(track.names))
    kept = np.flatnonzero(whole)
    kept = np.sort(kept[np.argsort(-long[kept], kind="stable")[:most]])
    return Slices(
        names=track.names,
        kinds=track.kinds,
        function=function[kept].astype(np.int64),
        start_ms=start[kept] / 1e3,
        duration_ms=long[kept] / 1e3,
        depth=depth[kept].astype(np.int64),
    )
