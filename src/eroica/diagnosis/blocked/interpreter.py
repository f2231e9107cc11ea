"""Rule 2: a thread that never gives the interpreter lock back."""

from __future__ import annotations

from eroica.diagnosis.blocked.origin import Origin, function_of, silence_words
from eroica.diagnosis.blocked.places import Site, find_site
from eroica.diagnosis.blocked.scene import Member, Scene, holder_of_interpreter_lock
from eroica.model.look import ThreadLook
from eroica.model.words import clean
from eroica.settings import Settings


def find_lock_holders(scene: Scene, settings: Settings) -> list[Origin]:
    """Find workers in which one thread owned the interpreter lock in both looks and nobody could answer."""
    found = []
    for rank, member in scene.members.items():
        holder = _holder(member, settings)
        if holder is None or member.is_stopped:
            continue
        site = find_site(holder)
        if site.kind != "communication":  # a collective that keeps the lock still waits for others
            found.append(_origin(rank, member, holder, site))
    return found


def _holder(member: Member, settings: Settings) -> ThreadLook | None:
    """Find the thread that keeps the lock; without an answering thread it must be asleep, as no running program is."""
    before, now = member.before, member.now
    if before is None or before.answered or now.answered:
        return None
    earlier, later = holder_of_interpreter_lock(before.process), holder_of_interpreter_lock(now.process)
    if earlier is None or later is None or earlier.thread_id != later.thread_id:
        return None
    asked = settings.answering_thread and before.asked and now.asked
    return later if asked or (later.state in ("S", "D") and earlier.state in ("S", "D")) else None


def _origin(rank: int, member: Member, holder: ThreadLook, site: Site) -> Origin:
    is_training = holder is member.thread
    thread = "the training thread" if is_training else f"its thread {clean(holder.name, 40)!r}"
    asleep = "asleep with it" if holder.state in ("S", "D") else "running"
    channel = f" in {clean(holder.wait_channel, 40)}" if holder.wait_channel not in ("", "0") else ""
    evidence = [
        f"The same thread ({clean(holder.name, 40)}) owned the interpreter lock in both looks, {asleep}{channel}.",
        "No thread of the worker could answer.",
        f"Worker {rank}: {silence_words(member)}.",
    ]
    if not is_training and member.site.own is not None:
        evidence.insert(1, f"The training thread sits in {member.site.label}.")
    return Origin(
        cause="held-interpreter-lock",
        ranks=(rank,),
        function=function_of(site),
        verbs=("holds", "hold"),
        rest=f"Python's interpreter lock in {site.label} ({thread}), so that none of its threads can run",
        evidence=tuple(evidence),
        confidence=0.93 if holder.state in ("S", "D") else 0.85,
    )
