"""The graph of waits between workers and meetings, walks in it, and the origins that rules find there.

Nodes are workers (their global rank) and meetings (-1 minus their index). A worker points to the meetings it waits in,
a meeting to those who have not entered it (or whose device stands still before it). Every walk is linear in nodes and
edges.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from eroica.diagnosis.blocked.meetings import Meeting, Meetings
from eroica.diagnosis.blocked.places import Site
from eroica.diagnosis.blocked.scene import Member, Scene
from eroica.diagnosis.sections import MOST_EDGES
from eroica.diagnosis.words import name_workers
from eroica.model.shares import percent
from eroica.model.verdict import FindingFunction, WaitEdge, Waits
from eroica.model.words import clean

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


# --- what a rule hands over: one reason why the job stands still ---


#: Causes, places and symptoms that a verdict tells at most.
MOST_TOLD = 20
#: Sentences of one kind that the evidence of a cause holds at most.
MOST_SENTENCES = 6


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """One cause, on one or several workers.

    Attributes:
        cause: Slug of the catalog.
        ranks: Global ranks of the accused.
        function: Function in which they sit.
        verbs: Verb of the sentence, for one worker and for several: ("sits", "sit").
        rest: The rest of the clause after the verb.
        who: Subject of the sentence where it is not the workers.
        evidence: One fact each.
        confidence: Probability that this is the cause, before coverage.
        nodes: Where ways of the graph must end that it explains; by default the workers.
        next_step: Instead of the catalog's.
        is_all: Nobody is singled out.
    """

    cause: str
    ranks: tuple[int, ...]
    function: FindingFunction
    verbs: tuple[str, str]
    rest: str
    who: str = ""
    evidence: tuple[str, ...] = ()
    confidence: float
    nodes: tuple[Node, ...] = ()
    next_step: str = ""
    is_all: bool = False

    @property
    def targets(self) -> tuple[Node, ...]:
        """Nodes of the graph at which waits for this origin arrive."""
        return self.nodes or self.ranks

    @property
    def clause(self) -> str:
        """Clause such as "worker 2 sits in next_batch (train.py:88)"."""
        who = self.who or name_workers(self.ranks)
        return f"{who} {self.verbs[0] if self.who or len(self.ranks) == 1 else self.verbs[1]} {self.rest}"


def function_of(site: Site) -> FindingFunction:
    """Return the site as a finding's function."""
    return FindingFunction(name=site.name, kind="python" if site.own else "other", stack=site.stack)


def state_words(member: Member) -> str:
    """Describe the training thread's state in the kernel: "asleep in futex_do_wait, no CPU used in 2.0 s"."""
    thread = member.thread
    if thread is None:
        return ""
    channel = clean(thread.wait_channel, 40)
    states = {"R": "running", "D": "in an uninterruptible wait", "T": "stopped", "t": "stopped by a debugger"}
    words = "running" if member.runs else states.get(thread.state, "asleep")
    words += f" in {channel}" if channel not in ("", "0") and not member.runs else ""
    if member.cpu is None or member.interval_s <= 0:
        return words
    used = f"{percent(member.cpu)} of a core" if member.cpu >= 0.01 else "no CPU"
    return f"{words}, {used} used in {member.interval_s:.1f} s"


def silence_words(member: Member) -> str:
    """Say how long a worker has been silent, and after how many iterations."""
    return f"silent for {member.now.silent_s:.0f} s, after {member.now.iteration} iterations"


def describe(rank: int, member: Member) -> str:
    """Describe in one sentence where a worker sits."""
    facts = [state_words(member), silence_words(member)]
    return f"Worker {rank}: {member.site.label}, {', '.join(fact for fact in facts if fact)}."


def by_place(scene: Scene, ranks: Iterable[int]) -> list[list[int]]:
    """Group workers by the functions on their stacks (own frame, wait), largest group first."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for rank in sorted(ranks):
        site = scene.members[rank].site
        key = (site.name, site.own.file if site.own else "", site.wait)
        found.setdefault(key, []).append(rank)
    return [found[key] for key in sorted(found, key=lambda key: (-len(found[key]), found[key][0]))]


def remaining(waiting: Waiting, origins: Sequence[Origin]) -> frozenset[int]:
    """Find workers that wait and that none of the origins explains."""
    return waiting.waiters - waiting.reaching(node for origin in origins for node in origin.targets)
