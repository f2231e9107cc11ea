"""From what the members of a job know of their ways to the planner's demand, and back: pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from c4p.catalogue import Entry, parse_way, write_way
from c4p.model import UNKNOWN, Way
from c4p.planner import Assignment, Demand, Pair, Reach


class Report(msgspec.Struct, frozen=True):
    """What one member knows.

    Attributes:
        source: Its host's address.
        target: Address of the next member's host.
        flows: Connections to it.
        ways: Ways to it, as text; empty where nothing is known.
        firsts: First router of each of its host's ports: left, right.
    """

    source: str
    target: str
    flows: int
    ways: list[str]
    firsts: list[str]


def report_of(entry: Entry, flows: int) -> Report:
    """What a member knows that has learned this entry."""
    return Report(entry.source, entry.target, flows, list(entry.ways), entry.firsts)


class Member(msgspec.Struct, frozen=True):
    """What the planner is told of one member.

    Attributes:
        source: Its host's address.
        target: Address of the next member's host.
        flows: Connections to it.
        reaches: For each side of the hosts' bonds: router before the tops, router after them, the tops. Empty where
            the member knows no ways.
        edition: How often the member has learned its ways again.
    """

    source: str
    target: str
    flows: int
    reaches: list[tuple[str, str, list[str]]]
    edition: int = 0


#: A member's ways as text, by side and top.
Choices = dict[tuple[int, str], str]


@dataclass(frozen=True, slots=True)
class Question:
    """A job's demand, and which way each of the planner's answers means.

    Attributes:
        demand: For the planner.
        flows: Connections of each member, by rank.
        choices: The ways of each member, by rank.
    """

    demand: Demand
    flows: list[int]
    choices: list[Choices]

    def answers(self, assignment: Assignment) -> list[list[str]]:
        """The ways of each member's connections, as text.

        Raises:
            KeyError: It has ways that a member has not.
            ValueError: It is of more or fewer flows.
        """
        picked = list(zip(assignment.sides, assignment.tops, strict=True))
        ends = list(itertools.accumulate((pair.flows for pair in self.demand.pairs), initial=0))
        if len(picked) != ends[-1]:
            raise ValueError(f"{len(picked)} ways for {ends[-1]} connections")
        mine = (picked[first:end] for first, end in itertools.pairwise(ends))
        members = zip(mine, self.flows, self.choices, strict=True)
        return [[choices[one] for one in some] or [""] * flows for some, flows, choices in members]


def sides_of(reports: Sequence[Report]) -> dict[str, int]:
    """Side of the bond, from 0, that each first router of these reports' hosts is on."""
    return {name: side for report in reports for side, name in enumerate(report.firsts)}


def ask(reports: Sequence[Report]) -> Question:
    """The demand of a job.

    Args:
        reports: One of each member, by rank.
    """
    sides = sides_of(reports)
    told = [tell(report, sides) for report in reports]
    demand = demand_of([member for member, _ in told])
    return Question(demand, [report.flows for report in reports], [choices for _, choices in told])


def tell(report: Report, sides: Mapping[str, int], edition: int = 0) -> tuple[Member, Choices]:
    """What the planner is told of a member, and which way each of its answers means.

    Args:
        report: What the member knows.
        sides: See `sides_of`; its own host and the next member's are needed.
        edition: How often the member has learned its ways again.

    Returns:
        Ways that leave a host's left port and arrive at another's right port are left out, unless there are no others.
    """
    ways = [parse_way(text) for text in report.ways if text]
    straight = [way for way in ways if sides.get(way[0], 0) == sides.get(way[-1], 0)] or ways
    reaches: list[tuple[str, str, list[str]]] = []
    choices: Choices = {}
    for side in range(1 + max((sides.get(way[0], 0) for way in straight), default=-1)):
        mine = [way for way in straight if sides.get(way[0], 0) == side]
        found = {_top(way): way for way in mine}
        choices |= {(side, top): write_way(way) for top, way in found.items()}
        reaches.append((*_ends(mine, report), sorted(found)))
    return Member(report.source, report.target, report.flows, reaches, edition), choices


def demand_of(members: Sequence[Member]) -> Demand:
    """Return the demand of a job's members, by rank."""
    return with_members(Demand([], []), enumerate(members))


def with_members(demand: Demand, members: Iterable[tuple[int, Member]]) -> Demand:
    """Return a demand in which some members, by rank, are replaced or added at the end."""
    pairs = list(demand.pairs)
    tops = {tuple(names): number for number, names in enumerate(demand.tops)}
    for rank, member in members:
        reaches = [Reach(a, b, tops.setdefault(tuple(names), len(tops))) for a, b, names in member.reaches]
        pairs[rank : rank + 1] = [Pair(member.source, member.target, member.flows if reaches else 0, reaches)]
    used = {number: new for new, number in enumerate(sorted({reach.tops for pair in pairs for reach in pair.reaches}))}
    if len(used) < len(tops):
        for rank, pair in enumerate(pairs):
            fresh = [Reach(reach.entry, reach.exit, used[reach.tops]) for reach in pair.reaches]
            pairs[rank] = Pair(pair.source, pair.target, pair.flows, fresh)
    return Demand(pairs, [list(names) for names, number in tops.items() if number in used])


def _top(way: Way) -> str:
    return way[len(way) // 2]


def _ends(ways: Sequence[Way], report: Report) -> tuple[str, str]:
    """Routers on both sides of the tops; the hosts themselves where the tops are their neighbours."""
    if not ways or len(ways[0]) == 1:
        return report.source, report.target
    middle = len(ways[0]) // 2
    return ways[0][middle - 1], ways[0][middle + 1] if middle + 1 < len(ways[0]) else report.target


def spread(ways: Sequence[Way], flows: int) -> list[Way]:
    """Without a planner: the ways in turn."""
    known = [way for way in ways if way != UNKNOWN] or [UNKNOWN]
    return [known[flow % len(known)] for flow in range(flows)]
