"""Conclude on a standstill: the verdict's word, its sentence and its notes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from eroica.diagnosis.blocked.meetings import is_first, operation_of
from eroica.diagnosis.blocked.scene import Scene
from eroica.diagnosis.blocked.waiting import MOST_TOLD, Origin, Waiting
from eroica.diagnosis.words import name_workers
from eroica.model.causes import CATALOG
from eroica.model.look import Blockage
from eroica.model.verdict import Finding, FindingFunction, VerdictWord
from eroica.model.words import clean


def choose_word(scene: Scene, findings: Sequence[Finding]) -> VerdictWord:
    """Choose the word: "blocked" where a cause is known and believed, else "undetermined".

    Dumps tell who holds the others up, hardly ever why: there it is enough to know who.
    """
    causes = [finding for finding in findings if finding.role == "cause"]
    known = any((cause.cause != "unknown" or scene.from_dumps) and cause.confidence >= 0.35 for cause in causes)
    return "blocked" if known else "undetermined"


def summarize(scene: Scene, word: VerdictWord, origins: Sequence[Origin], waiters: Sequence[Finding]) -> str:
    """Summarize in one sentence where the origin sits, and how many workers have waited for it, how long."""
    if not origins and scene.from_dumps:
        return "When the dumps were written, nobody waited for anybody in a collective, as far as they tell."
    if not origins:
        return f"The job stands still, but {_lacking(scene)}."
    unknown = "Too little to tell: " if scene.from_dumps else "The job stands still: "
    head = "Blocked: " if word == "blocked" else unknown
    clause = origins[0].clause
    return "; ".join([head + clause + _others(origins), *_waiting(scene, word, origins, waiters)]) + "."


def _others(origins: Sequence[Origin]) -> str:
    if len(origins) == 1:
        return ""
    ranks = sorted({rank for origin in origins[1:] for rank in origin.ranks} - set(origins[0].ranks))
    if not ranks:
        return ""
    return f" ({len(origins) - 1} more cause{'s' if len(origins) > 2 else ''}, on {name_workers(ranks)})"


def _waiting(scene: Scene, word: VerdictWord, origins: Sequence[Origin], waiters: Sequence[Finding]) -> Iterator[str]:
    """End the sentence: how many others wait, in which collective, how long."""
    named = {rank for origin in origins for rank in origin.ranks}
    ranks = sorted({rank for group in waiters for rank in group.workers} - named)
    if ranks and scene.from_dumps:
        whom = f" for {_whom(origins)}" if word == "blocked" else ""
        yield f"{len(ranks)} other worker{'s wait' if len(ranks) > 1 else ' waits'}{whom}"
    elif ranks:
        longest = max(scene.members[rank].now.silent_s for rank in ranks)
        many = f"{len(ranks)} worker{'s have' if len(ranks) > 1 else ' has'} waited"
        whom = "it" if len(origins) == 1 and len(origins[0].ranks) == 1 else "them"
        if origins[0].cause in ("desynchronized-collective", "slow-link", "unknown"):
            yield f"{many} for {longest:.0f} s"
        else:
            yield f"{many} for {whom} in {waiters[0].function.name} for {longest:.0f} s"
    elif scene.members and not scene.from_dumps:
        yield f"nothing has moved for {max(member.now.silent_s for member in scene.members.values()):.0f} s"


def _whom(origins: Sequence[Origin]) -> str:
    if origins[0].who:
        return "that"
    return "it" if len(origins) == 1 and len(origins[0].ranks) == 1 else "them"


def _lacking(scene: Scene) -> str:
    """Name what is missing for naming a cause: looks, workers or stacks."""
    if not scene.members:
        return "no agent has handed in a look at its workers"
    if scene.missing:
        return f"nothing is known of {name_workers(scene.missing)}"
    return "no stack of any worker could be read"


def complete_notes(scene: Scene, blockage: Blockage, origins: Sequence[Origin]) -> list[str]:
    """List the agents' notes, and what else the reader should know."""
    notes = list(dict.fromkeys(scene.notes))[:100]
    if scene.from_dumps:
        return [*_notes_on_dumps(scene), *notes]
    single = [rank for rank, member in scene.members.items() if member.before is None]
    if single:
        notes.append(f"looked at only once: {name_workers(single)}")
    mute = [rank for rank, member in scene.members.items() if member.now.flight is None]
    if mute and len(scene.members) > 1:
        notes.append(f"no Flight Recorder was read on {name_workers(mute)}")
    if len(origins) > MOST_TOLD:
        notes.append(f"{len(origins) - MOST_TOLD} more causes are left out")
    if not blockage.looks:
        over = bool(blockage.deaths)
        notes.append("the job was over before its other workers could be looked at" if over else "no agent answered")
    return notes


def _notes_on_dumps(scene: Scene) -> Iterator[str]:
    if scene.missing:
        plural = len(scene.missing) > 1
        yield f"the dump{'s' if plural else ''} of {name_workers(scene.missing)} {'are' if plural else 'is'} missing"
    yield "a dump tells who entered which collective, not what a worker does instead: no stacks, no process states"


