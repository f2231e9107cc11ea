"""Find the members of a slow group that sit on a bad link, or else name the paths among its hosts.

Source:
    EROICA, section 3: in a ring with a bad link all have a low mean throughput. Members that wait for the link flip
    between full speed and nothing, a high deviation; those on the link itself have a low one. Section 6.2: of 40
    workers in slow groups six use less of their path than the rest, and a network interface of their host is down.

Array suffix: M members of a group.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.slow_groups import (
    Culprit,
    SlowGroups,
    among,
    hosts_of,
    name_collective,
    name_groups,
    name_hosts,
    name_path,
    use_of,
)
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms, name_workers
from eroica.localize.families import GroupPaths
from eroica.model.shares import percent

Floats = NDArray[np.float64]
#: Members on the link use less than this share of what their ring peers use.
_LESS = 0.5
#: Where all of a group use less than this share of what other groups do, deviations tell members on the link:
_ALL_LESS = 0.75
#: those with at most this share of the others' deviation.
_STEADY = 0.5
#: Nobody on a link that is slow all the time has a deviation so much above the others'.
_RESTLESS = 1.5
#: Fewer than this share of a group sit on a link.
_MOST_MEMBERS = 0.5
#: Only the hosts of a slow group are known, not which of them it is, nor whether it is the way between them.
_UNTOLD = 0.7


def find_bad_links(view: View, found: SlowGroups) -> Culprit | None:
    """Accuse members of slow groups that sit on a link which carries little; None where μ and σ tell of none."""
    floor = view.settings.utilization_floor
    usual_mu = found.usual_mu
    on_link = {one.group: _on_link(one, usual_mu, floor) for one in found.slow if one.resource}
    groups = [one for one in found.slow if on_link.get(one.group)]
    if not groups:
        return None
    workers = tuple(sorted({worker for members in on_link.values() for worker in members}))
    own, peers = (
        np.concatenate([one.mu[np.isin(one.members, workers, invert=others)] for one in groups])
        for others in (False, True)
    )
    path, part = groups[0].resource, among(found, groups)
    use = float(np.nanmean(own)), float(np.nanmedian(peers))
    return Culprit(
        cause="slow-link",
        groups=tuple(groups),
        workers=workers,
        subject=_link_subject(view, part, workers, path, use),
        evidence=tuple(_link_evidence(view, part, workers)),
        resource=use_of(path, own, peers),
    )


def _on_link(one: GroupPaths, usual_mu: Floats, floor: float) -> list[int]:
    """List the members with low μ and no high σ beside their ring peers; where all are low, those with a low σ."""
    if np.isnan(one.mu).all():
        return []
    middle, spread = float(np.nanmedian(one.mu)), _median(one.sigma)
    low_M = (one.mu <= _LESS * middle) & (middle - one.mu >= floor)
    low_M &= ~(one.sigma > _RESTLESS * spread)
    known = usual_mu[~np.isnan(usual_mu)]
    if not low_M.any() and known.size and middle <= min(_ALL_LESS * np.median(known), np.median(known) - floor):
        low_M = (one.sigma <= _STEADY * spread) & (spread - one.sigma >= floor)
    if low_M.mean() >= _MOST_MEMBERS:
        return []
    return [worker for worker, is_low in zip(one.members, low_M, strict=True) if is_low]


def _median(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if known.size else float("nan")


def _link_subject(view: View, found: SlowGroups, workers: tuple[int, ...], path: str, use: tuple[float, float]) -> str:
    who = name_workers([view.fleet.ranks[worker] for worker in workers])
    verb, whose = ("uses", "its") if len(workers) == 1 else ("use", "their")
    return (
        f"The network link of {name_hosts(view, workers)} carries little: {who} {verb} {percent(use[0])} of {whose} "
        f"{name_path(path)} in {name_collective(found)}, {whose} ring peers {percent(use[1])}, and all of "
        f"{whose} group{'s' if len(found.slow) > 1 else ''} take {format_ms(found.slow_us)} for it instead of "
        f"{format_ms(float(found.fast_us.mean()))}"
    )


def _link_evidence(view: View, found: SlowGroups, workers: tuple[int, ...]) -> Iterator[str]:
    yield (
        f"{name_groups(found)} {'is' if len(found.slow) == 1 else 'are'} slow, on "
        f"{len(hosts_of(view, found.members))} hosts; nobody comes late to the collective."
    )
    one = next(each for each in found.slow if set(each.members) & set(workers))
    lowest = one.members[int(np.nanargmin(one.mu))]
    yield f"The least use is that of worker {view.fleet.ranks[lowest]}: {percent(float(np.nanmin(one.mu)), 1)}."
    own = np.isin(one.members, workers)
    spreads = _median(one.sigma[own]), _median(one.sigma[~own])
    if not any(np.isnan(spreads)):
        yield (
            f"Their deviation is {spreads[0]:.2f}, that of the others in the ring {spreads[1]:.2f}: a low one means "
            "sitting on the link, a high one waiting for it."
        )


def find_slow_paths(view: View, found: SlowGroups) -> Culprit:
    """Accuse the hosts of slow groups, where members are alike or nothing was sampled."""
    members = found.members
    mu = np.concatenate([one.mu for one in found.slow])
    return Culprit(
        cause="slow-link",
        groups=found.slow,
        workers=members,
        subject=(
            f"The network paths among {name_hosts(view, members)} are slow: {name_groups(found)} take "
            f"{format_ms(found.slow_us)} in {name_collective(found)} for what the fast ones do in "
            f"{format_ms(float(found.fast_us.mean()))}"
        ),
        evidence=tuple(_paths_evidence(found, mu)),
        resource=use_of(found.slow[0].resource, mu, found.usual_mu),
        doubt=_UNTOLD,
    )


def _paths_evidence(found: SlowGroups, mu: Floats) -> Iterator[str]:
    means = sorted(one.mean_us for one in (*found.slow, *found.usual))
    yield (
        f"Over all {len(means)} like groups it takes {format_ms(means[0])} to {format_ms(means[-1])}, with equally "
        "many executions of equal size."
    )
    if np.isnan(mu).all():
        yield "Nobody sampled how much of their path the workers use, so no single link can be named."
    else:
        yield "The workers of each of these groups use their own paths alike: no single one of them is to blame."
