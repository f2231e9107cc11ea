"""Find process groups that are alike, and measure how long each takes for the same collective once all members came.

A hybrid-sharded job has hundreds of groups that do the same. Inside one of them nobody can tell a slow transfer from a
large one; beside each other they can be compared: equally many executions of equal size should take equally long.

Under NCCL there are no facts of single connections. The use of a worker's own path while it is in the collective tells
the rest (EROICA, section 3). With μ low and σ low, the worker sits on the bad link. With μ low and σ high, it waits in
a ring with a bad link. With μ higher than where the same takes less time, it moves its data on a slower path than
others.

Array suffixes: M members of a group, G groups of a family, I iterations, K executions. Times are microseconds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.localize.arrivals import Arrivals
from eroica.localize.entries import crowded_groups, labels_of
from eroica.localize.fleet import Fleet
from eroica.model.pattern import CollectiveRecord, WorkerPattern
from eroica.model.series import decode_series
from eroica.summarize.collectives import collective_kind

Floats = NDArray[np.float64]
#: Kinds in which all members are held until all have come, so that the shortest duration is the transfer.
_TOGETHER = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all"})
#: Of fewer like groups nothing tells which one is slow.
FEWEST_GROUPS = 3
#: Sizes of like executions differ by less than this factor.
SAME_SIZE = 1.1

Likeness = tuple[str, int]


class GroupTransfer(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One kind of collective in one group.

    Attributes:
        group: Its name.
        members: Indices of the workers.
        rows: Rows of this collective on them (indices into the fleet's keys).
        transfer_us: Critical time of an iteration in which nobody is waited for, mean over members. float64 [I].
    """

    group: str
    members: tuple[int, ...]
    rows: tuple[int, ...]
    transfer_us: Floats

    @property
    def mean_us(self) -> float:
        """Mean over iterations."""
        return float(self.transfer_us.mean())


class GroupPaths(GroupTransfer, frozen=True, kw_only=True, eq=False):
    """One kind of collective in one group, and how much of their paths the members use for it.

    Attributes:
        mu: Use of the path on each member, NaN where it was not sampled often enough. float64 [M].
        sigma: Its deviation. float64 [M].
        resource: What the path is ("pcie", "nic"); "" if nobody sampled it.
    """

    mu: Floats
    sigma: Floats
    resource: str


