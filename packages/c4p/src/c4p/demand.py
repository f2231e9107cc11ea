"""From what the members of a job know of their ways to the planner's demand, and back: pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from c4p.catalogue import parse_way, write_way
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


@dataclass(frozen=True, slots=True)
class Question:
    """A demand, and which way each of its answers means.

    Attributes:
        demand: For the planner.
        ranks: Member of each pair of the demand.
        ways: Way by pair, side and top.
        flows: Connections of each member.
    """

    demand: Demand
    ranks: list[int]
    ways: dict[tuple[int, int, str], str]
    flows: list[int]

    def answers(self, assignment: Assignment) -> list[list[str]]:
        """The ways of each member's connections, as text."""
        planned: list[list[str]] = [[""] * count for count in self.flows]
        choices = zip(assignment.sides, assignment.tops, strict=True)
        for index, (rank, pair) in enumerate(zip(self.ranks, self.demand.pairs, strict=True)):
            planned[rank] = [self.ways[index, side, top] for side, top in itertools.islice(choices, pair.flows)]
        return planned


def ask(reports: Sequence[Report]) -> Question:
    """The demand of a job.

    Args:
        reports: One of each member, by rank.

    Returns:
        The demand: one pair for each member that knows more than one way. Ways that leave a host's left port and
        arrive at another's right port are left out, unless there are no others.
    """
    sides = {name: side for report in reports for side, name in enumerate(report.firsts)}
    pairs: list[Pair] = []
    ranks: list[int] = []
    tops: dict[tuple[str, ...], int] = {}
    named: dict[tuple[int, int, str], str] = {}
    for rank, report in enumerate(reports):
        ways = [parse_way(text) for text in report.ways if text]
        if not ways:
            continue
        straight = [way for way in ways if sides.get(way[0], 0) == sides.get(way[-1], 0)] or ways
        reaches: list[Reach] = []
        for side in range(1 + max(sides.get(way[0], 0) for way in straight)):
            mine = [way for way in straight if sides.get(way[0], 0) == side]
            entry, exit_ = _ends(mine, report)
            found = {_top(way): way for way in mine}
            names = tuple(sorted(found))
            named |= {(len(pairs), side, top): write_way(way) for top, way in found.items()}
            reaches.append(Reach(entry, exit_, tops.setdefault(names, len(tops))))
        pairs.append(Pair(report.source, report.target, report.flows, reaches))
        ranks.append(rank)
    return Question(Demand(pairs, [list(names) for names in tops]), ranks, named, [r.flows for r in reports])


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
