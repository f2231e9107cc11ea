"""Traffic on a slower path than it should take: a group is slow, and members use more of that path than anybody else.

Source:
    EROICA, appendix A: three of 48 workers whose all-gather takes 0.5 instead of 0.2 of the window have a higher use of
    PCIe than their peers; NVLink was down on them, and the ring goes at their pace.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

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

#: A slower path is used more from this many times on what nearly everybody in the other groups uses.
MORE = 1.5
_NEARLY_EVERYBODY = 0.95
#: Links between devices of a host; less use of the interface between hosts is what it would fall back to.
SLOWER_PATHS = frozenset({"pcie"})


def find_fallback(view: View, found: SlowGroups) -> Culprit | None:
    """Accuse members that use more of a slower path than nearly all in groups that are not slow; None without any."""
    known = found.usual_mu[~np.isnan(found.usual_mu)]
    if not known.size:
        return None
    usual = float(np.quantile(known, _NEARLY_EVERYBODY))
    least = max(MORE * usual, usual + view.settings.utilization_floor)
    detours = {one.group: _above(one, least) for one in found.slow if one.resource in SLOWER_PATHS}
    groups = [one for one in found.slow if detours.get(one.group)]
    if not groups:
        return None
    workers = tuple(sorted({worker for members in detours.values() for worker in members}))
    own = np.concatenate([one.mu[np.isin(one.members, workers)] for one in groups])
    path, part = groups[0].resource, among(found, groups)
    return Culprit(
        cause="link-fallback",
        groups=tuple(groups),
        workers=workers,
        subject=_subject(view, part, workers, path, (float(own.mean()), float(np.median(known)))),
        evidence=tuple(_evidence(view, part, workers)),
        resource=use_of(path, own, known),
    )


def _above(one: GroupPaths, least: float) -> list[int]:
    return [worker for worker, mu in zip(one.members, one.mu, strict=True) if mu >= least]


def _subject(view: View, found: SlowGroups, workers: tuple[int, ...], path: str, use: tuple[float, float]) -> str:
    who = name_workers([view.fleet.ranks[worker] for worker in workers], capital=True)
    whose = "its" if len(workers) == 1 else "their"
    takes = "s take" if len(found.slow) > 1 else " takes"
    return (
        f"{who} ({name_hosts(view, workers)}) {says_path(workers, path)} that others keep off it "
        f"({percent(use[0])} of it used against {percent(use[1])}), and {whose} group{takes} "
        f"{format_ms(found.slow_us)} in {name_collective(found)} instead of {format_ms(float(found.fast_us.mean()))}"
    )


def says_path(workers: tuple[int, ...], path: str) -> str:
    """Say which path workers use, as in "sends data over its PCIe link"."""
    verb, whose = ("sends", "its") if len(workers) == 1 else ("send", "their")
    return f"{verb} data over {whose} {name_path(path)}"


def _evidence(view: View, found: SlowGroups, workers: tuple[int, ...]) -> Iterator[str]:
    others = np.setdiff1d(found.members, workers)
    hosts, one = len(hosts_of(view, found.members)), len(workers) == 1
    yield (
        f"{name_groups(found)} {'is' if len(found.slow) == 1 else 'are'} slow, with {len(found.members)} workers on "
        f"{hosts} host{'s' * (hosts != 1)}; all of these wait for the same ring, "
        f"{'one of them uses' if one else f'{len(workers)} of them use'} more of the slower path."
    )
    mu = np.concatenate([one.mu[np.isin(one.members, others)] for one in found.slow])
    mu = mu[~np.isnan(mu)]
    if mu.size:
        yield f"The other {others.size} members use {percent(mu.mean())} of theirs, like the groups that are not slow."