class Family(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Groups that run the same kind of collective equally often at equal size, with members of the same roles.

    Attributes:
        size: Members of each.
        name: What the trace calls it.
        groups: At least `FEWEST_GROUPS`, in order of name.
    """

    size: int
    name: str
    groups: tuple[GroupTransfer, ...]


def likeness_of_groups(patterns: Sequence[WorkerPattern]) -> dict[str, Likeness]:
    """Description and size of each process group, by name: groups for which both are equal do the same job."""
    return {
        group.name: (group.description, len(group.ranks)) for pattern in patterns for group in pattern.process_groups
    }


def read_families(fleet: Fleet, arrivals: Arrivals) -> tuple[Family, ...]:
    """Read families with enough groups whose executions pair and whose members are all present.

    Args:
        fleet: The window.
        arrivals: Who waited for whom in it.
    """
    ranks = {group.name: group.ranks for pattern in fleet.patterns for group in pattern.process_groups}
    like = likeness_of_groups(fleet.patterns)
    sizes = Counter(like.values())
    found: dict[tuple[object, ...], list[GroupTransfer]] = defaultdict(list)
    rows, labels = _rows_by_group(fleet), _labels(fleet)
    for (group, kind), owners in _records(fleet).items():
        likeness = like.get(group)
        if likeness is None or sizes[likeness] < FEWEST_GROUPS or len(owners) < len(ranks[group]) or likeness[1] < 2:
            continue
        own_rows = rows.get((group, kind)) or rows.get((labels[group], kind), ())
        made = _transfer(fleet, group, owners, own_rows, arrivals.transfer_us.get((group, kind)))
        if made is not None:
            roles = tuple(sorted({int(fleet.roles[worker]) for worker in owners}))
            found[(*likeness, kind, roles, *_amount(next(iter(owners.values()))))].append(made)
    families = [_family(fleet, key, groups) for key, groups in found.items() if len(groups) >= FEWEST_GROUPS]
    return tuple(families)


def _family(fleet: Fleet, key: tuple[object, ...], groups: list[GroupTransfer]) -> Family:
    names = [fleet.keys[row].name for one in groups for row in one.rows]
    return Family(
        size=len(groups[0].members),
        name=max(sorted(set(names)), key=names.count) if names else str(key[2]),
        groups=tuple(groups),
    )


def _records(fleet: Fleet) -> Mapping[tuple[str, str], dict[int, CollectiveRecord]]:
    """Records of (group, kind) by worker."""
    found: dict[tuple[str, str], dict[int, CollectiveRecord]] = defaultdict(dict)
    for worker, pattern in enumerate(fleet.patterns):
        for record in pattern.collectives:
            if record.kind in _TOGETHER and record.group:
                found[record.group, record.kind][worker] = record
    return found


def _rows_by_group(fleet: Fleet) -> Mapping[tuple[str, str], tuple[int, ...]]:
    """Rows of collectives by group and kind."""
    found: dict[tuple[str, str], tuple[int, ...]] = defaultdict(tuple)
    for at, key in enumerate(fleet.keys):
        if key.kind == "collective":
            found[key.group, collective_kind(key.name)] += (at,)
    return found


def _labels(fleet: Fleet) -> Mapping[str, str]:
    """Map each process group to the name of its rows where many like groups share a function."""
    crowded = crowded_groups(fleet.patterns)
    found: dict[str, str] = defaultdict(str)
    for pattern in fleet.patterns if crowded else ():
        found.update(labels_of(pattern, crowded))
    return found


def _amount(record: CollectiveRecord) -> tuple[int, int]:
    """Executions, and on which step of a ladder of sizes all their elements together stand (0 = unknown)."""
    elements = float(decode_series(record.elements, np.int64).sum())
    return record.executions, round(np.log(elements) / np.log(SAME_SIZE)) if elements > 0 else 0


def _transfer(
    fleet: Fleet, group: str, owners: Mapping[int, CollectiveRecord], rows: tuple[int, ...], booked_K: Floats | None
) -> GroupTransfer | None:
    """None where the members' executions do not lie beside each other one by one.

    Args:
        fleet: The window.
        group: Name of the group.
        owners: Records by worker.
        rows: Rows of this collective.
        booked_K: Critical time of each execution in which nobody is waited for, mean over members; None if unpaired.
    """
    first = next(iter(owners.values()))
    whole = all(
        one.sequence == first.sequence and one.paired_by == "sequence" and not one.dropped for one in owners.values()
    )
    if not whole or not rows or booked_K is None or booked_K.size != first.executions:
        return None
    place_K, columns_I = decode_series(first.iteration, np.int32), fleet.columns[next(iter(owners))]
    sums = np.bincount(np.maximum(place_K, 0), weights=booked_K * (place_K >= 0), minlength=int(columns_I.max()) + 1)
    return GroupTransfer(
        group=group,
        members=tuple(owners),
        rows=rows,
        transfer_us=np.asarray(sums[columns_I], dtype=np.float64),
    )


def paths_of(fleet: Fleet, transfer: GroupTransfer, least_samples: int) -> GroupPaths:
    """Measure how much of their paths the members of a group use for its collective.

    Args:
        fleet: The window.
        transfer: The collective; of its rows the one with the most critical time counts on each member.
        least_samples: Values of a channel from which μ and σ of a worker count.
    """
    members_M = np.asarray(transfer.members, dtype=np.intp)
    cells = np.asarray(transfer.rows, dtype=np.intp)[:, None], members_M
    longest_M = np.where(fleet.place[cells] >= 0, fleet.critical_us[cells], -1.0).argmax(axis=0)
    at = cells[0][longest_M, 0], members_M
    resource_M = [fleet.resources[number] for number in fleet.resource[at].tolist()]
    told_M = (fleet.place[at] >= 0) & (fleet.samples[at] >= least_samples) & np.asarray(resource_M, dtype=np.bool_)
    _, mu_M, sigma_M = fleet.pattern[at].T
    names = {name for name, is_told in zip(resource_M, told_M.tolist(), strict=True) if is_told}
    return GroupPaths(
        **msgspec.structs.asdict(transfer),
        mu=np.where(told_M, mu_M, np.nan),
        sigma=np.where(told_M & (sigma_M > 0), sigma_M, np.nan),
        resource=names.pop() if len(names) == 1 else "",
    )
