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
from statistics import linear_regression
from typing import NamedTuple

import msgspec

from eroica.model.causes import CATALOG
from eroica.model.verdict import NO_FUNCTION, Finding, Recurrence, Verdict

#: Newest windows that are looked at; a job by hand may have any number.
_MOST_WINDOWS = 200
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


class Sighting(NamedTuple):
    """One window's finding of a cause; it leads if it is the first cause of a verdict that names one."""

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
        verdicts: Of all windows that are looked at, by id.
        many_hosts: Hosts tell something, as the job has several.
    """

    cause: str
    blocked: bool
    every: tuple[Sighting, ...]
    verdicts: Mapping[int, Verdict]
    many_hosts: bool

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
        apart = sum(not _overlap(one.finding, other.finding, self.many_hosts) for one, other in pairs)
        return 2 * apart > len(pairs)

    @property
    def leads(self) -> bool:
        """It is the first cause of at least one window."""
        return any(sighting.leads for sighting in self.sightings)

    @cached_property
    def best(self) -> Sighting:
        """The sighting to show: a precise one that leads its verdict, on the workers named most often, the newest."""
        leading = [sighting for sighting in self.sightings if sighting.leads] or self.sightings
        leading = [sighting for sighting in leading if sighting.finding.cause == self.cause] or leading
        named = Counter(worker for one in self.sightings for worker in set(one.finding.workers))
        usual = {worker for worker, times in named.items() if 2 * times > len(self.sightings)}

        def likeness(workers: set[int]) -> float:
            return len(workers & usual) / max(len(workers | usual), 1)

        return max(leading, key=lambda one: (likeness(set(one.finding.workers)), one.window_id))

    def agreeing(self, finding: Finding) -> list[Sighting]:
        """Sightings that mean the same workers as `finding`; all of them if it wanders."""
        if self.wanders:
            return list(self.sightings)
        return [one for one in self.sightings if _overlap(one.finding, finding, self.many_hosts)]

    @property
    def backing(self) -> list[int]:
        """Windows that agree with its best sighting."""
        return [one.window_id for one in self.agreeing(self.best.finding)]

    @property
    def weight(self) -> float:
        """Expected cost: confidence times gain, summed over windows that it led on the workers of `best`."""
        gains = ((one, one.finding.gain) for one in self.agreeing(self.best.finding) if one.leads)
        return sum(self._confidence(one) * (_TYPICAL_GAIN if gain is None else gain) for one, gain in gains)

    def _confidence(self, sighting: Sighting) -> float:
        """Confidence that a sighting gives the cause by its precise name, 0-1."""
        return sighting.finding.confidence * (1.0 if sighting.finding.cause == self.cause else _VAGUE_SUPPORT)

    def _looked(self, finding: Finding) -> frozenset[int]:
        """Windows that saw it, or could have: of the same kind, with a clear answer, and with one of its workers."""
        clear = (
            at
            for at, verdict in self.verdicts.items()
            if is_standstill(verdict) == self.blocked
            and verdict.verdict != "undetermined"
            and _clarity(verdict, finding) > 0
        )
        return self.windows.union(clear)

    def belief(self, finding: Finding) -> float:
        """Probability of a cause in the light of all windows, 0-1.

        Windows that agree support it by s, windows that could have shown it and did not speak against it by t; what
        neither decides stays open. Dempster's rule for two simple support functions (Shafer 1976, chapter 4) gives
        s (1 - t) / (1 - s t): s without contradiction, below s with it, never above 1.
        """
        agreeing, against = self.agreeing(finding), []
        first = min((one.window_id for one in agreeing), default=0)
        for at in self._looked(finding) - {one.window_id for one in agreeing}:
            other = self.verdicts[at].cause
            strength = _HEALTHY_AGAINST if other is None else _OTHER_AGAINST * other.confidence
            had_begun = 1.0 if at >= first else _BEFORE_IT_BEGAN
            against.append(strength * _clarity(self.verdicts[at], finding) * had_begun)
        s, t = combine(map(self._confidence, agreeing)), combine(against)
        return min(round(s * (1 - t) / (1 - s * t), 3), _HIGHEST)

    def recurrence(self, finding: Finding) -> Recurrence:
        """Sum up the windows that saw a finding: how often, on which workers, and whether it grows."""
        seen = self.agreeing(finding)
        gains = tuple(one.finding.gain for one in seen)
        costs = tuple(_cost_ms(one.finding, self.verdicts[one.window_id]) for one in seen)
        windows = tuple(one.window_id for one in seen)
        plain = Recurrence(
            kind="single", windows=windows, looked=len(self._looked(finding)), gains=gains, costs_ms=costs
        )
        if plain.looked < 2:
            return plain
        if len(seen) < 2 or self.wanders or not _grows(gains):
            kind = "one-off" if len(seen) < 2 else "rotating" if self.wanders else "recurring"
            return msgspec.structs.replace(plain, kind=kind)
        growth = _growth_ms_per_hour(costs, [self.verdicts[at] for at in windows])
        return msgspec.structs.replace(plain, kind="worsening", growth_ms_per_hour=growth)


def _overlap(one: Finding, other: Finding, many_hosts: bool) -> bool:
    """Return whether two findings may mean the same workers; findings without certain workers may mean any."""
    if one.scope != "some" or other.scope != "some" or set(one.workers) & set(other.workers):
        return True
    return many_hosts and bool(set(one.hosts) & set(other.hosts))


def same_place(one: Finding, other: Finding) -> bool:
    """Return whether both findings send a person to the same place: the same workers, or the same function of all."""
    if one.scope != other.scope:
        return False
    return bool(set(one.workers) & set(other.workers)) if one.scope == "some" else _same_function(one, other)


def _same_function(one: Finding, other: Finding) -> bool:
    names = (one.function.name, one.function.kind), (other.function.name, other.function.kind)
    return names[0] == names[1] and one.function.name != NO_FUNCTION


# ---------------------------------------------------------------------- courses


def follow_causes(verdicts: Mapping[int, Verdict]) -> list[Course]:
    """All causes of a job's windows (id -> verdict), each as one course.

    What an undetermined verdict suspects counts for nothing. A vague cause goes into the surest precise one that means
    the same workers or function.
    """
    newest = {at: verdicts[at] for at in sorted(verdicts)[-_MOST_WINDOWS:]}
    found = [
        Sighting(at, finding, finding is verdict.cause)
        for at, verdict in newest.items()
        if verdict.verdict in ("slow", "blocked")
        for finding in verdict.findings
        if finding.role == "cause"
    ]
    many_hosts = len({host for one in found for host in one.finding.hosts}) > 1
    courses: list[Course] = []
    for blocked in (False, True):
        mine = [one for one in found if is_standstill(newest[one.window_id]) == blocked]
        groups: list[tuple[str, list[Sighting]]] = []
        for vague in sorted({one.finding.cause for one in mine}, key=lambda cause: (_vagueness(cause), cause)):
            for group in _fold(_components([one for one in mine if one.finding.cause == vague], many_hosts)):
                homes = [home for name, home in groups if _refines(name, vague) and _means_the_same(home, group)]
                if homes:
                    max(homes, key=lambda home: sum(one.finding.confidence for one in home)).extend(group)
                else:
                    groups.append((vague, group))
        courses += (Course(cause, blocked, tuple(group), newest, many_hosts) for cause, group in groups)
    return courses


def is_standstill(verdict: Verdict) -> bool:
    """Return whether a verdict is about a job that stood still, not about slow iterations."""
    return verdict.verdict == "blocked" or (verdict.window is not None and verdict.window.kind == "blocked")


def _components(alike: Sequence[Sighting], many_hosts: bool) -> list[list[Sighting]]:
    """Sightings of one cause that hang together by their workers or hosts."""
    groups: list[list[Sighting]] = []
    for sighting in alike:
        near: list[Sighting] = []
        apart = []
        for group in groups:
            if any(_overlap(one.finding, sighting.finding, many_hosts) for one in group):
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
    pairs = ((one.finding, other.finding) for one in precise for other in vague)
    return any(same_place(*pair) or (pair[0].scope == pair[1].scope and _same_function(*pair)) for pair in pairs)


# ---------------------------------------------------------------------- belief and growth


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


def _clarity(verdict: Verdict, finding: Finding) -> float:
    """Degree to which a window could have shown a cause, by workers heard and iterations captured, 0-1."""
    coverage, window = verdict.coverage, verdict.window
    if finding.scope == "some" and finding.workers and set(finding.workers) <= set(coverage.missing):
        return 0.0
    heard = min(coverage.workers_reported / max(coverage.workers_expected, 1), 1.0)
    if window is None or window.first_iteration is None or window.last_iteration is None or window.kind == "blocked":
        return heard
    return heard * min(max(window.last_iteration - window.first_iteration, 0) / _FULL_ITERATIONS, 1.0)


def _grows(gains: Sequence[float | None]) -> bool:
    """Return whether a cause gets worse: its gains never fall beyond their uncertainty, and rise beyond it.

    At least three gains must be known.
    """
    known = [gain for gain in gains if gain is not None]
    if len(known) < _FEWEST_TO_GROW:
        return False
    steady = all(after - before >= -_error(before, after) for before, after in pairwise(known))
    return steady and known[-1] - known[0] > 2 * _error(known[0], known[-1])


def _error(one: float, other: float) -> float:
    """Standard error of the difference of two gains."""
    first, second = (max(_GAIN_ERROR * gain, _LEAST_GAIN_ERROR) for gain in (one, other))
    return float((first**2 + second**2) ** 0.5)


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
    return linear_regression(hours, known).slope if len(known) > 1 and hours[-1] > hours[0] else None


# ---------------------------------------------------------------------- the causes of one window


def with_recurrence(window_id: int, verdict: Verdict, earlier: Mapping[int, Verdict]) -> Verdict:
    """A window's verdict, its causes marked with what this window and those before it say of them together."""
    courses = courses_in(window_id, {**earlier, window_id: verdict})
    findings = tuple(
        msgspec.structs.replace(finding, recurrence=courses[finding.order].recurrence(finding))
        if finding.order in courses
        else finding
        for finding in verdict.findings
    )
    return msgspec.structs.replace(verdict, findings=findings)


def courses_in(window_id: int, verdicts: Mapping[int, Verdict]) -> dict[int, Course]:
    """The courses of a window's causes, by the order of the finding."""
    found = ((one, course) for course in follow_causes(verdicts) for one in course.every)
    return {one.finding.order: course for one, course in found if one.window_id == window_id}
