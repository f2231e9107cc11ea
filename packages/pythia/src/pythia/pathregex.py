"""Bounded regular expressions of role paths.

A path is cut into the strongly connected groups of the graph of roles, which it passes in topological order. A group of
one role becomes `role{m,n}`; in a group of several, the role where paths enter is the head of a loop, and what lies
between two heads is learned in the same way. Every path that was learned is accepted, and every expression is bounded.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import networkx as nx

Path = tuple[str, ...]


@dataclass(frozen=True)
class Node:
    """A part of an expression, repeated `low` to `high` times.

    Attributes:
        role: The role, if the part is a single one.
        parts: Otherwise the parts that follow each other.
    """

    low: int
    high: int
    role: str = ""
    parts: tuple[Node, ...] = ()

    def __str__(self) -> str:
        """Return the usual notation, e.g. `planner -> explorer{3,4}`."""
        count = "" if (self.low, self.high) == (1, 1) else "?" if (self.low, self.high) == (0, 1) else None
        if count is None:
            count = f"{{{self.low}}}" if self.low == self.high else f"{{{self.low},{self.high}}}"
        if self.role:
            return self.role + count
        inner = " -> ".join(map(str, self.parts))
        return f"({inner}){count}" if count else inner


def above_cut(paths: Mapping[Path, int], cut: float, most_lost: float) -> list[Path]:
    """Return the paths that use no rare step, as long as few runs are lost by that.

    Args:
        paths: How often each path was seen.
        cut: A step between roles is rare if it follows its role with less than this probability.
        most_lost: Share of the runs that may be left out.

    Rare steps are dropped in order of rarity. Dropping all of them would reject too many later runs, because each run
    has many steps (the paper drops edges under about 5 %; the second condition is ours).
    """
    steps: Counter[tuple[str, str]] = Counter()
    leaving: Counter[str] = Counter()
    for path, count in paths.items():
        for step in itertools.pairwise(("", *path, "")):
            steps[step] += count
            leaving[step[0]] += count
    shares = {step: count / leaving[step[0]] for step, count in steps.items()}
    total, kept = sum(paths.values()), dict(paths)
    for rare in sorted((s for s in shares if shares[s] < cut), key=lambda s: (shares[s], s)):
        left = {p: n for p, n in kept.items() if rare not in itertools.pairwise(("", *p, ""))}
        if total - sum(left.values()) > most_lost * total:
            break
        kept = left
    return sorted(kept)


def learn(paths: Sequence[Path]) -> Node:
    """Return a bounded expression that accepts all given paths: their groups one after the other."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    for path in sorted(set(paths)):
        graph.add_nodes_from(path)
        graph.add_edges_from(itertools.pairwise(path))
    condensed = nx.condensation(graph)
    parts: list[Node] = []
    for group in nx.lexicographical_topological_sort(condensed, key=lambda g: min(condensed.nodes[g]["members"])):
        members = condensed.nodes[group]["members"]
        cut = [tuple(role for role in path if role in members) for path in paths]
        parts.append(_group(cut, members))
    return parts[0] if len(parts) == 1 else Node(1, 1, parts=tuple(parts))


def _group(cut: list[Path], members: set[str]) -> Node:
    """Learn one strongly connected group from what each path does in it."""
    present = [segment for segment in cut if segment]
    missing = len(present) < len(cut)
    if len(members) == 1:
        lengths = [len(segment) for segment in cut]
        return Node(min(lengths), max(lengths), role=next(iter(members)))
    entries = Counter(segment[0] for segment in present)
    head = min(entries, key=lambda role: (-entries[role], role))
    before: list[Path] = []
    bodies: list[Path] = []
    loops: list[int] = []
    for segment in present:
        places = [i for i, role in enumerate(segment) if role == head]
        before.append(segment[: places[0]] if places else segment)
        loops.append(len(places))
        for start, end in zip(places, [*places[1:], len(segment)], strict=False):
            bodies.append(segment[start + 1 : end])
    inner = (Node(1, 1, role=head), *(_flat(learn(bodies)) if any(bodies) else ()))
    low, high = min(loops), max(loops)
    loop = Node(low, high, parts=inner) if len(inner) > 1 else Node(low, high, role=head)
    parts = (*_flat(learn(before)), loop) if any(before) else (loop,)
    if len(parts) == 1 and not (missing and low):
        return loop
    return Node(0 if missing else 1, 1, parts=parts)


def _flat(node: Node) -> tuple[Node, ...]:
    return node.parts if not node.role and (node.low, node.high) == (1, 1) else (node,)


def accepts(node: Node, path: Sequence[str]) -> bool:
    """Return whether the whole path matches; polynomial in its length."""
    return len(path) in _ends(node, tuple(path), {0})


def _ends(node: Node, path: Path, starts: set[int]) -> set[int]:
    """Return the places where a match of the node that begins at one of `starts` may end."""
    reached, ends = starts, set() if node.low else starts
    for turn in range(1, node.high + 1):
        if node.role:
            reached = {place + 1 for place in reached if path[place : place + 1] == (node.role,)}
        for part in node.parts:
            reached = _ends(part, path, reached)
        if turn >= node.low:
            if reached <= ends:
                break
            ends = ends | reached
        if not reached:
            break
    return ends
