"""One iteration of a worker and the hardware over its window as a `Timeline` of a few kilobytes.

The middle captured iteration is shown, so that all workers show the same one. Times are whole steps of a grain (a power
of two, at most 1/16384 of the iteration), which nest as exactly as they did and cost two bytes each. The timeline says
what got no room. Of nested calls the shortest go. On the critical path and on streams short slices that follow each
other become one slice called `MANY_SHORT`, so that no picture shows gaps where there were none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.hardware.store import Samples
from eroica.model.pattern import FunctionKey, FunctionKind, Phase, WorkerPattern
from eroica.model.series import encode_series
from eroica.model.timeline import ChannelSeries, Timeline, Track
from eroica.model.window import Capture
from eroica.settings import Settings
from eroica.summarize.facts import channel_series
from eroica.summarize.staging import Staged
from eroica.summarize.strands import Spans, Strand, Strands, find_strands, join
from eroica.summarize.sweep import Times
from eroica.wire.codec import encode_record

MANY_SHORT = "many short ones"
"""Name of a slice that stands for several; its kind is that of most of its time."""
#: Above this many workers all timelines of a job together would become the largest thing that it keeps.
_LARGE_WORLD = 1024
_LARGE_WORLD_BYTES = 1_500
#: The whole pattern in shares of `pattern_bytes`: rows and executions have theirs, the timeline what they leave.
_WITH_ALL = 1.25
#: Notes that readers of files still add.
_LATER_BYTES = 300
_LONGEST_NOTE = 200
#: Less holds nothing worth looking at.
_LEAST_BYTES = 400
_STEPS = 16_384
#: Short slices are one where nothing that could be seen on a screen lies between them.
_SEEN = 1 / 1000
#: A first guess; rounds that follow take the bytes of the one before.
_BYTES_PER_SLICE = 8
_ROUNDS = 6
#: What a timeline takes beside its slices and channels.
_FRAME_BYTES = 200
_FULL = 0.85
#: Names shrink slower than slices: the number of slices goes down by a power of what the bytes must go down.
_AIM, _SHRINK = 0.96, 1.4
#: Parts of the slices that the critical path and the training thread may have; the others share the rest.
_CRITICAL_SHARE, _TRAINING_SHARE, _OTHERS_SHARE = 0.3, 0.35, 0.35
_KINDS: tuple[FunctionKind, ...] = ("compute", "memory", "collective", "python", "gc", "other")


def shown_iteration(edges_ns: Times) -> tuple[int, int]:
    """Start and end of the iteration that all workers show, from the boundaries of all captured ones."""
    at = (len(edges_ns) - 1) // 2
    return int(edges_ns[at]), int(edges_ns[at + 1])


def add_timeline(
    pattern: WorkerPattern, staged: Staged, capture: Capture, samples: Samples | None, settings: Settings
) -> WorkerPattern:
    """The pattern with its timeline, as far as the rest of it leaves room; whatever fails costs only the timeline.

    Args:
        pattern: All but the timeline.
        staged: What it was made from.
        capture: Of the worker.
        samples: Hardware channels.
        settings: `pattern_bytes` and `timeline_bytes` count here.
    """
    most, world = settings.timeline_bytes, pattern.worker.world_size
    budget = min(most, _LARGE_WORLD_BYTES) if world > _LARGE_WORLD else most
    try:
        room = round(settings.pattern_bytes * _WITH_ALL) - len(encode_record(pattern)) - _LATER_BYTES
        budget = min(budget, room)
        if budget < _LEAST_BYTES:
            return pattern
        edges_ns = staged.scene.edges_ns
        strands = find_strands(staged, shown_iteration(edges_ns))
        timeline = fit_timeline(strands, edges_ns, channel_series(capture, samples), budget)
    except Exception as error:  # noqa: BLE001 - the pattern must leave, whatever a damaged trace does to its picture
        note = f"there is no timeline: {type(error).__name__}: {error}"
        return msgspec.structs.replace(pattern, notes=(*pattern.notes, note[:_LONGEST_NOTE]))
    return msgspec.structs.replace(pattern, timeline=timeline)


@dataclass(frozen=True)
class _Head:
    """Iteration that the timeline shows, and the steps in which its times are told."""

    iteration: int
    start_us: float
    duration_us: float
    origin_ns: int
    grain_us: float


def fit_timeline(
    strands: Strands,
    edges_ns: Times,
    channels: Sequence[ChannelSeries],
    budget: int,
) -> bytes:
    """The encoded timeline of the shown iteration.

    Args:
        strands: Of that iteration.
        edges_ns: Boundaries of all captured iterations, wall clock. int64 [I + 1].
        channels: Hardware over the window, the most telling first.
        budget: Bytes on the wire.

    Returns:
        At most `budget` bytes; empty if there is no room or nothing to show.
    """
    if budget < _LEAST_BYTES or not any(map(len, (strands.critical.spans, *(one.spans for one in strands.others)))):
        return b""
    head = _head(edges_ns)
    kept = _fitting_channels(channels, budget // 3)
    counts = [len(one.spans) for one in (strands.critical, *strands.others)]
    fixed = sum(map(_channel_bytes, kept)) + _FRAME_BYTES
    wanted, best = min(sum(counts), budget // _BYTES_PER_SLICE), b""
    for _ in range(_ROUNDS):
        data = encode_record(_build(strands, _shares(counts, wanted), head, kept))
        if len(data) <= budget:
            best = max(best, data, key=len)
            if wanted >= sum(counts) or len(data) >= _FULL * budget:
                break
        ratio = _AIM * (budget - fixed) / max(len(data) - fixed, 1)
        wanted = min(int(wanted * min(ratio, ratio**_SHRINK)), sum(counts))
    return best


def _head(edges_ns: Times) -> _Head:
    iteration = (len(edges_ns) - 1) // 2
    start, end = shown_iteration(edges_ns)
    duration_us = (end - start) / 1e3
    grain_us = 2.0 ** math.ceil(math.log2(duration_us / _STEPS))
    return _Head(iteration, (start - int(edges_ns[0])) / 1e3, duration_us, start, grain_us)


def _shares(counts: Sequence[int], wanted: int) -> list[int]:
    """Divide the slices among strands by weight; the training thread gets what the others do not need."""
    others = _OTHERS_SHARE / max(len(counts) - 2, 1)
    weights = (_CRITICAL_SHARE, _TRAINING_SHARE, *[others] * (len(counts) - 2))
    shares = [min(count, math.ceil(wanted * weight)) for count, weight in zip(counts, weights, strict=True)]
    shares[1] = min(counts[1], shares[1] + max(wanted - sum(shares), 0))
    return shares


def _build(strands: Strands, counts: Sequence[int], head: _Head, channels: Sequence[ChannelSeries]) -> Timeline:
    both = zip((strands.critical, *strands.others), counts, strict=True)
    critical, *others = (_track(one, count, strands.keys, head) for one, count in both)
    return Timeline(
        iteration=head.iteration,
        start_us=head.start_us,
        duration_us=head.duration_us,
        critical=critical if critical.names else None,
        tracks=tuple(one for one in others if one.names),
        channels=tuple(channels),
    )


# --- slices ---


def _track(strand: Strand, most: int, keys: Sequence[FunctionKey], head: _Head) -> Track:
    """A strand as at most so many of its longest slices; of equally long ones the outer one comes first.

    Many short ones as one have -1 less the place of their kind in `_KINDS` as function.
    """
    spans, grain_ns = strand.spans, head.grain_us * 1e3
    start, end = (np.rint((side - head.origin_ns) / grain_ns).astype(np.int64) for side in (spans.start, spans.end))
    slices = Spans(start, end, spans.function)
    keep = np.zeros(len(spans), dtype=np.bool_)
    keep[np.argsort(spans.start - spans.end, kind="stable")[:most]] = True
    keep &= start < end
    shown = slices.chosen(keep)
    if strand.is_flat and not keep.all():
        more = _many_short(spans, slices, np.flatnonzero(~keep), keys, head)
        more = more.chosen(np.argsort(more.start - more.end, kind="stable")[:most])
        shown = join((shown, more.chosen(more.start < more.end)))
    shown = shown.chosen(np.lexsort((-shown.end, shown.start)))
    used, place = np.unique(shown.function, return_inverse=True)
    named = [_named(number, keys) for number in used.tolist()]
    start_us, duration_us = (
        (steps * head.grain_us).astype(np.float32) for steps in (shown.start, shown.end - shown.start)
    )
    return Track(
        name=strand.name,
        thread=strand.thread,
        names=tuple(name for name, _, _ in named),
        kinds=tuple(kind for _, kind, _ in named),
        phases=tuple(phase for _, _, phase in named),
        function=encode_series(place.astype(np.int32)),
        start_us=encode_series(start_us, exact=True),
        duration_us=encode_series(duration_us, exact=True),
        dropped=int((~keep).sum()),
    )


def _many_short(spans: Spans, slices: Spans, rows: NDArray[np.intp], keys: Sequence[FunctionKey], head: _Head) -> Spans:
    """Join rows that follow each other into one slice; a single row stays as it is."""
    gap_ns = head.duration_us * 1e3 * _SEEN
    apart = (np.diff(rows) > 1) | (spans.start[rows[1:]] - spans.end[rows[:-1]] > gap_ns)
    begins = np.append(True, apart)
    first, last = rows[begins], rows[np.append(apart, True)]
    kind = np.array([_KINDS.index(key.kind) for key in keys])[spans.function[rows]]
    time = np.bincount(
        (np.cumsum(begins) - 1) * len(_KINDS) + kind,
        weights=(spans.end - spans.start)[rows].astype(np.float64),
        minlength=len(first) * len(_KINDS),
    )
    mostly = time.reshape(len(first), len(_KINDS)).argmax(axis=1)
    function = np.where(first == last, slices.function[first], -1 - mostly).astype(np.int32)
    return Spans(slices.start[first], slices.end[last], function)


def _named(number: int, keys: Sequence[FunctionKey]) -> tuple[str, FunctionKind, Phase]:
    """Name, kind and phase of a slice's function."""
    if number < 0:
        return MANY_SHORT, _KINDS[-1 - number], "other"
    return keys[number].name, keys[number].kind, keys[number].phase


# --- channels ---


def _fitting_channels(channels: Sequence[ChannelSeries], budget: int) -> tuple[ChannelSeries, ...]:
    """Keep as many of the first channels as the budget holds."""
    sizes = accumulate(map(_channel_bytes, channels))
    return tuple(one for one, size in zip(channels, sizes, strict=True) if size <= budget)


def _channel_bytes(one: ChannelSeries) -> int:
    return len(one.at_us) + len(one.mean) + len(one.highest) + len(one.name)
