"""Weigh what several windows of a job say of one cause: belief in it, whether it comes again, whether it grows.

Pure functions over verdicts and the courses that causes take through them. A *course* holds one cause as several
windows found it. Two findings belong to one course if they name the same cause on workers that overlap (in a job of
several hosts: on hosts), or the same cause on other workers in other windows. They also belong together if one names,
for the same workers or function, more precisely the cause that the other calls vaguely.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import msgspec
import numpy as np

from eroica.model.causes import CATALOG
from eroica.model.verdict import NO_FUNCTION, Finding, Recurrence, Verdict

#: Newest windows that are looked at; a job by hand may have any number.
MOST_WINDOWS = 200
#: What a vague finding adds to the belief in the precise one: it names the place, not the cause.
_VAGUE_SUPPORT = 0.5
#: A gain where none is known: a cause that counts costs a few percent at least, most cost more.
_TYPICAL_GAIN = 0.1
#: Windows from which a cause that is on other workers each time is said to wander.
_FEWEST_TURNS = 3
#: How far one healthy window speaks against a cause that another window saw (it may come and go)...
_HEALTHY_AGAINST = 0.3
#: ...and how far one that blames something else does, for each unit of its own confidence (both may be true).
_OTHER_AGAINST = 0.5
#: What is left of both for windows before the first that saw it: it had perhaps not begun.
_BEFORE_IT_BEGAN = 0.5
#: Iterations from which a window tells as much as any other.
_FULL_ITERATIONS = 10
#: No number of windows makes it surer: they share the rules and what these are blind to.
_HIGHEST = 0.99
#: Uncertainty of a gain, as a share of it and at least (recomputed iterations of healthy jobs scatter so far).
_GAIN_ERROR, _LEAST_GAIN_ERROR = 0.1, 0.02
_FEWEST_TO_GROW = 3
_MS_PER_HOUR = 3_600_000.0


@dataclass(frozen=True)
class Sighting:
    """One window's finding of a cause.

    Attributes:
        window_id: Which window.
        finding: What it says.
        leads: It is the first cause of a verdict that names one.
    """

    window_id: int
    finding: Finding
    leads: bool


@dataclass(frozen=True)
class Course:
    """One cause as several windows found it.

    Attributes:
        cause: Its most precise name.
        blocked: Seen at a standstill; such windows and those of iterations do not speak of each other.
        every: All sightings.
        many_hosts: Hosts tell something, as the job has several.
    """

    cause: str
    blocked: bool
    every: tuple[Sighting, ...]
    many_hosts: bool = False

    @cached_property
    def sightings(self) -> tuple[Sighting, ...]:
        """One a window, the first of its verdict, in order of windows."""
        found = sorted(self.every, key=lambda one: (one.window_id, -one.finding.order))
        return tuple({one.window_id: one for one in found}.values())

    @property
    def windows(self) -> frozenset[int]:
        """Windows that saw it."""
        return frozenset(sighting.window_id for sighting in self.sightings)

    @property
    def wanders(self) -> bool:
        """True if from window to window the cause is more often on wholly other workers than on the same."""
        pairs = list(pairwise(self.sightings))
        apart = sum(not overlap(one.finding, other.finding, self.many_hosts) for one, other in pairs)
        return 2 * apart > len(pairs)

    @property
    def best(self) -> Sighting | None:
        """The sighting to show: a precise one that leads its verdict, on the workers named most often, the newest."""
        leading = [sighting for sighting in self.sightings if sighting.leads]
        leading = [sighting for sighting in leading if sighting.finding.cause == self.cause] or leading
        named = Counter(worker for one in self.sightings for worker in set(one.finding.workers))
        usual = {worker for worker, times in named.items() if 2 * times > len(self.sightings)}
        return max(leading, key=lambda one: (_likeness(one.finding, usual), one.window_id), default=None)

    def agreeing(self, finding: Finding) -> list[Sighting]:
        """Sightings that mean the same workers as `finding`; all of them if it wanders."""
        if self.wanders:
            return list(self.sightings)
        return [one for one in self.sightings if overlap(one.finding, finding, self.many_hosts)]

    def weight(self, finding: Finding) -> float:
        """Expected cost of the cause where it led: sum of confidence times gain, over windows that agree with it."""
        leading = (one for one in self.agreeing(finding) if one.leads)
        gains = ((one, one.finding.gain) for one in leading)
        return sum(self.confidence(one) * (_TYPICAL_GAIN if gain is None else gain) for one, gain in gains)

    def confidence(self, sighting: Sighting) -> float:
        """Confidence that a sighting gives the cause by its precise name, 0-1."""
        precise = sighting.finding.cause == self.cause
        return sighting.finding.confidence * (1.0 if precise else _VAGUE_SUPPORT)


def overlap(one: Finding, other: Finding, many_hosts: bool) -> bool:
    """Return whether two findings may mean the same workers; findings without certain workers may mean any."""
    if one.scope != "some" or other.scope != "some":
        return True
    if set(one.workers) & set(other.workers):
        return True
    return many_hosts and bool(set(one.hosts) & set(other.hosts))


def same_place(one: Finding, other: Finding) -> bool:
    """Return whether both findings send a person to the same place: the same workers, or the same function of all."""
    if one.scope != other.scope:
        return False
    if one.scope == "some" and set(one.workers) & set(other.workers):
        return True
    return one.scope != "some" and _same_function(one, other)


def _same_function(one: Finding, other: Finding) -> bool:
    names = (one.function.name, one.function.kind), (other.function.name, other.function.kind)
    return names[0] == names[1] and one.function.name != NO_FUNCTION


def _likeness(finding: Finding, usual: set[int]) -> float:
    """Likeness of the workers of a finding to the usual ones, 0-1."""
    workers = set(finding.workers)
    return len(workers & usual) / max(len(workers | usual), 1)


# ---------------------------------------------------------------------- courses


def follow_causes(verdicts: Mapping[int, Verdict]) -> tuple[Course, ...]:
    """All causes of a job's windows (id -> verdict), each as one course.

    A vague cause goes into the surest precise one that means the same workers or function.
    """
    newest = sorted(verdicts)[-MOST_WINDOWS:]
    found = [(is_standstill(verdicts[at]), one) for at in newest for one in _sightings(at, verdicts[at])]
    many_hosts = len({host for _, one in found for host in one.finding.hosts}) > 1
    courses: list[Course] = []
    for blocked in (False, True):
        mine = [one for is_blocked, one in found if is_blocked == blocked]
        groups: list[tuple[str, list[Sighting]]] = []
        for vague in sorted({one.finding.cause for one in mine}, key=lambda cause: (_vagueness(cause), cause)):
            for group in _fold(_components([one for one in mine if one.finding.cause == vague], many_hosts)):
                homes = [home for name, home in groups if _refines(name, vague) and _means_the_same(home, group)]
                if homes:
                    max(homes, key=lambda home: sum(one.finding.confidence for one in home)).extend(group)
                else:
                    groups.append((vague, group))
        courses += (Course(cause, blocked, tuple(group), many_hosts) for cause, group in groups)
    return tuple(courses)


def is_standstill(verdict: Verdict) -> bool:
    """Return whether a verdict is about a job that stood still, not about slow iterations."""
    return verdict.verdict == "blocked" or (verdict.window is not None and verdict.window.kind == "blocked")


def _sightings(window_id: int, verdict: Verdict) -> list[Sighting]:
    """Causes of a verdict that names one; what an undetermined one suspects counts for nothing."""
    if verdict.verdict not in ("slow", "blocked"):
        return []
    causes = [finding for finding in verdict.findings if finding.role == "cause"]
    return [Sighting(window_id, finding, finding is causes[0]) for finding in causes]


def _components(alike: Sequence[Sighting], many_hosts: bool) -> list[list[Sighting]]:
    """Sightings of one cause that hang together by their workers or hosts."""
    groups: list[list[Sighting]] = []
    for sighting in alike:
        near: list[Sighting] = []
        apart = []
        for group in groups:
            if any(overlap(one.finding, sighting.finding, many_hosts) for one in group):
                near += group
            else:
                apart.append(group)
        groups = [*apart, [*near, sighting]]
    return groups


def _fold(groups: list[list[Sighting]]) -> list[list[Sighting]]:
    """Join groups of one cause on other workers that are never in one window with the first: the cause wandered.

    Seen twice only, it may as well be two troubles, one after the other.
    """
    if len({one.window_id for group in groups for one in group}) < _FEWEST_TURNS:
        return groups
    folded: list[list[Sighting]] = []
    for group in sorted(groups, key=lambda group: (min(one.window_id for one in group), -len(group))):
        windows = {one.window_id for one in group}
        home = next((other for other in folded if windows.isdisjoint(one.window_id for one in other)), None)
        if home is None:
            folded.append(group)
        else:
            home += group
    return folded


def _vagueness(cause: str) -> int:
    """Causes that may be its better name come first."""
    if cause == "unknown":
        return len(CATALOG) + 1
    return 1 + max((_vagueness(name) for name, entry in CATALOG.items() if cause in entry.brings_about), default=-1)


def _refines(precise: str, vague: str) -> bool:
    return precise != vague and (vague == "unknown" or (precise in CATALOG and vague in CATALOG[precise].brings_about))


def _means_the_same(precise: Sequence[Sighting], vague: Sequence[Sighting]) -> bool:
    """Return whether both point at the same place and never stand side by side in one verdict, as two causes."""
    if {one.window_id for one in precise} & {one.window_id for one in vague}:
        return False
    return any(
        same_place(one.finding, other.finding)
        or (one.finding.scope == other.finding.scope and _same_function(one.finding, other.finding))
        for one in precise
        for other in vague
    )


# ---------------------------------------------------------------------- belief


def combine(confidences: Iterable[float]) -> float:
    """Belief from several windows that say the same, 0-1.

    One minus the product of the doubts 1 - p, as if windows were independent, but the k-th (strongest first) counts
    with the power 1 / k: windows of one job share its rules and their blind spots. One window gives its own confidence,
    a further one never lowers it, and the sum stays below 1.
    """
    doubt = 1.0
    for k, confidence in enumerate(sorted(confidences, reverse=True), 1):
        doubt *= (1.0 - min(max(confidence, 0.0), _HIGHEST)) ** (1.0 / k)
    return 1.0 - doubt


def believe(course: Course, finding: Finding, verdicts: Mapping[int, Verdict]) -> float:
    """Probability of a cause in the light of all windows, 0-1.

    Windows that agree support it by s, windows that could have shown it and did not speak against it by t; what neither
    decides stays open. Dempster's rule for two simple support functions (Shafer 1976, chapter 4) gives
    s (1 - t) / (1 - s t): s without contradiction, below s with it, never above 1.
    """
    agreeing = {one.window_id for one in course.agreeing(finding)}
    others = looked(course, finding, verdicts) - agreeing
    first = min(agreeing, default=0)
    against = [_speaks_against(verdicts[at], finding) * (_BEFORE_IT_BEGAN if at < first else 1.0) for at in others]
    s, t = combine(course.confidence(one) for one in course.agreeing(finding)), combine(against)
    if not against:
        return min(round(s, 3), _HIGHEST)
    return min(round(s * (1 - t) / (1 - s * t), 3), _HIGHEST)


def looked(course: Course, finding: Finding, verdicts: Mapping[int, Verdict]) -> frozenset[int]:
    """Windows that saw it, or could have: of the same kind, with a clear answer, and with one of its workers."""
    clear = {
        at
        for at in sorted(verdicts)[-MOST_WINDOWS:]
        if is_standstill(verdicts[at]) == course.blocked
        and verdicts[at].verdict != "undetermined"
        and _clarity(verdicts[at], finding) > 0
    }
    return course.windows | clear


def _speaks_against(verdict: Verdict, finding: Finding) -> float:
    cause = verdict.cause
    strength = _HEALTHY_AGAINST if cause is None else _OTHER_AGAINST * cause.confidence
    return strength * _clarity(verdict, finding)


def _clarity(verdict: Verdict, finding: Finding) -> float:
    """Degree to which a window could have shown a cause, by workers heard and iterations captured, 0-1."""
    coverage, window = verdict.coverage, verdict.window
    if finding.scope == "some" and finding.workers and set(finding.workers) <= set(coverage.missing):
        return 0.0
    heard = min(coverage.workers_reported / max(coverage.workers_expected, 1), 1.0)
    if window is None or window.first_iteration is None or window.last_iteration is None or window.kind == "blocked":
        return heard
    return heard * min(max(window.last_iteration - window.first_iteration, 0) / _FULL_ITERATIONS, 1.0)


# ---------------------------------------------------------------------- the word for it


def recurrence_of(course: Course, finding: Finding, verdicts: Mapping[int, Verdict]) -> Recurrence:
    """Sum up the windows that saw a finding: how often, on which workers, and whether it grows."""
    seen = course.agreeing(finding)
    gains = tuple(one.finding.gain for one in seen)
    windows = tuple(one.window_id for one in seen)
    costs = tuple(_cost_ms(one.finding, verdicts[one.window_id]) for one in seen)
    plain = Recurrence(
        kind="single", windows=windows, looked=len(looked(course, finding, verdicts)), gains=gains, costs_ms=costs
    )
    if plain.looked < 2:
        return plain
    if len(seen) < 2:
        return msgspec.structs.replace(plain, kind="one-off")
    if course.wanders:
        return msgspec.structs.replace(plain, kind="rotating")
    if not grows(gains):
        return msgspec.structs.replace(plain, kind="recurring")
    growth = _growth_ms_per_hour(costs, [verdicts[at] for at in windows])
    return msgspec.structs.replace(plain, kind="worsening", growth_ms_per_hour=growth)


def grows(gains: Sequence[float | None]) -> bool:
    """Return whether a cause gets worse: its gains never fall beyond their uncertainty, and rise beyond it.

    At least three gains must be known.
    """
    known = [gain for gain in gains if gain is not None]
    if len(known) < _FEWEST_TO_GROW:
        return False
    steady = all(after - before >= -_error(before, after) for before, after in pairwise(known))
    return steady and known[-1] - known[0] > 2 * _error(known[0], known[-1])


def _cost_ms(finding: Finding, verdict: Verdict) -> float | None:
    """Cost of a cause in each iteration of a window, milliseconds; None where no gain or iteration time is known."""
    if finding.gain is None or verdict.iteration.current_ms is None:
        return None
    return round(finding.gain * verdict.iteration.current_ms, 3)


def _growth_ms_per_hour(costs_ms: Sequence[float | None], verdicts: Sequence[Verdict]) -> float | None:
    """Slope of costs over the time between windows, by least squares; None where windows do not say when they were.

    Between two windows lie as many iterations as their numbers say, each as long as the mean of both windows'.
    """
    hours, known, at, before = [], [], 0.0, None
    for cost, verdict in zip(costs_ms, verdicts, strict=True):
        window, current_ms = verdict.window, verdict.iteration.current_ms
        if cost is None or window is None or window.first_iteration is None or current_ms is None:
            continue
        if before is not None:
            at += (window.first_iteration - before[0]) * (before[1] + current_ms) / 2 / _MS_PER_HOUR
        before = window.first_iteration, current_ms
        hours.append(at)
        known.append(cost)
    if len(known) < 2 or hours[-1] <= hours[0]:
        return None
    return float(np.polyfit(hours, known, 1)[0])


def _error(one: float, other: float) -> float:
    """Standard error of the difference of two gains."""
    first, second = (max(_GAIN_ERROR * gain, _LEAST_GAIN_ERROR) for gain in (one, other))
    return float((first**2 + second**2) ** 0.5)


def with_recurrence(window_id: int, verdict: Verdict, earlier: Mapping[int, Verdict]) -> Verdict:
    """A window's verdict, its causes marked with what this window and those before it say of them together."""
    known = {**earlier, window_id: verdict}
    courses = courses_in(window_id, known)
    findings = tuple(
        msgspec.structs.replace(finding, recurrence=recurrence_of(courses[finding.order], finding, known))
        if finding.order in courses
        else finding
        for finding in verdict.findings
    )
    return msgspec.structs.replace(verdict, findings=findings)


def courses_in(window_id: int, verdicts: Mapping[int, Verdict]) -> dict[int, Course]:
    """The courses of a window's causes, by the order of the finding."""
    found = ((one, course) for course in follow_causes(verdicts) for one in course.every)
    return {one.finding.order: course for one, course in found if one.window_id == window_id}
