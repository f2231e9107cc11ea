"""Chosen workers of one window as one trace for ui.perfetto.dev or chrome://tracing, on one time axis.

Each worker is a process: critical path, threads, streams and hardware. The ends of collectives align the workers'
clocks, because members leave a collective within microseconds. Raw traces give all captured iterations; without them,
patterns give one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from eroica import __version__
from eroica.errors import InputError, UsageError
from eroica.model.pattern import WorkerPattern
from eroica.model.words import clean, worker_list
from eroica.views.lanes import STEP_NS, Drawn, OnAxis, Process, draw_timeline, write_trace
from eroica.views.material import Material

#: Workers shown by default, and at most: viewers take minutes over more.
MOST_UNASKED = 8
MOST_ASKED = 64
Whole = Callable[[WorkerPattern], Drawn | None]


@dataclass(frozen=True)
class Alignment:
    """How workers' clocks fit together.

    Attributes:
        places: Global rank -> place of its window.
        uncertainty_us: 90 % of the ends of one collective lie within this of each other.
        executions: Number of collectives used.
        unplaced: Global rank -> why it has no place.
    """

    places: Mapping[int, OnAxis] = field(default_factory=dict)
    uncertainty_us: float = 0.0
    executions: int = 0
    unplaced: Mapping[int, str] = field(default_factory=dict)


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
    pairs = [(culprit, material.peer_of(culprit)) for culprit in culprits]
    pairs = pairs or list(filter(None, [material.culprit_and_peer()]))
    return tuple(dict.fromkeys(asked or (rank for pair in pairs for rank in pair if rank is not None)))


def write_perfetto(
    path: Path, material: Material, ranks: Sequence[int], alignment: Alignment, whole: Whole
) -> tuple[str, ...]:
    """Write the trace of some workers, from top to bottom.

    Args:
        path: .json or .json.gz.
        material: Verdict and patterns.
        ranks: Workers, each with a pattern.
        alignment: Their clocks.
        whole: Reads the raw trace of a worker; None if it is gone. May raise InputError.

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
    placed, known = _placed(drawn, alignment, notes)
    fits, axis = _axis(drawn, known, alignment)
    notes[:0] = [_shown(material, drawn), fits]
    processes = [_process(material, rank, one, placed[rank], rank in known) for rank, one in drawn.items()]
    write_trace(path, processes, {**_about(material, drawn, notes), **axis})
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
            timeline = material.timeline(rank) if one is None else None
            one = draw_timeline(timeline) if timeline is not None else one
        except InputError as error:
            notes.append(f"worker {rank} is left out: {error}")
            continue
        if one is None:
            notes.append(f"worker {rank} is left out: its pattern carries no timeline, and its raw trace is gone")
        else:
            found[rank] = one
    return found


# --- one axis ---


def _placed(
    drawn: Mapping[int, Drawn], alignment: Alignment, notes: list[str]
) -> tuple[dict[int, OnAxis], frozenset[int]]:
    """Return where each worker's window lies, and whose places are known; the others begin with the first one."""
    order = sorted(drawn, key=lambda rank: rank not in alignment.places)
    begin, known = 0.0, list[int]()
    placed: dict[int, OnAxis] = {}
    for rank in order:
        one = drawn[rank]
        place = _by_host(one, [(drawn[other], placed[other]) for other in placed]) or alignment.places.get(rank)
        if place is not None:
            known.append(rank)
        elif placed:
            why = alignment.unplaced.get(rank, "no collective tells how its clock runs")
            notes.append(f"worker {rank} is not aligned with the others: {why}; it begins where they begin")
        placed[rank] = place or OnAxis(offset_ns=begin - one.start_ns)
        if rank == order[0]:
            begin = placed[rank].offset_ns + placed[rank].rate * one.start_ns
    return placed, frozenset((*known, *order[:1]))


def _by_host(one: Drawn, others: Sequence[tuple[Drawn, OnAxis]]) -> OnAxis | None:
    """Return the place by the clock of a host that another worker shares."""
    for other, place in others:
        if one.clock is not None and other.clock is not None and one.clock[0] == other.clock[0]:
            return OnAxis(place.offset_ns + place.rate * (one.clock[1] - other.clock[1]), place.rate)
    return None


def _axis(drawn: Mapping[int, Drawn], known: frozenset[int], alignment: Alignment) -> tuple[str, dict[str, object]]:
    """Return how well the clocks fit: a sentence, and facts for programs."""
    clocks = [one.clock for one in drawn.values()]
    together = [rank for rank in drawn if rank in known]
    by, uncertainty_us = f"ends of {alignment.executions} collectives", round(alignment.uncertainty_us, 3)
    within = f"{uncertainty_us / 1e3:.3g} ms" if uncertainty_us >= 1000 else f"{uncertainty_us:.3g} µs"
    words = (
        f"{worker_list(together)} lie on one axis by the ends of {alignment.executions:,} collectives; nine of ten "
        f"ends agree within {within}, so smaller differences between workers mean nothing"
    )
    if None not in clocks and len({clock[0] for clock in clocks if clock is not None}) == 1:
        by, uncertainty_us = "the clock of their host", 0.0
        words = f"{worker_list(together)} ran on one host and lie on its clock"
    if len(together) < 2:
        by, uncertainty_us = "nothing", 0.0
        words = "the workers' clocks could not be brought together: compare lengths, not moments"
    if len(drawn) == 1:
        words = "one worker alone, by its own clock"
    ranks = ", ".join(map(str, together))
    return words, {"aligned_by": by, "aligned_workers": ranks, "uncertainty_us": uncertainty_us}


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


def _process(material: Material, rank: int, drawn: Drawn, place: OnAxis, is_aligned: bool) -> Process:
    worker = material.patterns[material.places[rank]].worker
    name = clean(material.worker_name(rank), 200)
    words = [
        "culprit" if rank in material.culprits else "",
        clean(worker.device, 40) if worker.device not in ("", "cpu") else "",
        "" if is_aligned else "not aligned",
        "" if drawn.is_whole else "one iteration",
    ]
    label = ", ".join(word for word in words if word)
    return Process(rank + 1, name, label, place, drawn.lanes, drawn.counters)


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
