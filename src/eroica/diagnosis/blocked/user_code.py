"""Rule 3: workers that others wait for and that sit in user code (queues, locks, storage, loops)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from eroica.diagnosis.blocked.origin import Origin, by_place, describe, function_of
from eroica.diagnosis.blocked.places import Site, Wait
from eroica.diagnosis.blocked.scene import Member, Scene
from eroica.diagnosis.blocked.threads import Other, find_other
from eroica.model.words import clean

_MOST_PLACES = 20
_DOES: dict[Wait, str] = {
    "queue-get": "waiting for a queue that stays empty",
    "queue-put": "waiting for room in a full queue",
    "lock": "waiting for a lock",
    "futex": "asleep in a lock or in native code",
    "event": "waiting for an event that nobody sets",
    "join": "waiting for a thread to end",
    "future": "waiting for a future's result",
    "children": "waiting for its data loader",
    "process": "waiting for a child process to end",
    "storage": "waiting for storage or the network",
    "sleep": "sleeping",
    "": "",
}
_NEXT: dict[Wait, str] = {
    "storage": (
        "Check the storage or server that this function reads from (mount, quota, endpoint) from this worker's host, "
        "and give the call a timeout and a retry."
    ),
    "lock": (
        "Look for who else takes this lock: always take several locks in the same order, and hold none of them while "
        "waiting for a queue, a thread or a collective."
    ),
}


def find_blocked_code(scene: Scene, ranks: Iterable[int], confidence: float) -> list[Origin]:
    """Build one origin per place at which these workers sit.

    Args:
        scene: What was seen.
        ranks: Workers that sit in user code and hold others up.
        confidence: Confidence that these workers are the origin.
    """
    places = by_place(scene, ranks)
    return [_origin(scene, place, confidence) for place in places[:_MOST_PLACES]]


def _origin(scene: Scene, ranks: Sequence[int], confidence: float) -> Origin:
    member = scene.members[ranks[0]]
    other = find_other(member)
    is_all = len(ranks) == scene.expected > 1
    named = _named(member.site, other)
    evidence = [_storage_sentence(member, other), describe(ranks[0], member), *_other_sentences(other)]
    evidence += [_others_there(scene, ranks)] if len(ranks) > 1 else []
    wait = named.wait or (other.site.wait if other else "")
    return Origin(
        cause="blocked-in-user-code",
        ranks=tuple(ranks),
        function=function_of(named),
        verbs=("sits", "sit"),
        who=f"every one of the {len(ranks)} workers" if is_all else "",
        rest=_rest(member, other),
        evidence=tuple(text for text in evidence if text),
        confidence=confidence * (0.85 if is_all else 1.0) * (1.0 if named.has_own else 0.8),
        next_step=_NEXT.get("lock" if other is not None and other.is_deadlock else wait, ""),
        is_all=is_all,
    )


def _named(site: Site, other: Other | None) -> Site:
    """Choose the place to name: that of the other thread, except in a deadlock of locks, where both are as good."""
    if other is None or other.is_deadlock or other.who in ("no child", "stopped child"):
        return site
    return other.site


def _rest(member: Member, other: Other | None) -> str:
    site = member.site
    inside = f", in {clean(site.inside, 60)}" if site.inside and site.wait not in ("children",) else ""
    if other is None:
        does = "still running" if member.runs and not site.wait else _DOES[site.wait]
        return f"in {site.label}{inside}" + (f", {does}" if does else "")
    if other.is_deadlock:
        return f"in {site.label}, waiting for a lock, while {other.label} waits for one at {other.site.label}"
    if other.who in ("no child", "stopped child"):
        return f"in {site.label} waiting for {other.label}"
    return f"in {site.label} waiting for {other.label}, {_stuck(other.site)}"


def _stuck(site: Site) -> str:
    """Say where a worker is stuck, as in "stuck in Queue.put at feed (loader.py:41)"."""
    inside = f"stuck in {clean(site.inside, 60)} at {site.label}" if site.inside else f"stuck at {site.label}"
    return inside + (f", {_DOES[site.wait]}" if site.wait in ("storage", "lock", "sleep", "process") else "")


def _storage_sentence(member: Member, other: Other | None) -> str:
    """Say that the wait is for storage or the network; "" where it is not."""
    site = _named(member.site, other)
    if site.wait != "storage":
        return ""
    reads = f"{site.label}, in {clean(site.inside, 60)}" if site.inside else site.label
    return f"It reads or writes storage or the network there: {reads}."


def _other_sentences(other: Other | None) -> list[str]:
    if other is None:
        return []
    if other.who == "no child":
        return []
    inside = f", in {clean(other.site.inside, 60)}" if other.site.inside else ""
    return [
        f"The training thread waits for {other.label}" + (f": {other.site.label}{inside}." if other.site.own else ".")
    ]


def _others_there(scene: Scene, ranks: Sequence[int]) -> str:
    files = {scene.members[rank].site.label for rank in ranks}
    where = "in the same line" if len(files) == 1 else "in the same function"
    return f"{len(ranks)} workers sit {where}."
