"""Group trace files into recordings: several jobs, and several recordings of one job, may lie in one folder.

The rules, in this order:

1. The same recording under two names (worker, process, steps, times, events) counts once.
2. Files of one directory belong together; so do directories named by the rank (`rank_0/`, `rank_1/`), and sibling
   directories of different workers who recorded at the same time (`node-a/`, `node-b/`).
3. Another world size or job id is another job. Files without an id belong to the only id of their world size.
4. Files that state no rank are worker 0 if they come from one process, or were recorded one after the other.
5. Other `ProfilerStep` numbers are other recordings. So are times: an hour apart, or a minute without step numbers.
6. If a rank still has several files, they are recordings in order of time; the others' join by the nearest time.

Clocks decide only which files are compared.
"""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePath

import msgspec

from eroica.model.look import Blockage
from eroica.model.pattern import WorkerPattern
from eroica.model.trace import TraceSummary
from eroica.model.verdict import Verdict
from eroica.model.window import Window
from eroica.model.words import clean, line

_SECOND_NS = 1_000_000_000
_MINUTE_NS = 60 * _SECOND_NS
_HOUR_NS = 3600 * _SECOND_NS
_PAUSE = 10 * _SECOND_NS
_FIRST_DATE = 1_000_000_000 * _SECOND_NS
_SHOWN = 3
_STEP_DIRECTORY = re.compile(r"(iteration|iter|step|epoch)s?[-_]?\d+", re.IGNORECASE)
_Notes = dict[str, list[str]]  # by path
_MOST_OTHERS = 12


@dataclass(frozen=True)
class Span:
    """What all workers of one job recorded at one time.

    Attributes:
        job: Name of the job: the trace's own, else the directory's.
        label: What tells it from other spans of the job.
        summaries: One a rank, in order of rank, each with a pattern.
        notes: What was left out or assumed.
        left_out: Rank -> why its recording is not compared.
        world_size: Workers of the job, 0 if unknown.
    """

    job: str
    label: str
    summaries: tuple[TraceSummary, ...]
    notes: tuple[str, ...] = ()
    left_out: Mapping[int, str] = field(default_factory=dict)
    world_size: int = 0


def group(recordings: Iterable[tuple[str, TraceSummary]]) -> tuple[tuple[Span, ...], tuple[str, ...]]:
    """Put together what was recorded together.

    Args:
        recordings: The directory that a trace shares with the other ranks, and the trace; those without a pattern are
            not looked at.

    Returns:
        All spans by job and time, and for each directory the names of files without a known rank.
    """
    places: dict[str, list[TraceSummary]] = defaultdict(list)
    for place, summary in sorted(recordings, key=lambda one: (one[0], one[1].path)):
        if summary.pattern is not None:
            places[place].append(summary)
    alone: set[str] = set()
    notes: _Notes = defaultdict(list)
    unranked: list[str] = []
    for place, files in places.items():
        kept = _without_copies(files, notes)
        unknown = [file for file in kept if file.rank < 0]
        if unknown and len(unknown) == len(kept) and _is_one_worker(unknown):
            say = "does not say its rank; it counts" if len(unknown) == 1 else "do not say their rank; they count"
            for file in unknown:
                notes[file.path].append(f"{_listed(unknown)} {say} as worker 0")
            alone.add(place)
            kept, unknown = [of_rank(file, 0) for file in unknown], []
        places[place] = [file for file in kept if file.rank >= 0]
        unranked += [_listed(unknown)] if unknown else []
    held = {place: files for place, files in places.items() if files}
    merged = merge_siblings(held, lambda members: _are_parts([held[place] for place in members]), alone)
    names = name_places(list(merged))
    spans: list[Span] = []
    for shared, members in merged.items():
        spans += _spans_of(names[shared], [file for place in members for file in places[place]], notes)
    return tuple(spans), tuple(unranked)


def _without_copies(files: Sequence[TraceSummary], notes: _Notes) -> list[TraceSummary]:
    kept: dict[tuple[object, ...], TraceSummary] = {}
    for file in files:
        assert file.pattern is not None
        said = (file.rank, file.world_size, file.job, file.host, file.pattern.worker.pid)
        key = (*said, file.steps, file.start_ns, file.end_ns, file.events, file.pattern.iteration_us)
        if key in kept:
            same = kept[key]
            notes[same.path].append(f"{_name(file)} is the same recording as {_name(same)}; it counts once")
        else:
            kept[key] = file
    return list(kept.values())


