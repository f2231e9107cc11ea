"""Chosen workers of one window as one trace for ui.perfetto.dev or chrome://tracing, on one time axis.

Each worker is a process: critical path, threads, streams and hardware. The ends of collectives align the workers'
clocks, because members leave a collective within microseconds. Raw traces give all captured iterations; without them,
patterns give one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from eroica import __version__
from eroica.errors import InputError, UsageError
from eroica.localize.axis import Place, TimeAxis, fit_axis
from eroica.model.pattern import Timeline, WorkerPattern
from eroica.model.words import clean, worker_list
from eroica.views.lanes import STEP_NS, Drawn, draw_timeline, write_trace
from eroica.views.material import Material
from eroica.wire.codec import decode_record

#: Workers shown by default, and at most: viewers take minutes over more.
MOST_UNASKED = 8
MOST_ASKED = 64
#: Of more workers, only the chosen ones are asked how clocks run: of all it takes seconds.
_MOST_FOR_AXIS = 2_000
_UNKNOWN = TimeAxis(places={}, uncertainty_ns=0.0, executions=0)
Whole = Callable[[WorkerPattern], Drawn | None]


def choose_workers(material: Material, asked: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the workers asked for, else the culprits, each with a peer.

    Raises:
        UsageError: A worker has no pattern, or they are too many.
        InputError: There is no pattern.
    """
    there = sorted(material.places)
    if not there:
        raise InputError("there is nothing to draw a trace from: no patterns were kept of this window")
    unknown = [rank for rank in asked if rank not in material.places]
    if unknown:
        raise UsageError(f"--worker {unknown[0]}: this window has no pattern of it; it has {worker_list(there)}")
    if len(set(asked)) > MOST_ASKED:
        raise UsageError(f"{len(set(asked))} workers are too many for one trace; name at most {MOST_ASKED}")
    culprits = [rank for rank in material.culprits if rank in material.places][: MOST_UNASKED // 2]
    looked_at = culprits or [rank for rank in (material.suspect(),) if rank is not None]
    unasked = (one for rank in looked_at for one in (rank, material.peer_of(rank)) if one is not None)
    return tuple(dict.fromkeys(asked or unasked))


def align(material: Material, ranks: Sequence[int]) -> TimeAxis:
    """Return the clocks of some workers, read from all; of many or damaged patterns, from those of these workers."""
    chosen = [material.patterns[material.places[rank]] for rank in ranks]
    for asked in (material.patterns, chosen) if len(material.patterns) <= _MOST_FOR_AXIS else (chosen,):
        with contextlib.suppress(InputError):
            axis = fit_axis(asked)
            found = {rank: axis.places[rank] for rank in ranks if rank in axis.places}
            worst_ns = max((place.uncertainty_ns for place in found.values()), default=0.0)
            return msgspec.structs.replace(axis, places=found, uncertainty_ns=worst_ns)
    return _UNKNOWN


def write_perfetto(
    path: Path, material: Material, ranks: Sequence[int], whole: Whole, axis: TimeAxis | None = None
) -> tuple[str, ...]:
    """Write the trace of some workers, from top to bottom.

    Args:
        path: .json or .json.gz.
        material: Verdict and patterns.
        ranks: Workers, each with a pattern.
        whole: Reads the raw trace of a worker; None if it is gone. May raise InputError.
        axis: Their clocks; None: as `align` finds them.

    Returns:
        Notes on what it shows, how well clocks fit and what is missing.

    Raises:
        InputError: None of these workers has anything to show.
        OSError: The file cannot be written.
    """
    notes: list[str] = []
    drawn = _drawn(material, ranks, whole, notes)
    if not drawn:
        raise InputError(f"there is nothing to draw a trace from: {notes[0] if notes else 'no worker was chosen'}")
    axis = align(material, ranks) if axis is None else axis
    places, known = _placed(drawn, axis, notes)
    fits, facts = _fit(drawn, known, axis)
    notes[:0] = [_shown(material, drawn), fits]
    titles = {rank: (clean(material.worker_name(rank), 200), _label(material, rank, drawn, known)) for rank in drawn}
    write_trace(path, drawn, places, titles, {**_about(material, drawn, notes), **facts})
    return tuple(notes)


def _drawn(material: Material, ranks: Sequence[int], whole: Whole, notes: list[str]) -> dict[int, Drawn]:
    found: dict[int, Drawn] = {}
    for rank in ranks:
        pattern = material.patterns[material.places[rank]]
        try:
            one = whole(pattern)
        except InputError as error:
            notes.append(f"the raw trace of worker {rank} is left out: {error}")
            one = None
        try:
            if one is None and pattern.timeline:
                one = draw_timeline(decode_record(pattern.timeline, Timeline))
        except InputError as error:
            notes.append(f"worker {rank} is left out: {error}")
            continue
        if one is None:
            notes.append(f"worker {rank} is left out: its pattern carries no timeline, and its raw trace is gone")
        else:
            found[rank] = one
    return found


# --- one axis ---


def _placed(drawn: Mapping[int, Drawn], axis: TimeAxis, notes: list[str]) -> tuple[dict[int, Place], list[int]]:
    """Return where each worker's window lies, and whose places are known; the others begin with the first one."""
    placed: dict[int, Place] = {}
    known: list[int] = []
    for rank in sorted(drawn, key=lambda rank: rank not in axis.places):
        one = drawn[rank]
        place = _by_host(one, [(drawn[other], placed[other]) for other in placed]) or axis.places.get(rank)
        if place is None and placed:
            why = axis.unplaced.get(rank, "no collective tells how its clock runs")
            notes.append(f"worker {rank} is not aligned with the others: {why}; it begins where they begin")
            first = next(iter(placed))
            begin = placed[first].offset_ns + (1 + placed[first].drift) * drawn[first].start_ns
            placed[rank] = Place(offset_ns=begin - one.start_ns, drift=0.0, uncertainty_ns=0.0)
            continue
        placed[rank] = place or Place(offset_ns=-one.start_ns, drift=0.0, uncertainty_ns=0.0)
        known.append(rank)
    return placed, sorted(known, key=list(drawn).index)


def _by_host(one: Drawn, others: Sequence[tuple[Drawn, Place]]) -> Place | None:
    """Return the place by the clock of a host that another worker shares."""
    for other, place in others:
        if one.clock is not None and other.clock is not None and one.clock[0] == other.clock[0]:
            later_ns = (1 + place.drift) * (one.clock[1] - other.clock[1])
            return msgspec.structs.replace(place, offset_ns=place.offset_ns + later_ns)
    return None


def _fit(drawn: Mapping[int, Drawn], known: Sequence[int], axis: TimeAxis) -> tuple[str, dict[str, object]]:
    """Return how well the clocks fit: a sentence, and facts for programs."""
    hosts = {one.clock[0] if one.clock is not None else None for one in drawn.values()}
    by, within_us = f"ends of {axis.executions} collectives", round(axis.uncertainty_ns / 1e3, 3)
    if len(known) < 2:
        by, within_us = "nothing", 0.0
        words = "the workers' clocks could not be brought together: compare lengths, not moments"
        words = words if len(drawn) > 1 else "one worker alone, by its own clock"
    elif len(hosts) == 1 and None not in hosts:
        by, within_us = "the clock of their host", 0.0
        words = f"{worker_list(known)} ran on one host and lie on its clock"
    else:
        within = f"{within_us / 1e3:.3g} ms" if within_us >= 1000 else f"{within_us:.3g} µs"
        words = (
            f"{worker_list(known)} lie on one axis by the ends of {axis.executions:,} collectives; nine of ten ends "
            f"agree within {within}, so smaller differences between workers mean nothing"
        )
    return words, {"aligned_by": by, "aligned_workers": ", ".join(map(str, known)), "uncertainty_us": within_us}


def _shown(material: Material, drawn: Mapping[int, Drawn]) -> str:
    """Return a sentence on what the trace shows."""
    words = []
    for is_whole, what in ((True, "full traces"), (False, "one iteration")):
        ranks = [rank for rank, one in drawn.items() if one.is_whole == is_whole]
        if not ranks:
            continue
        firsts = {rank: material.patterns[material.places[rank]].first_iteration for rank in ranks}
        numbers = [firsts[rank] + at for rank in ranks for at in drawn[rank].iterations]
        low, high = min(numbers), max(numbers)
        span = f"iteration {low}" if low == high else f"iterations {low}–{high}"
        dropped = sum(drawn[rank].dropped for rank in ranks)
        short = f"; the {dropped:,} shortest slices had no room" if dropped else ""
        words.append(f"{what} of {worker_list(ranks)}, {span}{short}")
    return "; ".join(words)


# --- the file ---


def _label(material: Material, rank: int, drawn: Mapping[int, Drawn], known: Sequence[int]) -> str:
    """Return a few words beside the name of a worker."""
    device = material.patterns[material.places[rank]].worker.device
    words = [
        "culprit" if rank in material.culprits else "",
        clean(device, 40) if device != "cpu" else "",
        "" if rank in known else "not aligned",
        "" if drawn[rank].is_whole else "one iteration",
    ]
    return ", ".join(filter(None, words))


def _about(material: Material, drawn: Mapping[int, Drawn], notes: Sequence[str]) -> dict[str, object]:
    """Return what viewers show under "info and stats"."""
    verdict = material.verdict
    return {
        "tool": f"Eroica {__version__}",
        "job": verdict.job,
        "window": str(material.window_id),
        "verdict": verdict.verdict,
        "summary": verdict.summary,
        "workers": ", ".join(map(str, drawn)),
        "resolution_ns": STEP_NS,
        "notes": list(notes),
    }
