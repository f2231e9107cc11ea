"""Conclude on a standstill: the verdict's word, its sentence, notes, findings and waits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from eroica import __version__
from eroica.diagnosis.blocked.origins import MOST_TOLD, Origin, named_by
from eroica.diagnosis.blocked.scene import Scene
from eroica.diagnosis.blocked.waiting import Waiting, is_first
from eroica.diagnosis.sections import MOST_EDGES
from eroica.diagnosis.words import name_workers, verb
from eroica.model.causes import CATALOG
from eroica.model.look import Blockage
from eroica.model.verdict import (
    NAMED,
    Coverage,
    Finding,
    FindingFunction,
    Hypothesis,
    IterationTimes,
    Verdict,
    VerdictWindow,
    VerdictWord,
    WaitEdge,
    Waits,
)

_ONLY_STACKS = (
    "Read from stacks: which collective it is and who is missing was not recorded (sends and receives leave no trace "
    "of their peer)."
)


def conclude(scene: Scene, waiting: Waiting, origins: Sequence[Origin], blockage: Blockage, job: str) -> Verdict:
    """Build the verdict: "blocked" where a cause is known and believed, else "undetermined".

    Dumps tell who holds the others up, hardly ever why: there it is enough to know who.
    """
    waiters = _find_waiters(scene, waiting, origins)
    findings = _build_findings(scene, waiting, origins, waiters)
    causes = [one for one in findings if one.role == "cause"]
    known = any((one.cause != "unknown" or scene.from_dumps) and one.confidence >= 0.35 for one in causes)
    word: VerdictWord = "blocked" if known else "undetermined"
    baseline_s = blockage.baseline_iteration_s
    return Verdict(
        eroica_version=__version__,
        job=job,
        verdict=word,
        summary=_summarize(scene, word, origins, waiters),
        window=_window(scene, blockage.reason),
        iteration=IterationTimes(baseline_ms=round(1e3 * baseline_s, 3) if baseline_s else None),
        coverage=Coverage(
            workers_expected=scene.expected,
            workers_reported=scene.heard,
            missing=scene.missing,
            notes=tuple(_complete_notes(scene, blockage)),
        ),
        findings=tuple(findings),
        waits=_standing_waits(scene, waiting),
        considered=tuple(
            Hypothesis(
                cause=one.cause,
                function=one.function.name,
                workers=one.workers,
                scope=one.scope,
                gain=None,
                decision=NAMED,
                met=one.evidence,
            )
            for one in causes
        ),
    )


def _window(scene: Scene, reason: str) -> VerdictWindow:
    """Build the verdict's window: both ends are where the job stands, its length is the longest silence."""
    if scene.from_dumps:
        return VerdictWindow(kind="blocked", reason=reason)
    iterations = [member.now.iteration for member in scene.members.values()]
    iterations = iterations or [death.iteration for death in scene.deaths.values()]
    silences = [member.now.silent_s for member in scene.members.values()]
    return VerdictWindow(
        kind="blocked",
        first_iteration=min(iterations, default=None),
        last_iteration=max(iterations, default=None),
        duration_s=round(max(silences, default=0.0), 3),
        reason=reason,
    )


def _summarize(scene: Scene, word: VerdictWord, origins: Sequence[Origin], waiters: Sequence[Finding]) -> str:
    """Summarize in one sentence where the origin sits, and how many workers have waited for it, how long."""
    if not origins and scene.from_dumps:
        return "When the dumps were written, nobody waited for anybody in a collective, as far as they tell."
    if not origins:
        return f"The job stands still, but {_lacking(scene)}."
    unknown = "Too little to tell" if scene.from_dumps else "The job stands still"
    text = f"{'Blocked' if word == 'blocked' else unknown}: {origins[0].clause}"
    others = sorted(named_by(origins[1:]) - set(origins[0].ranks))
    if others:
        text += f" ({len(origins) - 1} more cause{'s' if len(origins) > 2 else ''}, on {name_workers(others)})"
    waits = _waiting(scene, word, origins, waiters)
    return f"{text}; {waits}." if waits else f"{text}."


def _waiting(scene: Scene, word: VerdictWord, origins: Sequence[Origin], waiters: Sequence[Finding]) -> str:
    """Return the end of the sentence: how many others wait, in which collective, how long."""
    ranks = sorted({rank for group in waiters for rank in group.workers} - named_by(origins))
    whom = "it" if len(origins) == 1 and len(origins[0].ranks) == 1 else "them"
    if scene.from_dumps:
        many = f"{len(ranks)} other worker{verb(ranks, ' waits', 's wait')}"
        return f"{many} for {whom}" if ranks and word == "blocked" else many if ranks else ""
    longest_s = max((scene.members[rank].now.silent_s for rank in ranks or scene.members), default=0.0)
    if not ranks:
        return f"nothing has moved for {longest_s:.0f} s" if scene.members else ""
    many = f"{len(ranks)} worker{verb(ranks, ' has', 's have')} waited"
    if origins[0].cause not in ("desynchronized-collective", "slow-link", "unknown"):
        many += f" for {whom} in {waiters[0].function.name}"
    return f"{many} for {longest_s:.0f} s"


def _lacking(scene: Scene) -> str:
    """Name what is missing for naming a cause: looks, workers or stacks."""
    if not scene.members:
        return "no agent has handed in a look at its workers"
    if scene.missing:
        return f"nothing is known of {name_workers(scene.missing)}"
    if any(member.seat == "communication" for member in scene.members.values()):
        return "all wait in communication, and sends and receives leave no trace of their peer"
    return "no stack of any worker could be read"


