"""Hosts that were culprits in several jobs, and how likely chance alone names them as often."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from eroica_fleet.insights.chance import at_least
from eroica_fleet.insights.evidence import Life, Naming

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
