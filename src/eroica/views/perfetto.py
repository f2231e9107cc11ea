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
from eroica.views.chrome_trace import STEP_NS, OnAxis, Process, write_trace
from eroica.views.lanes import Drawn, draw_timeline
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


@dataclass(frozen=True)
class Written:
    """Workers in a trace, and notes on what it shows, how well clocks fit and what is missing."""

    ranks: tuple[int, ...]
    notes: tuple[str, ...]


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
    if asked:
        return tuple(dict.fromkeys(asked))
    return _unasked(material)


def _unasked(material: Material) -> tuple[int, ...]:
    culprits = [rank for rank in material.culprits if rank in material.places][: MOST_UNASKED // 2]
    if not culprits:
        pair = material.culprit_and_peer()
        return tuple(rank for rank in pair or () if rank is not None)
    chosen: dict[int, None] = {}
    for culprit in culprits:
        chosen[culprit] = None
        peer = material.peer_of(culprit)
        if peer is not None:
            chosen.setdefault(peer)
    return tuple(chosen)


def write_perfetto(path: Path, material: Material, ranks: Sequence[int], alignment: Alignment, whole: Whole) -> Written:
    """Write the trace of some workers, from top to bottom.

    Args:
        path: .json or .json.gz.
        material: Verdict and patterns.
        ranks: Workers, each with a pattern.
        alignment: Their clocks.
        whole: Reads the raw trace of a worker; None if it is gone. May raise InputError.

    Raises:
        InputError: None of these workers has anything to show.
        OSError: The file cannot be written.
    """
    notes: list[str] = []
    drawn = _drawn(material, ranks, whole, notes)
    if not drawn:
        raise InputError(f"there is nothing to draw a trace from: {notes[0] if notes else 'no worker was chosen'}")
    placed, known = _placed(drawn, alignment, notes)
    notes[:0] = [_shown(material, drawn), _fits(drawn, known, alignment)]
    processes = [_process(material, rank, one, placed[rank], rank in known) for rank, one in drawn.items()]
    write_trace(path, processes, {**_about(material, drawn, notes), **_axis(drawn, known, alignment)})
    return Written(tuple(drawn), tuple(notes))


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


def _is_one_host(drawn: Mapping[int, Drawn]) -> bool:
    """Return whether all workers use the clock of one host."""
    clocks = [one.clock for one in drawn.values()]
    return len({clock[0] for clock in clocks if clock is not None}) == 1 and None not in clocks


def _fits(drawn: Mapping[int, Drawn], known: frozenset[int], alignment: Alignment) -> str:
    """Return a sentence on how well the clocks fit."""
    if len(drawn) == 1:
        return "one worker alone, by its own clock"
    if _is_one_host(drawn):
        return f"{worker_list(list(drawn))} ran on one host and lie on its clock"
    together = [rank for rank in drawn if rank in known]
    if len(together) < 2:
        return "the workers' clocks could not be brought together: compare lengths, not moments"
    return (
        f"{worker_list(together)} lie on one axis by the ends of {alignment.executions:,} collectives; nine of ten "
        f"ends agree within {_microseconds(alignment.uncertainty_us)}, so smaller differences between workers mean "
        "nothing"
    )


def _microseconds(value_us: float) -> str:
    return f"{value_us / 1e3:.3g} ms" if value_us >= 1000 else f"{value_us:.3g} µs"


def _shown(material: Material, drawn: Mapping[int, Drawn]) -> str:
    """Return a sentence on what the trace shows."""
    whole = [rank for rank, one in drawn.items() if one.is_whole]
    others = [rank for rank in drawn if rank not in whole]
    words = []
    if whole:
        words.append(f"full traces of {worker_list(whole)}, {_iterations(material, drawn, whole)}")
    if others:
        dropped = sum(drawn[rank].dropped for rank in others)
        short = f"; the {dropped:,} shortest slices had no room" if dropped else ""
        words.append(f"one iteration of {worker_list(others)}, {_iterations(material, drawn, others)}{short}")
    return "; ".join(words)


def _iterations(material: Material, drawn: Mapping[int, Drawn], ranks: Sequence[int]) -> str:
    """Return the numbers of the iterations in the job."""
    numbers = [
        material.patterns[material.places[rank]].first_iteration + at for rank in ranks for at in drawn[rank].iterations
    ]
    low, high = min(numbers), max(numbers)
    return f"iteration {low}" if low == high else f"iterations {low}–{high}"


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


def _axis(drawn: Mapping[int, Drawn], known: frozenset[int], alignment: Alignment) -> dict[str, object]:
    """Return how the workers are aligned, for programs."""
    together = [rank for rank in drawn if rank in known]
    by_host = _is_one_host(drawn)
    by = "the clock of their host" if by_host else f"ends of {alignment.executions} collectives"
    return {
        "aligned_by": by if len(together) > 1 else "nothing",
        "aligned_workers": ", ".join(map(str, together)),
        "uncertainty_us": 0.0 if by_host or len(together) < 2 else round(alignment.uncertainty_us, 3),
    }
