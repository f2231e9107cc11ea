"""Conversion between the paths that a job's members know and the planner's demand. Pure functions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from c4p.catalogue import Entry, parse_path, write_path
from c4p.model import UNKNOWN, NetworkPath
from c4p.planner import Assignment, Demand, LeafPair, Pair


class PathReport(msgspec.Struct, frozen=True):
    """The paths that one member knows.

    Attributes:
        source: Its host's address.
        target: Address of the next member's host.
        flows: Connections to it.
        paths: Paths to it, as text; empty where nothing is known.
        first_routers: First router of each of its host's ports: left, right.
    """

    source: str
    target: str
    flows: int
    paths: list[str]
    first_routers: list[str]


def report_of(entry: Entry, flows: int) -> PathReport:
    """Return the report of a member that has learned this entry."""
    return PathReport(entry.source, entry.target, flows, list(entry.paths), entry.first_routers)


class Member(msgspec.Struct, frozen=True):
    """One member's paths, as sent to the planner.

    Attributes:
        source: Its host's address.
        target: Address of the next member's host.
        flows: Connections to it.
        leaf_pairs: For each side of the hosts' bonds: leaf before the spines, leaf after them, the spines. Empty where
            the member knows no paths.
        revision: How often the member has learned its paths again.
    """

    source: str
    target: str
    flows: int
    leaf_pairs: list[tuple[str, str, list[str]]]
    revision: int = 0


#: A member's paths as text, by side and spine.
Choices = dict[tuple[int, str], str]


@dataclass(frozen=True, slots=True)
class JobDemand:
    """A job's demand, and each member's paths by side and spine.

    Attributes:
        demand: For the planner.
        flows: Connections of each member, by rank.
        choices: The paths of each member, by rank.
    """

    demand: Demand
    flows: list[int]
    choices: list[Choices]

    def answers(self, assignment: Assignment) -> list[list[str]]:
        """Return the paths of each member's connections, as text.

        Raises:
            KeyError: It has paths that a member has not.
            ValueError: It is of more or fewer flows.
        """
        picked = list(zip(assignment.sides, assignment.spines, strict=True))
        ends = list(itertools.accumulate((pair.flows for pair in self.demand.pairs), initial=0))
        if len(picked) != ends[-1]:
            raise ValueError(f"{len(picked)} paths for {ends[-1]} connections")
        mine = (picked[first:end] for first, end in itertools.pairwise(ends))
        members = zip(mine, self.flows, self.choices, strict=True)
        return [[choices[one] for one in some] or [""] * flows for some, flows, choices in members]


def sides_of(reports: Sequence[PathReport]) -> dict[str, int]:
    """Return the side of the bond, from 0, of each first router of these reports' hosts."""
    return {name: side for report in reports for side, name in enumerate(report.first_routers)}


def combine(reports: Sequence[PathReport]) -> JobDemand:
    """Combine the members' reports into the demand of their job.

    Args:
        reports: One of each member, by rank.
    """
    sides = sides_of(reports)
    told = [member_of(report, sides) for report in reports]
    demand = demand_of([member for member, _ in told])
    return JobDemand(demand, [report.flows for report in reports], [choices for _, choices in told])


def member_of(report: PathReport, sides: Mapping[str, int], revision: int = 0) -> tuple[Member, Choices]:
    """Return a member's record for the planner, and its paths by side and spine.

    Args:
        report: What the member knows.
        sides: See `sides_of`; its own host and the next member's are needed.
        revision: How often the member has learned its paths again.

    Returns:
        The record and the choices. Paths from a host's left port to another's right port are left out, unless there
        are no others.
    """
    paths = [parse_path(text) for text in report.paths if text]
    straight = [path for path in paths if sides.get(path[0], 0) == sides.get(path[-1], 0)] or paths
    leaf_pairs: list[tuple[str, str, list[str]]] = []
    choices: Choices = {}
    for side in range(1 + max((sides.get(path[0], 0) for path in straight), default=-1)):
        mine = [path for path in straight if sides.get(path[0], 0) == side]
        found = {_spine(path): path for path in mine}
        choices |= {(side, spine): write_path(path) for spine, path in found.items()}
        leaf_pairs.append((*_ends(mine, report), sorted(found)))
    return Member(report.source, report.target, report.flows, leaf_pairs, revision), choices


def demand_of(members: Sequence[Member]) -> Demand:
    """Return the demand of a job's members, by rank."""
    return with_members(Demand([], []), enumerate(members))


def with_members(demand: Demand, members: Iterable[tuple[int, Member]]) -> Demand:
    """Return a demand in which some members, by rank, are replaced or added at the end."""
    pairs = list(demand.pairs)
    spines = {tuple(names): number for number, names in enumerate(demand.spines)}
    for rank, member in members:
        leaf_pairs = [LeafPair(a, b, spines.setdefault(tuple(names), len(spines))) for a, b, names in member.leaf_pairs]
        pairs[rank : rank + 1] = [Pair(member.source, member.target, member.flows if leaf_pairs else 0, leaf_pairs)]
    numbers = {leaves.spines for pair in pairs for leaves in pair.leaf_pairs}
    used = {number: new for new, number in enumerate(sorted(numbers))}
    if len(used) < len(spines):
        for rank, pair in enumerate(pairs):
            fresh = [
                LeafPair(leaves.source_leaf, leaves.target_leaf, used[leaves.spines]) for leaves in pair.leaf_pairs
            ]
            pairs[rank] = Pair(pair.source, pair.target, pair.flows, fresh)
    return Demand(pairs, [list(names) for names, number in spines.items() if number in used])


def _spine(path: NetworkPath) -> str:
    return path[len(path) // 2]


def _ends(paths: Sequence[NetworkPath], report: PathReport) -> tuple[str, str]:
    """Return the leaves on both sides of the spines, or the hosts themselves if the spines are their neighbours."""
    if not paths or len(paths[0]) == 1:
        return report.source, report.target
    middle = len(paths[0]) // 2
    return paths[0][middle - 1], paths[0][middle + 1] if middle + 1 < len(paths[0]) else report.target


def spread(paths: Sequence[NetworkPath], flows: int) -> list[NetworkPath]:
    """Return known paths in turn, one for each flow."""
    known = [path for path in paths if path != UNKNOWN] or [UNKNOWN]
    return [known[flow % len(known)] for flow in range(flows)]
