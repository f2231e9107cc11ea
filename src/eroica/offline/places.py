"""Directories that hold parts of the same recordings, and names for directories.

There may be twenty thousand of them: nothing here compares each with each.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import PurePath

from eroica.model.trace import TraceSummary
from eroica.model.words import clean

SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS
HOUR_NS = 3600 * SECOND_NS
_STEP_DIRECTORY = re.compile(r"(iteration|iter|step|epoch)s?[-_]?\d+", re.IGNORECASE)


def merge_places(places: Mapping[str, Sequence[TraceSummary]], alone: Collection[str]) -> dict[str, list[str]]:
    """Directories that hold parts of the same recordings: name of the whole -> directories.

    Args:
        places: Per directory its files, at least one each.
        alone: Those that hold ranks which were only taken for granted.
    """
    merged = {place: [place] for place in places if place in alone}
    siblings: dict[str, list[str]] = defaultdict(list)
    for place in sorted(places.keys() - merged.keys()):
        siblings[str(PurePath(place).parent)].append(place)
    for parent, members in siblings.items():
        heaps = _heaps([_Place(place, places[place]) for place in members])
        single = parent not in places and sum(len(heap) > 1 for heap in heaps) == 1
        for heap in heaps:
            merged[parent if single and len(heap) > 1 else heap[0]] = heap
    return merged


class _Place:
    """A directory: whose files, from when to when."""

    def __init__(self, name: str, files: Sequence[TraceSummary]) -> None:
        self.name = name
        self.ranks = {file.rank for file in files}
        self.worlds = {(file.world_size, file.job) for file in files}
        self.first_ns, self.last_ns = min(file.start_ns for file in files), max(file.end_ns for file in files)
        self.has_steps = all(file.steps[0] >= 0 for file in files)
        self.first_step, self.last_step = min(file.steps[0] for file in files), max(file.steps[1] for file in files)
        self.files = sorted(files, key=lambda file: file.start_ns)
        self._starts = [file.start_ns for file in self.files]
        self._longest_ns = max(file.end_ns - file.start_ns for file in files)

    def meets_all(self, others: _Place) -> bool:
        """Each file was recorded at the time of some of the others."""
        return all(any(_meet(file, other) for other in others._near(file)) for file in self.files)

    def _near(self, file: TraceSummary) -> Sequence[TraceSummary]:
        """Files that may have been recorded at the time of this one."""
        first = bisect_left(self._starts, file.start_ns - HOUR_NS - self._longest_ns)
        return self.files[first : bisect_right(self._starts, file.end_ns + HOUR_NS)]


class _Heap:
    """Directories of different workers who recorded at the same time, and what all of them have in common."""

    def __init__(self, place: _Place) -> None:
        self.founder = place
        self.names = [place.name]
        self.ranks = set(place.ranks)
        self._has_steps = place.has_steps
        self._first_ns, self._last_ns = place.first_ns, place.last_ns
        self._first_step, self._last_step = place.first_step, place.last_step

    def takes(self, place: _Place) -> bool:
        """Whether a directory belongs to these: it overlaps with each of them, and its files with the first one's."""
        if not self.ranks.isdisjoint(place.ranks):
            return False
        if self._has_steps and place.has_steps:
            slack = HOUR_NS
            if not (place.first_step <= self._last_step and self._first_step <= place.last_step):
                return False
        else:
            slack = MINUTE_NS
        if place.first_ns - self._last_ns > slack or self._first_ns - place.last_ns > slack:
            return False
        return place.meets_all(self.founder)

    def add(self, place: _Place) -> None:
        """Take it in."""
        self.names.append(place.name)
        self.ranks |= place.ranks
        self._has_steps &= place.has_steps
        self._first_ns, self._last_ns = max(self._first_ns, place.first_ns), min(self._last_ns, place.last_ns)
        self._first_step = max(self._first_step, place.first_step)
        self._last_step = min(self._last_step, place.last_step)


def _heaps(members: Sequence[_Place]) -> list[list[str]]:
    """Directories put together, each heap in order of names, as are the heaps."""
    apart = [[one.name] for one in members if len(one.worlds) > 1]
    jobs: dict[tuple[int, str], list[_Place]] = defaultdict(list)
    for one in members:
        if len(one.worlds) == 1:
            jobs[next(iter(one.worlds))].append(one)
    found = [heap.names for job in jobs.values() for cluster in _clusters(job) for heap in _first_fit(cluster)]
    return sorted([*apart, *found], key=lambda names: names[0])


def _first_fit(members: Sequence[_Place]) -> list[_Heap]:
    """Each directory goes to the first heap that takes it; those that have its ranks are not asked again."""
    heaps: list[_Heap] = []
    lacking: dict[int, int] = defaultdict(int)  # rank -> all heaps before this one have it
    for one in sorted(members, key=lambda place: place.name):
        for rank in one.ranks:
            while lacking[rank] < len(heaps) and rank in heaps[lacking[rank]].ranks:
                lacking[rank] += 1
        first = max(lacking[rank] for rank in one.ranks)
        heap = next((heap for heap in islice(heaps, first, None) if heap.takes(one)), None)
        if heap is None:
            heaps.append(_Heap(one))
        else:
            heap.add(one)
    return heaps


def _clusters(members: Sequence[_Place]) -> Iterator[list[_Place]]:
    """Directories that may have been recorded together: no two of different clusters were."""
    for cluster in _chained(members, lambda place: (place.first_ns, place.last_ns + HOUR_NS)):
        if all(place.has_steps for place in cluster):
            yield from _chained(cluster, lambda place: (place.first_step, place.last_step))
        else:
            yield cluster


def _chained(members: Sequence[_Place], reach: Callable[[_Place], tuple[int, int]]) -> list[list[_Place]]:
    chains: list[list[_Place]] = []
    last = 0
    for one in sorted(members, key=reach):
        begin, end = reach(one)
        if not chains or begin > last:
            chains.append([])
            last = end
        chains[-1].append(one)
        last = max(last, end)
    return chains


def _meet(one: TraceSummary, other: TraceSummary) -> bool:
    """Recorded at the same time, as far as steps and clocks can tell."""
    gap = max(one.start_ns, other.start_ns) - min(one.end_ns, other.end_ns)
    if one.steps[0] >= 0 and other.steps[0] >= 0:
        return one.steps[0] <= other.steps[1] and other.steps[0] <= one.steps[1] and gap <= HOUR_NS
    return gap <= MINUTE_NS


def name_places(places: Sequence[str]) -> dict[str, str]:
    """A name for each directory: as few of its last parts as tell it from the others."""
    parts = {place: _telling_parts(place) for place in places}
    tails = Counter(own[at:] for own in parts.values() for at in range(len(own)))
    names: dict[str, str] = {}
    for place, own in parts.items():
        least = 2 if _STEP_DIRECTORY.fullmatch(own[-1]) and len(own) > 1 else 1
        shown = (own[-count:] for count in range(least, len(own)))
        names[place] = clean("/".join(next((tail for tail in shown if tails[tail] == 1), own)), 60)
    return names


def _telling_parts(place: str) -> tuple[str, ...]:
    path = PurePath(place)
    while "*" in path.name and path.parent != path:
        path = path.parent
    parts = tuple(part for part in path.parts if part not in ("/", ".", ".."))
    return parts or ("traces",)
