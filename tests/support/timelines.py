"""One iteration of synthetic workers as it went: what a pattern's picture of time is drawn from.

A fleet's pattern tells how long each function took in each iteration, not when. Here they run one after another in
the order of an iteration (input, forward, backward, the collective, optimizer), which is what the fleet assumes.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from eroica.model.pattern import FunctionPattern, Phase, WorkerPattern
from eroica.model.series import decode_series, encode_series
from eroica.model.timeline import ChannelSeries, Timeline, Track
from eroica.wire.codec import encode_record

_ORDER: tuple[Phase, ...] = ("input", "forward", "backward", "other", "optimizer")
#: Slices that one function of one iteration is cut into, at most: enough to look like a trace, few enough for a record.
_MOST_PIECES = 6


class _Slice(msgspec.Struct):
    name: str
    kind: str
    start_us: float
    duration_us: float
    thread: str


def with_timeline(pattern: WorkerPattern, iteration: int = 0, seed: int = 0) -> WorkerPattern:
    """The same pattern with a timeline, and with ends of its collectives that fit to it.

    Args:
        pattern: Of `support.fleet`: two all-reduces an iteration, the second one at its end.
        iteration: Captured iteration to show.
        seed: Of how functions are cut into pieces, and of the hardware's noise.
    """
    random = np.random.default_rng((seed, pattern.worker.global_rank))
    iterations_us = decode_series(pattern.iteration_us, np.float32).astype(np.float64)
    starts = np.concatenate([[0.0], np.cumsum(iterations_us)])
    slices = _laid_out(pattern, iteration, random)
    ends = starts[:-1] + next((one.start_us + one.duration_us for one in slices if one.kind == "collective"), 0.0)
    timeline = Timeline(
        iteration=iteration,
        start_us=float(starts[iteration]),
        duration_us=float(iterations_us[iteration]),
        critical=_track("critical path", "training", slices),
        tracks=_tracks(slices, pattern.has_accelerator),
        channels=_channels(pattern, random),
    )
    return msgspec.structs.replace(
        pattern,
        timeline=encode_record(timeline),
        collectives=tuple(
            msgspec.structs.replace(record, end_us=encode_series(_both_ends(ends, iterations_us)))
            for record in pattern.collectives
        ),
    )


def _both_ends(ends: np.ndarray, iterations_us: np.ndarray) -> np.ndarray:
    """Of the collective behind backward, and of the one at its end."""
    return np.stack([ends - 0.3 * iterations_us, ends], axis=1).ravel()


def _laid_out(pattern: WorkerPattern, iteration: int, random: np.random.Generator) -> list[_Slice]:
    """All critical functions of an iteration one after another, long ones in pieces between each other."""
    slices: list[_Slice] = []
    now = 0.0
    rows = [row for row in pattern.functions if row.per_iteration_us]
    plain = [row for row in rows if row.key.kind != "collective"]
    together = [row for row in rows if row.key.kind == "collective"]
    for phase in _ORDER:
        for row, piece_us in _pieces([row for row in plain if row.key.phase == phase], iteration, random):
            slices.append(_Slice(row.key.name, row.key.kind, now, piece_us, row.key.thread))
            now += piece_us
        if phase == "backward":
            for row in together:
                time_us = _time(row, iteration)
                slices.append(_Slice(row.key.name, row.key.kind, now, time_us, "collective"))
                now += time_us
    return slices


def _time(row: FunctionPattern, iteration: int) -> float:
    values = decode_series(row.per_iteration_us, np.float32)
    return float(values[iteration]) if iteration < values.size else 0.0


def _pieces(
    rows: Sequence[FunctionPattern], iteration: int, random: np.random.Generator
) -> list[tuple[FunctionPattern, float]]:
    """What is sampled stays whole, operators are cut and mixed."""
    pieces: list[tuple[FunctionPattern, float]] = []
    for row in rows:
        time_us = _time(row, iteration)
        count = 1 if row.key.kind in ("python", "gc") else _MOST_PIECES
        if time_us > 0:
            pieces += [(row, time_us / count)] * count
    return [pieces[int(at)] for at in random.permutation(len(pieces))]


def _tracks(slices: Sequence[_Slice], has_accelerator: bool) -> tuple[Track, ...]:
    """The training thread, the device's stream where there is one, and the collective's thread."""
    beside = [one for one in slices if one.kind == "collective"]
    own = [one for one in slices if one.kind != "collective"]
    device = [one for one in own if one.thread == "device"]
    tracks = [_track("MainThread", "training", [one for one in own if one not in device])]
    if has_accelerator:
        tracks.append(_track("stream 7", "device", device))
    tracks.append(_track("pt_gloo_runloop", "collective", beside))
    return tuple(tracks)


def _track(name: str, thread: str, slices: Sequence[_Slice]) -> Track:
    kinds = {one.name: one.kind for one in slices}
    names = {one: at for at, one in enumerate(kinds)}
    return Track(
        name=name,
        thread=thread,  # type: ignore[arg-type]
        names=tuple(names),
        kinds=tuple(kinds.values()),  # type: ignore[arg-type]
        function=encode_series(np.asarray([names[one.name] for one in slices], dtype=np.int32)),
        start_us=encode_series(np.asarray([one.start_us for one in slices], dtype=np.float32), exact=True),
        duration_us=encode_series(np.asarray([one.duration_us for one in slices], dtype=np.float32)),
    )


def _channels(pattern: WorkerPattern, random: np.random.Generator) -> tuple[ChannelSeries, ...]:
    """The processor ten times a second, the network five times, with a gap."""
    series = []
    for name, per_s, middle in (("cpu", 10.0, 0.8), ("nic", 5.0, 0.3)):
        count = max(int(pattern.duration_s * per_s), 2)
        mean = np.clip(random.normal(middle, 0.08, count), 0, 1).astype(np.float32)
        if name == "nic" and count > 8:
            mean[count // 2] = np.nan
        series.append(
            ChannelSeries(
                name=name,
                per_s=per_s,
                at_us=encode_series(((np.arange(count) + 0.5) / per_s * 1e6).astype(np.float32), exact=True),
                mean=encode_series(mean),
                highest=encode_series(np.clip(mean + 0.1, 0, 1)),
            )
        )
    return tuple(series)
