"""Build findings: origins as causes, workers that wait for them as symptoms, one per kind of collective."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from eroica.diagnosis.blocked.origin import Origin
from eroica.diagnosis.blocked.scene import Scene
from eroica.diagnosis.blocked.waiting import Node, Waiting
from eroica.model.causes import CATALOG
from eroica.model.verdict import Finding, FindingFunction
from eroica.model.words import clean

_MOST_CAUSES = 20
_MOST_SYMPTOMS = 20


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """Workers that wait in the same kind of collective.

    Attributes:
        name: The operation.
        ranks: Global ranks.
        nodes: Nodes of the graph they are.
        evidence: Facts on the collective, one each.
        stack: The stack of the first of them.
        is_guess: Stacks show that these workers communicate; the workers that they wait for are not known.
    """

    name: str
    ranks: tuple[int, ...]
    evidence: tuple[str, ...]
    stack: tuple[str, ...] = ()
    is_guess: bool = False


def find_queues(scene: Scene, waiting: Waiting, origins: Sequence[Origin]) -> list[Queue]:
    """List the workers that wait by the collective they wait in; workers named as a cause are left out."""
    named = {rank for origin in origins for rank in origin.ranks}
    by_kind: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    guesses: dict[str, list[int]] = defaultdict(list)
    kinds = [(one.name, one.group.description or one.group.name) for one in waiting.meetings.items]
    for rank, member in scene.members.items():
        if rank in named:
            continue
        meetings = waiting.meetings.of.get(rank, ())
        if meetings:
            by_kind[kinds[meetings[0]]].append((rank, meetings[0]))
        elif rank in waiting.onward or member.seat == "communication":
            guesses[clean(member.site.inside, 80) or "a collective"].append(rank)
    queues = [_queue(scene, waiting, name, ranks) for (name, _), ranks in sorted(by_kind.items())]
    queues += [_guess(scene, name, ranks) for name, ranks in sorted(guesses.items())]
    return sorted(queues, key=lambda queue: (-len(queue.ranks), queue.name, queue.ranks))[:_MOST_SYMPTOMS]


def _queue(scene: Scene, waiting: Waiting, name: str, found: Sequence[tuple[int, int]]) -> Queue:
    meetings = sorted({meeting for _, meeting in found})
    evidence = []
    for at in meetings[:3]:
        meeting = waiting.meetings.items[at]
        present = len(meeting.group.ranks) - len(meeting.absent) - len(meeting.group.unknown)
        evidence.append(f"{meeting.label}: {present} of {len(meeting.group.ranks)} members have entered.")
    evidence += [f"The same in {len(meetings) - 3} more groups or numbers."] if len(meetings) > 3 else []
    ranks = tuple(rank for rank, _ in found)
    return Queue(name=name, ranks=ranks, evidence=tuple(evidence), stack=scene.members[ranks[0]].site.stack)


def _guess(scene: Scene, name: str, ranks: Sequence[int]) -> Queue:
    return Queue(
        name=name,
        ranks=tuple(ranks),
        evidence=(
            "Read from stacks: which collective it is and who is missing was not recorded"
            + (" (sends and receives leave no trace of their peer)." if _pairs(name) else "."),
        ),
        stack=scene.members[ranks[0]].site.stack,
        is_guess=True,
    )


def _pairs(name: str) -> bool:
    return "send" in name or "recv" in name


def build_findings(scene: Scene, waiting: Waiting, origins: Sequence[Origin], queues: Sequence[Queue]) -> list[Finding]:
    """Build the findings: causes first, then symptoms, each under every cause that one of its workers waits for."""
    causes = list(origins[:_MOST_CAUSES])
    reach = [waiting.reaching(origin.targets) for origin in causes]
    explained = [
        tuple(
            len(causes) + 1 + at
            for at, queue in enumerate(queues)
            if queue.is_guess or _waits(queue, reached) or origin.cause == "unknown"
        )
        for origin, reached in zip(causes, reach, strict=True)
    ]
    findings = [
        _cause(scene, number, origin, explains)
        for number, (origin, explains) in enumerate(zip(causes, explained, strict=True), 1)
    ]
    for at, queue in enumerate(queues):
        order = len(causes) + 1 + at
        mine = next((origin.cause for origin, numbers in zip(causes, explained, strict=True) if order in numbers), "")
        findings.append(_symptom(scene, order, queue, mine or (causes[0].cause if causes else "unknown")))
    return findings


def _waits(queue: Queue, reached: frozenset[Node]) -> bool:
    return any(rank in reached for rank in queue.ranks)


def _cause(scene: Scene, order: int, origin: Origin, explains: tuple[int, ...]) -> Finding:
    # a death is a fact by itself; every other cause may look different with those who were not heard
    heard = 1.0 if origin.cause == "dead-worker" else scene.heard / max(scene.expected, 1)
    return Finding(
        order=order,
        role="cause",
        cause=origin.cause,
        function=origin.function,
        workers=origin.ranks,
        scope="all" if origin.is_all else "some",
        hosts=tuple(clean(host, 100) for host in scene.hosts(origin.ranks)),
        confidence=round(min(origin.confidence * max(heard, 0.1) ** 0.5, 0.99), 3),
        explains=explains,
        evidence=origin.evidence,
        next_step=origin.next_step or CATALOG[origin.cause].next_step,
    )


def _symptom(scene: Scene, order: int, queue: Queue, cause: str) -> Finding:
    return Finding(
        order=order,
        role="symptom",
        cause=cause,
        function=FindingFunction(name=queue.name, kind="collective", stack=queue.stack),
        workers=queue.ranks,
        scope="all" if len(queue.ranks) == scene.expected > 1 else "some",
        hosts=tuple(clean(host, 100) for host in scene.hosts(queue.ranks)),
        confidence=0.5 if queue.is_guess else 0.9,
        evidence=queue.evidence,
    )
