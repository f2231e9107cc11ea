"""Process groups whose transfers take longer than those of like groups, without anybody coming late.

Array suffixes: G groups, W workers, I iterations. Times are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.view import View
from eroica.diagnosis.words import short_name
from eroica.localize.families import Family, GroupPaths, paths_of, read_families, read_transfers
from eroica.model.verdict import ResourceUse
from eroica.model.window import SLOWER

Floats = NDArray[np.float64]
#: Part of the like groups that shows what such a transfer can take; of two it is the faster one, and that is less sure.
_FAST = 0.2
_FEWEST_SURE = 3
_ONE_OTHER = 0.7
_SLOWER_THAN_ONE = 2.0
#: A group is slow from this many times that on: healthy ones on the same network differ by 10 to 20 %, some by 40 %.
LONGER = 1.5
#: ... and is above it by half as much in this share of the iterations.
LONGER_ONCE = 1.2
OFTEN = 0.75
#: Where more of the groups are slow, they are not the exception.
_MOST_GROUPS = 0.6
#: Values of a counter behind a worker's μ and σ: at 20 ms each, 0.4 s.
LEAST_SAMPLES = 20
_MOST_HOSTS = 4
_PATHS = {"pcie": "PCIe link", "nic": "network interface", "nvlink": "NVLink"}


class SlowGroups(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Groups of a family that are slower than its fast ones.

    Attributes:
        family: All groups.
        slow: The slow ones.
        usual: The other groups.
        fast_us: Transfer time of the fast groups in each iteration. float64 [I].
        belief: Factor on the confidence for what the number of groups leaves open.
    """

    family: Family
    slow: tuple[GroupPaths, ...]
    usual: tuple[GroupPaths, ...]
    fast_us: Floats
    belief: float = 1.0

    @property
    def members(self) -> tuple[int, ...]:
        """Workers (indices) of the slow groups."""
        return tuple(sorted({worker for one in self.slow for worker in one.members}))

    @property
    def slow_us(self) -> float:
        """Mean transfer of the slow groups."""
        return float(np.mean([one.mean_us for one in self.slow]))

    @property
    def usual_mu(self) -> Floats:
        """Use of the path by the members of the other groups, NaN where it was not sampled."""
        return np.concatenate([one.mu for one in self.usual])


class Culprit(msgspec.Struct, frozen=True, kw_only=True):
    """Workers, or paths of theirs, that make process groups slow.

    Attributes:
        cause: Slug in the catalog.
        groups: Groups that it makes slow.
        workers: The accused (indices).
        subject: First sentence of the summary, without its end.
        evidence: Sentences of evidence.
        resource: Use of the path on them and on their peers.
        doubt: Factor on the confidence.
    """

    cause: str
    groups: tuple[GroupPaths, ...]
    workers: tuple[int, ...]
    subject: str
    evidence: tuple[str, ...]
    resource: ResourceUse | None = None
    doubt: float = 1.0


def find_slow_groups(view: View) -> Iterator[SlowGroups]:
    """Find families some of whose groups take clearly longer, again and again, for equal numbers of equal size."""
    least_us = view.settings.min_gain * view.iteration_us
    for family in read_families(view.fleet, view.suspects.arrivals):
        series_GI = np.stack([one.transfer_us for one in family.groups])
        is_sure = len(family.groups) >= _FEWEST_SURE
        if not is_sure and not view.fleet.has_accelerator:  # on cores two groups differ by who has more of them
            continue
        fast_I = np.quantile(series_GI, _FAST if is_sure else 0.0, axis=0)
        mean_G, fast_us = series_GI.mean(axis=1), float(fast_I.mean())
        slow_G = (mean_G >= (LONGER if is_sure else _SLOWER_THAN_ONE) * fast_us) & (mean_G - fast_us >= least_us)
        slow_G &= (series_GI >= LONGER_ONCE * fast_I).mean(axis=1) >= OFTEN
        if slow_G.any() and slow_G.mean() <= _MOST_GROUPS:
            groups = [
                (paths_of(view.fleet, one, LEAST_SAMPLES), at) for one, at in zip(family.groups, slow_G, strict=True)
            ]
            yield SlowGroups(
                family=family,
                slow=tuple(one for one, is_slow in groups if is_slow),
                usual=tuple(one for one, is_slow in groups if not is_slow),
                fast_us=fast_I,
                belief=1.0 if is_sure else _ONE_OTHER,
            )


def without_old(view: View, found: SlowGroups) -> SlowGroups:
    """Drop groups that took about as long in the baseline window, where that is a question.

    It is one where a job has become slower, and where one of two groups may be longer by what it is.
    """
    past = view.suspects.baseline
    if past is None or view.is_trace or (view.context.window.purpose not in SLOWER and found.belief == 1.0):
        return found
    then = read_transfers(past, {one.group for one in found.slow})
    kind = found.family.kind
    known = {group: before.mean_us for (group, what), (before, _) in then.items() if what == kind}
    new = [one for one in found.slow if one.mean_us >= LONGER_ONCE * known.get(one.group, 0.0)]
    return among(found, new)


def among(found: SlowGroups, groups: Sequence[GroupPaths]) -> SlowGroups:
    """Keep some of the slow groups only."""
    return msgspec.structs.replace(found, slow=tuple(groups))


# --- words ---


def name_groups(found: SlowGroups) -> str:
    """Name slow groups, as in "3 of 160 like groups of 16 workers"."""
    family = found.family
    return f"{len(found.slow)} of {len(family.groups)} like groups of {family.size} workers"


def name_collective(found: SlowGroups) -> str:
    """Name the kernel without its arguments."""
    return short_name(found.family.name.partition("(")[0])


def name_path(resource: str) -> str:
    """Name the path that carries the data."""
    return _PATHS.get(resource, resource)


def name_hosts(view: View, workers: Sequence[int]) -> str:
    """Name hosts, as in "node-3 and node-4", "85 hosts (node-1, node-2, ...)"."""
    hosts = hosts_of(view, workers)
    if len(hosts) > _MOST_HOSTS:
        return f"{len(hosts)} hosts ({', '.join(hosts[:3])}, ...)"
    listed = ", ".join(hosts[:-1])
    return (f"{listed} and {hosts[-1]}" if listed else hosts[0]) if hosts else "an unknown host"


def hosts_of(view: View, workers: Sequence[int]) -> tuple[str, ...]:
    """List the hosts of some workers, each once, in order of rank."""
    return tuple(dict.fromkeys(host for worker in workers if (host := view.fleet.patterns[worker].worker.host)))


def use_of(name: str, own: Floats, peers: Floats) -> ResourceUse | None:
    """Summarize the sampled use of a path, on the accused and on their peers."""
    known, like = own[~np.isnan(own)], peers[~np.isnan(peers)]
    if not known.size or not name:
        return None
    return ResourceUse(
        name=name, mean=round(float(known.mean()), 4), peers_mean=round(float(like.mean()), 4) if like.size else None
    )