def of_rank(file: TraceSummary, rank: int) -> TraceSummary:
    """Return the summary as that of another rank."""
    assert file.pattern is not None
    worker = msgspec.structs.replace(file.pattern.worker, global_rank=rank)
    return msgspec.structs.replace(file, rank=rank, pattern=msgspec.structs.replace(file.pattern, worker=worker))


def _is_one_worker(files: Sequence[TraceSummary]) -> bool:
    """Return whether the files are of one process, or of processes that did not run at the same time."""
    processes = {(file.host, file.pattern.worker.pid if file.pattern is not None else 0) for file in files}
    one_process = len(processes) == 1 and next(iter(processes))[1] > 0
    pause = 0 if one_process else _PAUSE
    ordered = sorted(files, key=lambda file: file.start_ns)
    return all(after.start_ns - before.end_ns >= pause for before, after in pairwise(ordered))


# ---------------------------------------------------------------------- directories


def merge_siblings(
    places: Collection[str], are_parts: Callable[[Sequence[str]], bool], alone: Collection[str] = ()
) -> dict[str, list[str]]:
    """Return name of the whole -> directories that hold parts of it.

    Args:
        places: Directories.
        are_parts: Whether directories beside each other hold parts of one whole.
        alone: Directories that are no part of another whole.
    """
    siblings: dict[str, list[str]] = defaultdict(list)
    for place in sorted(set(places).difference(alone)):
        siblings[str(PurePath(place).parent)].append(place)
    merged = {place: [place] for place in places}
    for parent, members in siblings.items():
        if parent not in places and len(members) > 1 and are_parts(members):
            merged[parent] = [place for place in members if merged.pop(place)]
    return merged


def _are_parts(heaps: Sequence[Sequence[TraceSummary]]) -> bool:
    """Return whether directories hold different workers of one job that recorded at the same time."""
    ranks = [rank for heap in heaps for rank in {file.rank for file in heap}]
    files = [file for heap in heaps for file in heap]
    is_one_job = len({(file.world_size, file.job) for file in files}) == 1
    return (
        is_one_job and len(ranks) == len(set(ranks)) and all(len(_split(heap)) == len(_split(files)) for heap in heaps)
    )


def name_places(places: Sequence[str]) -> dict[str, str]:
    """Name each directory by as few of its last parts as tell it from the others."""
    parts: dict[str, tuple[str, ...]] = {}
    for place in places:
        path = PurePath(place)
        while "*" in path.name and path.parent != path:
            path = path.parent
        parts[place] = tuple(part for part in path.parts if part not in ("/", ".", "..")) or ("traces",)
    tails = Counter(own[at:] for own in parts.values() for at in range(len(own)))
    names: dict[str, str] = {}
    for place, own in parts.items():
        least = 2 if _STEP_DIRECTORY.fullmatch(own[-1]) and len(own) > 1 else 1
        shown = (own[-count:] for count in range(least, len(own)))
        names[place] = clean("/".join(next((tail for tail in shown if tails[tail] == 1), own)), 60)
    return names


# ---------------------------------------------------------------------- jobs and spans


def _spans_of(name: str, files: Sequence[TraceSummary], notes: _Notes) -> list[Span]:
    jobs = _by_job(files)
    spans: list[Span] = []
    for (world_size, job), members in sorted(jobs.items(), key=lambda item: item[0]):
        title = clean(job, 60) or (f"{name} ({world_size or 'unknown number of'} workers)" if len(jobs) > 1 else name)
        heaps = sorted(_split(members), key=lambda heap: min(file.start_ns for file in heap))
        for heap, label in zip(heaps, _labels(heaps), strict=True):
            ordered = tuple(sorted(heap, key=lambda file: file.rank))
            told = dict.fromkeys(text for file in ordered for text in notes.get(file.path, ()))
            spans.append(Span(title, label, ordered, tuple(told)))
    return spans


