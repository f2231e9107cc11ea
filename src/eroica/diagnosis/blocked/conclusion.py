"""Conclude on a standstill: the verdict's word, its sentence and its notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eroica.diagnosis.blocked.findings import Queue
from eroica.diagnosis.blocked.origin import Origin
from eroica.diagnosis.blocked.scene import Scene
from eroica.diagnosis.words import name_workers
from eroica.model.look import Blockage
from eroica.model.verdict import Finding, VerdictWord

_LEAST_CONFIDENCE = 0.35


def choose_word(scene: Scene, findings: Sequence[Finding]) -> VerdictWord:
    """Choose the word: "blocked" where a cause is known and believed, else "undetermined".

    Dumps tell who holds the others up, hardly ever why: there it is enough to know who.
    """
    causes = [finding for finding in findings if finding.role == "cause"]
    known = any(
        (cause.cause != "unknown" or scene.from_dumps) and cause.confidence >= _LEAST_CONFIDENCE for cause in causes
    )
    return "blocked" if known else "undetermined"


def summarize(scene: Scene, word: VerdictWord, origins: Sequence[Origin], queues: Sequence[Queue]) -> str:
    """Summarize in one sentence where the origin sits, and how many workers have waited for it, how long."""
    if not origins and scene.from_dumps:
        return "When the dumps were written, nobody waited for anybody in a collective, as far as they tell."
    if not origins:
        return f"The job stands still, but {_lacking(scene)}."
    unknown = "Too little to tell: " if scene.from_dumps else "The job stands still: "
    head = "Blocked: " if word == "blocked" else unknown
    clause = origins[0].clause
    return "; ".join([head + clause + _others(origins), *_waiting(scene, word, origins, queues)]) + "."


def _others(origins: Sequence[Origin]) -> str:
    if len(origins) == 1:
        return ""
    ranks = sorted({rank for origin in origins[1:] for rank in origin.ranks} - set(origins[0].ranks))
    if not ranks:
        return ""
    return f" ({len(origins) - 1} more cause{'s' if len(origins) > 2 else ''}, on {name_workers(ranks)})"


def _waiting(scene: Scene, word: VerdictWord, origins: Sequence[Origin], queues: Sequence[Queue]) -> Iterator[str]:
    """End the sentence: how many others wait, in which collective, how long."""
    named = {rank for origin in origins for rank in origin.ranks}
    ranks = sorted({rank for queue in queues for rank in queue.ranks} - named)
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
            yield f"{many} for {whom} in {queues[0].name} for {longest:.0f} s"
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


def complete_notes(scene: Scene, blockage: Blockage, origins: Sequence[Origin], most_causes: int = 20) -> list[str]:
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
    if len(origins) > most_causes:
        notes.append(f"{len(origins) - most_causes} more causes are left out")
    if not blockage.looks:
        over = bool(blockage.deaths)
        notes.append("the job was over before its other workers could be looked at" if over else "no agent answered")
    return notes


def _notes_on_dumps(scene: Scene) -> Iterator[str]:
    if scene.missing:
        plural = len(scene.missing) > 1
        yield f"the dump{'s' if plural else ''} of {name_workers(scene.missing)} {'are' if plural else 'is'} missing"
    yield "a dump tells who entered which collective, not what a worker does instead: no stacks, no process states"