# --- build findings: origins as causes, workers that wait for them as symptoms, one per kind of collective ---


def find_waiters(scene: Scene, waiting: Waiting, origins: Sequence[Origin]) -> list[Finding]:
    """List the workers that wait, by the collective where a member is missing, if known; named causes are left out."""
    named = {rank for origin in origins for rank in origin.ranks}
    meetings = waiting.meetings
    kinds = [(one.name, one.group.description or one.group.name) for one in meetings.items]
    by_kind: dict[tuple[str, str], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    by_pair: dict[str, list[int]] = defaultdict(list)
    guesses: dict[str, list[int]] = defaultdict(list)
    for rank in sorted(scene.members.keys() - named):
        mine = {at: meetings.items[at] for at in meetings.of.get(rank, ())}
        held = [at for at, one in mine.items() if one.behind or one.stalled or one.previous is not None]
        if held or (mine and rank not in meetings.peers):
            choice = held or list(mine)
            at = next((at for at in choice if is_first(scene, rank, mine[at])), choice[0])
            by_kind[kinds[at]][at].append(rank)
        elif rank in meetings.peers:
            by_pair[operation_of(meetings.pairs[rank])].append(rank)
        elif scene.members[rank].seat == "communication":
            guesses[clean(scene.members[rank].site.inside, 80) or "a collective"].append(rank)
    waiters = [_in_meetings(scene, waiting, name, found) for (name, _), found in sorted(by_kind.items())]
    waiters += [_in_pairs(scene, waiting, name, ranks) for name, ranks in sorted(by_pair.items())]
    waiters += [_guess(scene, name, ranks) for name, ranks in sorted(guesses.items())]
    return sorted(waiters, key=lambda group: (-len(group.workers), group.function.name, group.workers))[:MOST_TOLD]


def _queue(scene: Scene, name: str, ranks: Sequence[int], evidence: Sequence[str], confidence: float = 0.9) -> Finding:
    """Build the symptom of workers that wait in one kind of collective; its order and its cause are not known yet."""
    return Finding(
        order=0,
        role="symptom",
        cause="unknown",
        function=FindingFunction(name=name, kind="collective", stack=scene.members[ranks[0]].site.stack),
        workers=tuple(ranks),
        scope="all" if len(ranks) == scene.expected > 1 else "some",
        hosts=tuple(clean(host, 100) for host in scene.hosts(tuple(ranks))),
        confidence=confidence,
        evidence=tuple(evidence),
    )


def _in_meetings(scene: Scene, waiting: Waiting, name: str, found: Mapping[int, Sequence[int]]) -> Finding:
    """Build the queue of all workers that wait in meetings of one kind; `found` holds them by meeting."""
    evidence = []
    for at in sorted(found)[:3]:
        one = waiting.meetings.items[at]
        members = len(one.group.ranks)
        present = members - len(one.absent) - len(one.group.unknown)
        evidence.append(f"{one.label}: {present} of {members} members have entered.")
    evidence += [f"The same in {len(found) - 3} more groups or numbers."] if len(found) > 3 else []
    return _queue(scene, name, sorted(rank for some in found.values() for rank in some), evidence)


def _in_pairs(scene: Scene, waiting: Waiting, name: str, ranks: Sequence[int]) -> Finding:
    peers, pairs = waiting.meetings.peers, waiting.meetings.pairs
    told = [f"Worker {rank}: {clean(pairs[rank].name, 60)} is for worker {peers[rank]}." for rank in ranks[:3]]
    return _queue(scene, name, ranks, told)


def _guess(scene: Scene, name: str, ranks: Sequence[int]) -> Finding:
    """Build the queue of workers that communicate by their stacks; for whom they wait is not known."""
    told = "Read from stacks: which collective it is and who is missing was not recorded"
    pairs = " (sends and receives leave no trace of their peer)" if "send" in name or "recv" in name else ""
    return _queue(scene, name, ranks, [f"{told}{pairs}."], confidence=0.5)


def build_findings(
    scene: Scene, waiting: Waiting, origins: Sequence[Origin], waiters: Sequence[Finding]
) -> list[Finding]:
    """Build the findings: causes first, then symptoms, each under every cause that one of its workers waits for."""
    causes = list(origins[:MOST_TOLD])
    numbered = list(enumerate(waiters, len(causes) + 1))
    known = {*waiting.meetings.of, *waiting.meetings.peers}  # of others stacks show only that they communicate
    named: dict[int, str] = {}
    findings = []
    for number, origin in enumerate(causes, 1):
        reached = waiting.reaching(origin.targets)
        explains = tuple(
            order
            for order, queue in numbered
            if known.isdisjoint(queue.workers) or not reached.isdisjoint(queue.workers) or origin.cause == "unknown"
        )
        named = dict.fromkeys(explains, origin.cause) | named
        findings.append(_cause(scene, number, origin, explains))
    rest = causes[0].cause if causes else "unknown"
    return findings + [
        msgspec.structs.replace(queue, order=order, cause=named.get(order, rest)) for order, queue in numbered
    ]


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
