"""The graph of waits between workers and meetings, and walks in it.

Nodes are workers (their global rank) and meetings (-1 minus their index). A worker points to the meetings it waits in,
a meeting to those who have not entered it (or whose device stands still before it). Every walk is linear in nodes and
edges.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

import msgspec

from eroica.diagnosis.blocked.meetings import Meeting, Meetings
from eroica.diagnosis.blocked.scene import Scene
from eroica.diagnosis.sections import MOST_EDGES
from eroica.model.verdict import WaitEdge, Waits

Node = int


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """Graph of waits between workers and meetings; `onward` and `back` hold each edge once."""

    meetings: Meetings
    onward: Mapping[Node, tuple[Node, ...]]
    back: Mapping[Node, tuple[Node, ...]]

    @property
    def waiters(self) -> frozenset[int]:
        """Workers that wait in a meeting or for a peer."""
        return frozenset(node for node in self.onward if node >= 0)

    def meeting(self, node: Node) -> Meeting:
        """Return the meeting of a node below zero."""
        return self.meetings.items[-1 - node]

    def reaching(self, targets: Iterable[Node]) -> frozenset[Node]:
        """Find nodes that wait, directly or through others, for one of the targets; the targets included."""
        return _walk(self.back, targets)

    def reached(self, starts: Iterable[Node]) -> frozenset[Node]:
        """Find nodes that the starts wait for, directly or through others; the starts included."""
        return _walk(self.onward, starts)

    def ends(self) -> frozenset[Node]:
        """Find nodes that others wait for and that wait for nobody."""
        return frozenset(node for node in self.back if not self.onward.get(node))

    def circle(self) -> frozenset[Node]:
        """Find nodes that wait for each other in a circle from which no way leads to an end."""
        closed = set(self.onward.keys() - self.reaching(self.ends()))
        degree = {node: sum(other in closed for other in self.back.get(node, ())) for node in closed}
        free = [node for node, number in degree.items() if not number]
        while free:
            node = free.pop()
            closed.discard(node)
            for other in self.onward.get(node, ()):
                if other in degree:
                    degree[other] -= 1
                    if not degree[other]:
                        free.append(other)
        return frozenset(closed)


def find_waiting(meetings: Meetings) -> Waiting:
    """Build the graph."""
    onward: dict[Node, list[Node]] = defaultdict(list)
    for index, meeting in enumerate(meetings.items):
        for rank in meeting.waiting:
            onward[rank].append(-1 - index)
        onward[-1 - index] += (*meeting.behind, *meeting.stalled)
        if meeting.previous is not None:
            onward[-1 - index].append(-1 - meeting.previous)
    for rank, peer in meetings.peers.items():
        if rank not in meetings.facing:
            onward[rank].append(peer)
    back: dict[Node, list[Node]] = defaultdict(list)
    for node, others in onward.items():
        for other in others:
            back[other].append(node)
    return Waiting(
        meetings=meetings,
        onward={node: tuple(others) for node, others in onward.items()},
        back={node: tuple(others) for node, others in back.items()},
    )


def _walk(edges: Mapping[Node, tuple[Node, ...]], starts: Iterable[Node]) -> frozenset[Node]:
    seen = set(starts)
    stack = list(seen)
    while stack:
        for other in edges.get(stack.pop(), ()):
            if other not in seen:
                seen.add(other)
                stack.append(other)
    return frozenset(seen)


# --- build the verdict's list of waits of a job that stands still: names without times ---


def standing_waits(scene: Scene, waiting: Waiting) -> Waits | None:
    """List each waiting worker with those that have not come to its collective; None where no wait is known.

    Times are not told: a standstill has no iterations, and has not ended.
    """
    pairs = tuple(islice(_pairs(waiting), MOST_EDGES))
    if not pairs:
        return None
    return Waits(
        total_ms=0.0,
        withheld_ms=0.0,
        edges=tuple(WaitEdge(waiter=waiter, on=on, per_iteration_ms=0.0) for waiter, on in pairs),
        workers=scene.heard,
        standstill=True,
    )


def _pairs(waiting: Waiting) -> Iterator[tuple[int, int]]:
    """List each worker that waits with each one it waits for, once."""
    missing = _missing(waiting)
    for waiter in sorted(waiting.waiters):
        seen = {waiter}
        for node in waiting.onward.get(waiter, ()):
            for other in (node,) if node >= 0 else missing[-1 - node]:
                if other not in seen:
                    seen.add(other)
                    yield waiter, other


def _missing(waiting: Waiting) -> list[tuple[int, ...]]:
    """List the workers that each meeting, or an earlier one of its group, misses; at most `MOST_EDGES`."""
    missing: list[tuple[int, ...]] = []
    for meeting in waiting.meetings.items:
        before = missing[meeting.previous] if meeting.previous is not None else ()
        missing.append((*meeting.behind, *meeting.stalled, *before)[:MOST_EDGES])
    return missing
