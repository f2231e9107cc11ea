"""What several jobs say together: hosts that were culprits, slow functions, causes that began at one moment."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

import msgspec

from eroica_fleet.evidence import Life, Naming, Onset, at_least

#: A host is suspicious if chance would name any host of the fleet as often with less than this probability.
SUSPICIOUS = 0.01
#: Fewer jobs of different names may share what one job's own layout does to a host.
_FEWEST_JOBS = 2


class HostFact(msgspec.Struct, frozen=True, kw_only=True):
    """A host that was named.

    Attributes:
        runs: Runs that it took part in and in which somebody was named.
        named: Runs in which it was named; after its last repair, if there was one.
        jobs: Different jobs among them.
        expected: So many would name it by chance, from the sizes of the runs.
        chance: Probability that chance names it as often, for this host alone.
        of_any: The same for any of the hosts that could be named: `chance` times their number, at most 1.
        suspicious: `of_any` is below 1 %, and several jobs named it.
        causes: What it was named for, the most frequent first.
        devices: Device -> runs that named it.
        device_chances: Device -> probability that chance picks one of the host's devices as often, in the runs that
            named the host.
        repaired_at: When it was last repaired, None if never.
        again: It was named before that repair, and is named again.
        last_at: When it was named last.
    """

    host: str
    runs: int
    named: int
    jobs: int
    expected: float
    chance: float
    of_any: float
    suspicious: bool
    causes: list[str]
    devices: dict[str, int]
    device_chances: dict[str, float]
    repaired_at: float | None
    again: bool
    last_at: float


def host_facts(
    namings: Sequence[Naming], hosts: Mapping[int, set[str]], lives: Mapping[int, Life], repairs: Mapping[str, float]
) -> list[HostFact]:
    """Hosts that were named, the least likely by chance first.

    In each run that named c of its H hosts, chance names any of them with c/H. How often a host was named is compared
    with that, over the runs that it took part in; one that takes part in much is expected to be named more often.

    Args:
        namings: Which run named whom.
        hosts: Run -> its hosts, of the runs that named somebody.
        lives: Runs by id.
        repairs: Host -> time of its last repair.
    """
    named_in: dict[int, set[str]] = defaultdict(set)
    of_host: dict[str, list[Naming]] = defaultdict(list)
    for naming in namings:
        if naming.run in lives:
            named_in[naming.run].add(naming.host)
            of_host[naming.host].append(naming)
    took_part: dict[str, list[int]] = defaultdict(list)
    for run, named in named_in.items():
        for host in hosts.get(run, set()) | named:
            took_part[host].append(run)
    odds = {run: len(named) / len(hosts.get(run, set()) | named) for run, named in named_in.items()}
    facts = [
        _fact(host, mine, took_part[host], odds, lives, repairs.get(host), len(took_part))
        for host, mine in of_host.items()
    ]
    return sorted(facts, key=lambda fact: (not fact.suspicious, fact.chance, -fact.named, fact.host))


def _fact(
    host: str,
    mine: Sequence[Naming],
    took_part: Sequence[int],
    odds: Mapping[int, float],
    lives: Mapping[int, Life],
    repaired_at: float | None,
    hosts: int,
) -> HostFact:
    after = repaired_at or 0.0
    counting = [naming for naming in mine if naming.last > after]
    trials = [run for run in took_part if lives[run].heard > after]
    chance = at_least(len(counting), [odds[run] for run in trials])
    of_any = min(1.0, chance * hosts)
    jobs = len({lives[naming.run].job for naming in counting})
    causes = Counter(cause for naming in counting or mine for cause in naming.causes)
    devices = dict(Counter(device for naming in counting for device in naming.devices).most_common(16))
    return HostFact(
        host=host,
        runs=len(trials),
        named=len(counting),
        jobs=jobs,
        expected=round(sum(odds[run] for run in trials), 3),
        chance=chance,
        of_any=of_any,
        suspicious=of_any < SUSPICIOUS and jobs >= _FEWEST_JOBS,
        causes=[cause for cause, _ in causes.most_common(5)],
        devices=devices,
        device_chances=_device_chances(devices, [naming for naming in counting if naming.devices], lives),
        repaired_at=repaired_at,
        again=bool(repaired_at and counting and any(naming.at <= after for naming in mine)),
        last_at=max(naming.last for naming in mine),
    )


def _device_chances(
    devices: Mapping[str, int], namings: Sequence[Naming], lives: Mapping[int, Life]
) -> dict[str, float]:
    """In a run that names k of a host's D devices, chance names any one of them with k/D; all D count."""
    odds = [min(1.0, len(naming.devices) / lives[naming.run].devices) for naming in namings]
    most = max((lives[naming.run].devices for naming in namings), default=1.0)
    return {device: min(1.0, at_least(times, odds) * most) for device, times in devices.items()}


class FunctionFact(msgspec.Struct, frozen=True, kw_only=True):
    """A function that was a cause in several jobs.

    Attributes:
        jobs: Different jobs in which it was.
        runs: Runs in which it was.
        of_jobs: Jobs that were heard of in the same time.
        gain: Median share of the iteration that it costs.
        first_at: When it was seen first.
        names: Some of the jobs.
    """

    function: str
    cause: str
    jobs: int
    runs: int
    of_jobs: int
    gain: float
    first_at: float
    last_at: float
    names: list[str]


def function_facts(
    onsets: Sequence[Onset], lives: Mapping[int, Life], fewest: int = _FEWEST_JOBS
) -> list[FunctionFact]:
    """Functions that were a cause in at least so many jobs, those in most jobs first."""
    of_function: dict[tuple[str, str], list[Onset]] = defaultdict(list)
    for onset in onsets:
        if onset.run in lives and onset.function:
            of_function[onset.function, onset.cause].append(onset)
    of_jobs = len({life.job for life in lives.values()})
    facts = []
    for (function, cause), found in of_function.items():
        names = sorted({lives[onset.run].job for onset in found})
        if len(names) < fewest:
            continue
        facts.append(
            FunctionFact(
                function=function,
                cause=cause,
                jobs=len(names),
                runs=len({onset.run for onset in found}),
                of_jobs=of_jobs,
                gain=round(median(onset.gain for onset in found), 4),
                first_at=min(onset.at for onset in found),
                last_at=max(onset.last for onset in found),
                names=names[:10],
            )
        )
    return sorted(facts, key=lambda fact: (-fact.jobs, -fact.gain, fact.function))


WITHIN_S = 900.0
"""Begins that lie so close are one moment: windows open some minutes after a slowdown, and not at once."""
#: So many moments before and after one are what it is compared with.
_AROUND = 6
_FEWEST_AT_ONCE = 3
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
        if end - start < _FEWEST_AT_ONCE:
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
    if len(jobs) < _FEWEST_AT_ONCE:
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