def _by_job(files: Sequence[TraceSummary]) -> dict[tuple[int, str], list[TraceSummary]]:
    """Divide files by world size and job id; files without one belong to the only one stated."""
    worlds = {file.world_size for file in files if file.world_size}
    only = next(iter(worlds)) if len(worlds) == 1 else 0
    sizes = [file.world_size or only for file in files]
    ids: dict[int, set[str]] = defaultdict(set)
    for world, file in zip(sizes, files, strict=True):
        ids[world] |= {file.job} - {""}
    found: dict[tuple[int, str], list[TraceSummary]] = defaultdict(list)
    for world, file in zip(sizes, files, strict=True):
        job = file.job or (next(iter(ids[world])) if len(ids[world]) == 1 else "")
        found[world, job].append(file)
    return found


def _split(files: Sequence[TraceSummary]) -> list[list[TraceSummary]]:
    """Divide the files of one job into recordings, each at most one file a rank."""
    has_steps = all(file.steps[0] >= 0 for file in files)
    heaps = _by_steps(files) if has_steps else [list(files)]
    slack = _HOUR_NS if len(heaps) > 1 or files[0].steps[0] >= 0 else _MINUTE_NS
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
    starts = [anchor.start_ns for anchor in max((ranks[rank] for rank in sorted(ranks)), key=len)]
    heaps: list[list[TraceSummary]] = [[] for _ in starts]
    for own in ranks.values():
        nearest = [min(range(len(starts)), key=lambda at: abs(starts[at] - file.start_ns)) for file in own]
        turns: Iterable[int] = nearest if len(set(nearest)) == len(own) else range(len(own))
        for at, file in zip(turns, own, strict=True):
            heaps[at].append(file)
    return heaps


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
    return time.strftime("recorded %Y-%m-%d %H:%M:%S UTC", time.gmtime(start // _SECOND_NS))


def _name(file: TraceSummary) -> str:
    return clean(PurePath(file.path).name, 80)


def _listed(files: Sequence[TraceSummary]) -> str:
    shown = ", ".join(_name(file) for file in files[:_SHOWN])
    return shown if len(files) <= _SHOWN else f"{shown} and {len(files) - _SHOWN} more"


@dataclass(frozen=True)
class Part:
    """One recording and what is wrong in it.

    Attributes:
        job: Name of the job.
        label: What tells the recording from others of the job.
        window: What was recorded.
        verdict: What is wrong.
        patterns: Of its workers, in order of rank; empty for a job that stood still.
        blockage: What was seen of a job that stood still, else None.
        sources: Global rank -> trace file.
    """

    job: str
    label: str
    window: Window
    verdict: Verdict
    patterns: tuple[WorkerPattern, ...] = ()
    blockage: Blockage | None = None
    sources: Mapping[int, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Name the recording in a few words."""
        return f"{self.job}, {self.label}" if self.label else self.job


@dataclass(frozen=True)
class Examination:
    """Everything that lies under the paths.

    Attributes:
        parts: All recordings, the one with the greatest cause first; at least one.
        losses: What could not be used, a sentence each.
        notes: What else was noticed on the way.
    """

    parts: tuple[Part, ...]
    losses: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Verdict on the first recording; its last notes name the others, a line each."""
        others = self.parts[1:]
        lines = [f"also here: {part.title}: {_one_line(part.verdict)}" for part in others[:_MOST_OTHERS]]
        if len(others) > _MOST_OTHERS:
            lines.append(f"also here: {len(others) - _MOST_OTHERS} more recordings")
        return self._first_with(lines)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Verdicts on all recordings; the notes of the first say what could not be used."""
        return self._first_with(()), *(part.verdict for part in self.parts[1:])

    def _first_with(self, lines: Sequence[str]) -> Verdict:
        verdict = self.parts[0].verdict
        notes = (*map(line, self.losses), *verdict.coverage.notes, *map(line, (*self.notes, *lines)))
        coverage = msgspec.structs.replace(verdict.coverage, notes=notes)
        return msgspec.structs.replace(verdict, coverage=coverage)


def _one_line(verdict: Verdict) -> str:
    summary = verdict.summary.rstrip(".")
    return summary if verdict.verdict in summary.lower() else f"{verdict.verdict}: {summary}"
