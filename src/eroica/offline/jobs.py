"""Which trace files belong together: several jobs, and several recordings of one job, in one folder told apart.

The rules, in this order:

1. The same recording under two names (worker, process, steps, times and number of events are equal) counts once.
2. Files of one directory belong together; so do files of directories that are named by the rank (`rank_0/`, `rank_1/`),
   and of sibling directories of different workers who recorded at the same time (`node-a/`, `node-b/`).
3. Another world size or another job id is another job. An id holds for files without one only of the same size.
4. A trace that says its rank nowhere is worker 0 if it is alone in its directory, or if all there come from one process
   or were recorded one after the other. Several workers at once must be told apart: somebody has to say how.
5. Different `ProfilerStep` numbers are different recordings. So are times: more than an hour apart, or a minute where
   steps have no numbers.
6. Where a rank still has several files, they are recordings in order of time; the others' are dealt out to them by the
   nearest time.

Clocks decide only what is compared with what. Nothing is concluded from them.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePath

import msgspec

from eroica.model.trace import Again, TraceSummary
from eroica.model.words import clean
from eroica.offline.places import HOUR_NS, MINUTE_NS, SECOND_NS, merge_places, name_places

_PAUSE = 10 * SECOND_NS
_FIRST_DATE = 1_000_000_000 * SECOND_NS
_SHOWN = 3


@dataclass(frozen=True)
class Recording:
    """A trace that was read, and the directory that it shares with the other ranks."""

    place: str
    summary: TraceSummary


@dataclass(frozen=True)
class Span:
    """What all workers of one job recorded at one time.

    Attributes:
        job: Name of the job: the trace's own, else the directory's.
        label: What tells it from other spans of the job.
        summaries: In order of global rank, one a rank, each with a pattern.
        notes: What was left out or taken for granted.
        left_out: Rank -> why its recording is not compared with the others'.
        world_size: Workers of the job as any of its files says, 0 if none does.
        read_as: Rank -> how its file is read, once the others are known.
    """

    job: str
    label: str
    summaries: tuple[TraceSummary, ...]
    notes: tuple[str, ...] = ()
    left_out: Mapping[int, str] = field(default_factory=dict)
    world_size: int = 0
    read_as: Mapping[int, Again] = field(default_factory=dict)


@dataclass(frozen=True)
class Grouping:
    """All spans, and what could not be put into one.

    Attributes:
        spans: By job, then in order of time.
        unranked: Per directory, one sentence about files whose ranks nobody knows.
    """

    spans: tuple[Span, ...]
    unranked: tuple[str, ...] = ()


def group(recordings: Sequence[Recording]) -> Grouping:
    """Put together what was recorded together.

    Args:
        recordings: In any order; those without a pattern are not looked at.
    """
    places: dict[str, list[TraceSummary]] = {}
    alone: set[str] = set()
    notes: list[_Note] = []
    unranked: list[str] = []
    for place, files in _by_place(recordings).items():
        kept = _without_copies(files, notes)
        unknown = [file for file in kept if file.rank < 0]
        if unknown and len(unknown) == len(kept) and _is_one_worker(unknown):
            notes.append(_assumed(unknown))
            alone.add(place)
            kept, unknown = [_ranked(file, 0) for file in unknown], []
        places[place] = [file for file in kept if file.rank >= 0]
        unranked += [_listed(unknown)] if unknown else []
    merged = merge_places({place: files for place, files in places.items() if files}, alone)
    names = name_places(list(merged))
    by_path = _by_path(notes)
    spans: list[Span] = []
    for shared, members in merged.items():
        spans += _spans_of(names[shared], [file for place in members for file in places[place]], by_path)
    return Grouping(tuple(spans), tuple(unranked))


@dataclass(frozen=True)
class _Note:
    """A sentence about some files."""

    text: str
    paths: frozenset[str]


def _by_path(notes: Sequence[_Note]) -> dict[str, dict[int, str]]:
    """Per file the sentences about it, with their places in the order."""
    found: dict[str, dict[int, str]] = defaultdict(dict)
    for at, note in enumerate(notes):
        for path in note.paths:
            found[path][at] = note.text
    return found


def _by_place(recordings: Iterable[Recording]) -> dict[str, list[TraceSummary]]:
    found: dict[str, list[TraceSummary]] = defaultdict(list)
    for recording in sorted(recordings, key=lambda one: (one.place, one.summary.path)):
        if recording.summary.pattern is not None:
            found[recording.place].append(recording.summary)
    return found


def _without_copies(files: Sequence[TraceSummary], notes: list[_Note]) -> list[TraceSummary]:
    kept: dict[tuple[object, ...], TraceSummary] = {}
    for file in files:
        assert file.pattern is not None
        said = (file.rank, file.world_size, file.job, file.host, file.pattern.worker.pid)
        key = (*said, file.steps, file.start_ns, file.end_ns, file.events, file.pattern.iteration_us)
        if key in kept:
            text = f"{_name(file)} is the same recording as {_name(kept[key])}; it counts once"
            notes.append(_Note(text, frozenset([kept[key].path])))
        else:
            kept[key] = file
    return list(kept.values())


# ---------------------------------------------------------------------- ranks that nobody states


def _assumed(files: Sequence[TraceSummary]) -> _Note:
    say = "does not say its rank; it counts" if len(files) == 1 else "do not say their rank; they count"
    return _Note(f"{_listed(files)} {say} as worker 0", frozenset(file.path for file in files))


def _ranked(file: TraceSummary, rank: int) -> TraceSummary:
    assert file.pattern is not None
    worker = msgspec.structs.replace(file.pattern.worker, global_rank=rank)
    return msgspec.structs.replace(file, rank=rank, pattern=msgspec.structs.replace(file.pattern, worker=worker))


def _is_one_worker(files: Sequence[TraceSummary]) -> bool:
    """One file, recordings of one process, or recordings of processes that did not run at the same time."""
    processes = {(file.host, file.pattern.worker.pid if file.pattern is not None else 0) for file in files}
    one_process = len(processes) == 1 and next(iter(processes))[1] > 0
    pause = 0 if one_process else _PAUSE
    ordered = sorted(files, key=lambda file: file.start_ns)
    return all(after.start_ns - before.end_ns >= pause for before, after in pairwise(ordered))


# ---------------------------------------------------------------------- jobs and spans


def _spans_of(name: str, files: Sequence[TraceSummary], notes: Mapping[str, Mapping[int, str]]) -> list[Span]:
    jobs = _by_job(files)
    spans: list[Span] = []
    for (world_size, job), members in sorted(jobs.items(), key=lambda item: item[0]):
        title = clean(job, 60) or (f"{name} ({world_size or 'unknown number of'} workers)" if len(jobs) > 1 else name)
        heaps = sorted(_split(members), key=lambda heap: min(file.start_ns for file in heap))
        labels = _labels(heaps)
        spans += [
            Span(title, label, tuple(sorted(heap, key=lambda file: file.rank)), _notes_on(heap, notes))
            for heap, label in zip(heaps, labels, strict=True)
        ]
    return spans


def _notes_on(heap: Sequence[TraceSummary], notes: Mapping[str, Mapping[int, str]]) -> tuple[str, ...]:
    found = {at: text for file in heap for at, text in notes.get(file.path, {}).items()}
    return tuple(found[at] for at in sorted(found))


def _by_job(files: Sequence[TraceSummary]) -> dict[tuple[int, str], list[TraceSummary]]:
    """By world size and job id; who does not state one belongs to the only one stated, if there is only one.

    An id holds for files of the same world size only.
    """
    worlds = {file.world_size for file in files if file.world_size}
    sizes = [file.world_size or (next(iter(worlds)) if len(worlds) == 1 else 0) for file in files]
    ids: dict[int, set[str]] = defaultdict(set)
    for world, file in zip(sizes, files, strict=True):
        ids[world] |= {file.job} - {""}
    found: dict[tuple[int, str], list[TraceSummary]] = defaultdict(list)
    for world, file in zip(sizes, files, strict=True):
        job = file.job or (next(iter(ids[world])) if len(ids[world]) == 1 else "")
        found[world, job].append(file)
    return found


def _split(files: Sequence[TraceSummary]) -> list[list[TraceSummary]]:
    """Recordings of one job, each at most one file a rank."""
    heaps = _by_steps(files) if all(file.steps[0] >= 0 for file in files) else [list(files)]
    slack = HOUR_NS if len(heaps) > 1 or files[0].steps[0] >= 0 else MINUTE_NS
    return [part for heap in heaps for pause in _by_pauses(heap, slack) for part in _by_turns(pause)]


def _by_steps(files: Sequence[TraceSummary]) -> list[list[TraceSummary]]:
    heaps: list[list[TraceSummary]] = []
    last = -1
    for file in sorted(files, key=lambda file: file.steps):
        if file.steps[0] > last or not heaps:
            heaps.append([])
        heaps[-1].append(file)
        last = max(last, file.steps[1])
    return heaps


def _by_pauses(files: Sequence[TraceSummary], slack: int) -> list[list[TraceSummary]]:
    if any(file.start_ns < _FIRST_DATE for file in files):
        return [list(files)]  # no wall clocks: times of different hosts say nothing
    heaps: list[list[TraceSummary]] = []
    last = 0
    for file in sorted(files, key=lambda file: file.start_ns):
        if not heaps or file.start_ns - last > slack:
            heaps.append([])
        heaps[-1].append(file)
        last = max(last, file.end_ns)
    return heaps


def _by_turns(files: Sequence[TraceSummary]) -> list[list[TraceSummary]]:
    ranks: dict[int, list[TraceSummary]] = defaultdict(list)
    for file in sorted(files, key=lambda file: file.start_ns):
        ranks[file.rank].append(file)
    anchors = max((ranks[rank] for rank in sorted(ranks)), key=len)
    heaps: list[list[TraceSummary]] = [[] for _ in anchors]
    starts = [anchor.start_ns for anchor in anchors]
    for own in ranks.values():
        nearest = [_nearest(starts, file.start_ns) for file in own]
        turns = nearest if len(set(nearest)) == len(own) else range(len(own))
        for at, file in zip(turns, own, strict=True):
            heaps[at].append(file)
    return heaps


def _nearest(starts: Sequence[int], start: int) -> int:
    """The nearest of times in their order, the first of several that are equally near."""
    after = min(bisect_left(starts, start), len(starts) - 1)
    before = bisect_left(starts, starts[max(0, after - 1)])
    return before if abs(starts[before] - start) <= abs(starts[after] - start) else after


# ---------------------------------------------------------------------- words


def _labels(heaps: Sequence[Sequence[TraceSummary]]) -> list[str]:
    labels = [_steps(heap) or _date(heap) or f"recording {at + 1}" for at, heap in enumerate(heaps)]
    repeated = {label for label, count in Counter(labels).items() if count > 1}
    return [
        f"{label}, {_date(heap) or f'recording {at + 1}'}" if label in repeated else label
        for at, (label, heap) in enumerate(zip(labels, heaps, strict=True))
    ]


def _steps(heap: Sequence[TraceSummary]) -> str:
    known = [file.steps for file in heap if file.steps[0] >= 0]
    if not known:
        return ""
    first, last = min(steps[0] for steps in known), max(steps[1] for steps in known)
    return f"step {first}" if first == last else f"steps {first}–{last}"


def _date(heap: Sequence[TraceSummary]) -> str:
    start = min(file.start_ns for file in heap)
    if not _FIRST_DATE <= start < 1 << 62:
        return ""
    return time.strftime("recorded %Y-%m-%d %H:%M:%S UTC", time.gmtime(start // SECOND_NS))


def _name(file: TraceSummary) -> str:
    return clean(PurePath(file.path).name, 80)


def _listed(files: Sequence[TraceSummary]) -> str:
    shown = ", ".join(_name(file) for file in files[:_SHOWN])
    return shown if len(files) <= _SHOWN else f"{shown} and {len(files) - _SHOWN} more"
