"""Causes that began for many jobs at one moment: storage, a switch, a change of the cluster."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from eroica_fleet.insights.chance import at_least
from eroica_fleet.insights.evidence import Life, Onset

WITHIN_S = 900.0
"""Begins that lie so close are one moment: windows open some minutes after a slowdown, and not at once."""
#: So many moments before and after one are what it is compared with.
_AROUND = 6
_FEWEST_JOBS = 3
_SURE = 0.01


class TrendFact(msgspec.Struct, frozen=True, kw_only=True):
    """A cause that began for several jobs within a quarter of an hour.

    Attributes:
        function: The one that most of them name.
        jobs: Different jobs in which it began then.
        running: Jobs that ran then.
        began_at: The first begin.
        until_at: The last of them.
        chance: Probability that begins which come whenever they like lie as close, for any moment and cause.
        names: Some of the jobs.
    """

    cause: str
    function: str
    jobs: int
    runs: int
    running: int
    began_at: float
    until_at: float
    chance: float
    names: list[str]


def trend_facts(
    onsets: Sequence[Onset], lives: Mapping[int, Life], since: float = 0.0, within_s: float = WITHIN_S
) -> list[TrendFact]:
    """Moments at which one cause began for at least three jobs, and chance does not account for that.

    A moment is compared with the hours around it: of the runs in which the cause began in that time, each has it begin
    at any moment of it with equal probability, as far as the run was there; how many fall into one moment by chance
    follows from that, exactly. So a time of day, or a cluster that was started anew, in which more begins than usual
    makes no moment. What was there from a run's start on began elsewhere. All moments and causes that were looked at
    count.

    Args:
        onsets: First sightings by cause and function, those before `since` as well: a cause that was there already did
            not begin.
        lives: Runs by id.
        since: Only what began from then on, seconds since 1970.
        within_s: Length of a moment, seconds.
    """
    first: dict[tuple[str, int], Onset] = {}
    for onset in onsets:
        known = first.get((onset.cause, onset.run))
        if onset.run in lives and (known is None or onset.at < known.at):
            first[onset.cause, onset.run] = onset
    of_cause: dict[str, list[Onset]] = defaultdict(list)
    for onset in first.values():
        if onset.at >= since and onset.at - lives[onset.run].began > within_s:
            of_cause[onset.cause].append(onset)
    looked = sum(map(len, of_cause.values()))
    facts = [
        fact
        for cause, found in of_cause.items()
        for fact in _moments(cause, sorted(found, key=lambda onset: onset.at), lives, within_s, looked)
    ]
    return sorted(facts, key=lambda fact: (-fact.began_at, fact.cause))


def _moments(
    cause: str, found: Sequence[Onset], lives: Mapping[int, Life], within_s: float, looked: int
) -> list[TrendFact]:
    """Moments of one cause, none of which overlap; the fullest ones win."""
    times = [onset.at for onset in found]
    spans = [(start, bisect_right(times, times[start] + within_s)) for start in range(len(times))]
    facts, taken = [], set[int]()
    for start, end in sorted(spans, key=lambda span: (span[0] - span[1], span[0])):
        if end - start < _FEWEST_JOBS:
            break
        if taken.isdisjoint(range(start, end)):
            first = bisect_left(times, times[start] - _AROUND * within_s)
            last = bisect_right(times, times[start] + (_AROUND + 1) * within_s)
            if end - start <= 1.5 * (last - first) / (2 * _AROUND + 1):
                continue  # no more than usual
            fact = _moment(cause, found[first:last], found[start:end], lives, within_s, looked)
            if fact is not None:
                facts.append(fact)
                taken.update(range(start, end))
    return facts


def _moment(
    cause: str,
    around: Sequence[Onset],
    here: Sequence[Onset],
    lives: Mapping[int, Life],
    within_s: float,
    looked: int,
) -> TrendFact | None:
    jobs = sorted({lives[onset.run].job for onset in here})
    if len(jobs) < _FEWEST_JOBS:
        return None
    began, until = here[0].at, here[0].at + within_s
    share = [_share(lives[onset.run], began, within_s) for onset in around]
    chance = min(1.0, at_least(len(here), share) * looked)
    if chance >= _SURE:
        return None
    running = {life.job for life in lives.values() if life.began <= until and life.heard >= began}
    return TrendFact(
        cause=cause,
        function=Counter(onset.function for onset in here).most_common(1)[0][0],
        jobs=len(jobs),
        runs=len(here),
        running=len(running),
        began_at=began,
        until_at=here[-1].at,
        chance=chance,
        names=jobs[:10],
    )


def _share(life: Life, began: float, within_s: float) -> float:
    """Which share of the time around a moment, as far as the cause could begin then in this run, the moment is."""
    first = max(life.began + within_s, began - _AROUND * within_s)
    last = min(life.heard, began + (_AROUND + 1) * within_s)
    return min(1.0, max(0.0, min(began + within_s, last) - max(began, first)) / max(last - first, 1.0))