def _complete_notes(scene: Scene, blockage: Blockage) -> Iterator[str]:
    """Yield the agents' notes, and what else the reader should know."""
    notes = [f"{host.host}: {note}" for host in sorted(blockage.looks, key=lambda one: one.host) for note in host.notes]
    alike: dict[str, list[int]] = defaultdict(list)
    for rank, member in scene.members.items():
        for note in member.now.notes:
            alike[note].append(rank)
    notes += [f"{name_workers(ranks)}: {note}" for note, ranks in alike.items()]
    yield from list(dict.fromkeys(notes))[:100]
    if scene.from_dumps:
        yield "a dump tells who entered which collective, not what a worker does instead: no stacks, no process states"
        return
    single = [rank for rank, member in scene.members.items() if member.before is None]
    if single:
        yield f"looked at only once: {name_workers(single)}"
    mute = [rank for rank, member in scene.members.items() if member.now.flight is None]
    if mute and len(scene.members) > 1:
        yield f"no Flight Recorder was read on {name_workers(mute)}"
    if blockage.deaths and not blockage.looks:
        yield "the job was over before its other workers could be looked at"


# --- build findings: origins as causes, workers that wait for them as symptoms, one per kind of collective ---


def _find_waiters(scene: Scene, waiting: Waiting, origins: Sequence[Origin]) -> list[Finding]:
    """List the workers that wait, by operation and kind of group, or by the function of their stack alone.

    Named causes are left out. Order and cause of these findings are not known yet.
    """
    kinds: dict[tuple[str, str], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank in sorted(scene.members.keys() - named_by(origins)):
        mine = {-1 - node: waiting.meetings[-1 - node] for node in waiting.onward.get(rank, ())}
        if mine:  # preferably where a member is awaited, and what it entered first
            held = {at for at, one in mine.items() if one.awaited or one.previous is not None}
            at = min(mine, key=lambda at: (at not in held, not is_first(scene, rank, mine[at])))
            kinds[mine[at].name, mine[at].group.label][at].append(rank)
        elif scene.members[rank].seat == "communication":
            kinds[scene.members[rank].site.inside or "a collective", ""][-1].append(rank)
    waiters = []
    for (name, group), places in sorted(kinds.items()):
        ranks = sorted(rank for some in places.values() for rank in some)
        told = [waiting.meetings[at].standing for at in sorted(places)[:3]] if group else [_ONLY_STACKS]
        waiters.append(
            Finding(
                order=0,
                role="symptom",
                cause="unknown",
                function=FindingFunction(name=name, kind="collective", stack=scene.members[ranks[0]].site.stack),
                workers=tuple(ranks),
                scope="all" if len(ranks) == scene.expected > 1 else "some",
                hosts=scene.hosts(ranks),
                confidence=0.9 if group else 0.5,
                evidence=tuple(told),
            )
        )
    return sorted(waiters, key=lambda group: (-len(group.workers), group.function.name, group.workers))[:MOST_TOLD]


def _build_findings(
    scene: Scene, waiting: Waiting, origins: Sequence[Origin], waiters: Sequence[Finding]
) -> list[Finding]:
    """Build the findings: causes first, then symptoms, each under every cause that one of its workers waits for."""
    causes = list(origins[:MOST_TOLD])
    numbered = list(enumerate(waiters, len(causes) + 1))
    known = waiting.waiters  # of others stacks show only that they communicate
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
        # a death is a fact by itself; every other cause may look different with those who were not heard
        heard = 1.0 if origin.cause == "dead-worker" else max(scene.heard / max(scene.expected, 1), 0.1)
        findings.append(
            Finding(
                order=number,
                role="cause",
                cause=origin.cause,
                function=origin.function,
                workers=origin.ranks,
                scope="all" if origin.is_all else "some",
                hosts=scene.hosts(origin.ranks),
                confidence=round(min(origin.confidence * heard**0.5, 0.99), 3),
                explains=explains,
                evidence=origin.evidence,
                next_step=origin.next_step or CATALOG[origin.cause].next_step,
            )
        )
    rest = causes[0].cause if causes else "unknown"
    return findings + [
        msgspec.structs.replace(queue, order=order, cause=named.get(order, rest)) for order, queue in numbered
    ]


# --- the verdict's list of waits of a job that stands still: names without times ---


def _standing_waits(scene: Scene, waiting: Waiting) -> Waits | None:
    """List each waiting worker with those that have not come to its collective; None where no wait is known.

    Times are not told: a standstill has no iterations, and has not ended.
    """
    missing: list[tuple[int, ...]] = []  # workers that each meeting, or an earlier one of its group, misses
    for meeting in waiting.meetings:
        before = missing[meeting.previous] if meeting.previous is not None else ()
        missing.append((*meeting.awaited, *before)[:MOST_EDGES])
    edges = (
        WaitEdge(waiter=waiter, on=on, per_iteration_ms=0.0)
        for waiter in sorted(waiting.waiters)
        for on in dict.fromkeys(on for node in waiting.onward[waiter] for on in missing[-1 - node])
        if on != waiter
    )
    listed = tuple(islice(edges, MOST_EDGES))
    return Waits(total_ms=0.0, withheld_ms=0.0, edges=listed, workers=scene.heard, standstill=True) if listed else None
