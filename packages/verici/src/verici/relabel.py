"""Abstraction based relabelling (ABR): failures that the constants cannot explain become passes."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from typing import TypeVar

State = TypeVar("State", bound=Hashable)


def relabel(
    failed: Mapping[State, bool], edges: Iterable[tuple[State, State]], summaries: Mapping[State, Hashable]
) -> dict[State, bool]:
    """Return labels in which no failure stands next to a pass with equal constants.

    A failed build next to a passed one with the same summary becomes a pass, in both directions, until nothing
    changes. A pass never becomes a failure. The order of the steps does not matter: each step only removes failures.

    Args:
        failed: Whether the build of each state failed.
        edges: Consecutive builds as (earlier, later); those with a state that has no label are left out.
        summaries: The constants of each state; only equality is used.

    Source:
        SANER 2022, section IV. Deviation: "consecutive" is parent and child, not the order in time.
    """
    neighbours: dict[State, list[State]] = defaultdict(list)
    for one, other in edges:
        if one in failed and other in failed and summaries[one] == summaries[other]:
            neighbours[one].append(other)
            neighbours[other].append(one)
    result = dict(failed)
    waiting = deque(state for state, bad in failed.items() if not bad)
    while waiting:
        for other in neighbours[waiting.popleft()]:
            if result[other]:
                result[other] = False
                waiting.append(other)
    return result


def consecutive(parents: Mapping[str, Sequence[str]], labelled: Set[str]) -> list[tuple[str, str]]:
    """Return (ancestor, commit) for each labelled commit and its nearest labelled ancestor along each parent.

    Args:
        parents: Commit to parents, in an order in which parents stand before children.
        labelled: Commits that have a label.
    """
    nearest: dict[str, tuple[str, ...]] = {}
    edges: list[tuple[str, str]] = []
    for commit, above in parents.items():
        found: dict[str, None] = {}
        for parent in above:
            for one in (parent,) if parent in labelled else nearest.get(parent, ())[:_MOST_ANCESTORS]:
                found[one] = None
        nearest[commit] = tuple(found)
        if commit in labelled:
            edges += [(one, commit) for one in found]
    return edges


#: Branches whose last labelled build is remembered through unlabelled merges.
_MOST_ANCESTORS = 8
