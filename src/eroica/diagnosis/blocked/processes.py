"""Rules on single workers: gone, stopped, holding the interpreter lock, or in user code for which others wait."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from eroica.diagnosis.blocked.origins import MOST_TOLD, Origin, describe
from eroica.diagnosis.blocked.scene import Member, Scene, Site, Wait, find_site
from eroica.diagnosis.words import name_workers, verb
from eroica.model.look import Death, Ending, ThreadLook
from eroica.model.verdict import FindingFunction
from eroica.model.words import clean, signal_name


def find_dead(scene: Scene) -> list[Origin]:
    """Find the first death and those like it on its host; later deaths are a consequence (aborted, terminated)."""
    if not scene.deaths:
        return []
    deaths = list(scene.deaths.values())
    first, words = deaths[0], _ending(deaths[0].ending)
    alike = [one for one in deaths if _ending(one.ending) == words and one.worker.host == first.worker.host]
    later = [one for one in deaths if one not in alike]
    where = f" on host {first.worker.host}" if first.worker.host else ""
    ranks = tuple(sorted(death.worker.global_rank for death in alike))
    evidence = [_sentence(death) for death in alike[:4]]
    evidence += [f"Later: {_sentence(death)[0].lower()}{_sentence(death)[1:]}" for death in later[:3]]
    return [
        Origin(
            cause="dead-worker",
            ranks=ranks,
            function=FindingFunction(name=words, kind="other"),
            clause=f"{name_workers(ranks)} {verb(ranks, 'is', 'are')} gone: {words}{where} after {first.iteration} "
            "iterations",
            evidence=tuple(evidence),
            confidence=0.8 if first.ending.kind == "unknown" else 0.95,
            next_step=_next_step(first.ending),
        )
    ]


def _ending(ending: Ending) -> str:
    """Say how a process ended."""
    if ending.out_of_memory:
        return "killed because its memory limit was reached"
    if ending.kind == "signal":
        return f"killed by {signal_name(ending.number)}"
    return f"exited with status {ending.number}" if ending.kind == "exit" else "vanished"


def _sentence(death: Death) -> str:
    worker, ending, words = death.worker, death.ending, _ending(death.ending)
    on = f" on {worker.host}" if worker.host else ""
    lived = f"; others were still there {death.lived_on_s:.0f} s later" if death.lived_on_s >= 1 else ""
    ago = f" {ending.ago_s:.0f} s before it was reported" if ending.ago_s >= 1 else ""
    was = "was " if words.startswith("killed") else ""
    who = f"Worker {worker.global_rank} (process {worker.pid}{on})"
    return f"{who} {was}{words}{ago} after {death.iteration} iterations{lived}."


def _next_step(ending: Ending) -> str:
    if ending.out_of_memory:
        return (
            "Give the job's cgroup more memory or make this worker use less (loader processes, prefetch_factor, caches "
            "that grow), then restart from the last checkpoint."
        )
    if ending.kind == "signal" and ending.number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE):
        return (
            "Look at the end of this worker's output and for a core file: native code failed (run it once with "
            "PYTHONFAULTHANDLER=1); then restart from the last checkpoint."
        )
    return ""


def find_stopped(scene: Scene) -> list[Origin]:
    """Find processes that a signal or a debugger has stopped."""
    ranks = tuple(rank for rank, member in scene.members.items() if member.is_stopped)
    if not ranks:
        return []
    member = scene.members[ranks[0]]
    by = "stopped by a debugger" if member.now.process.state == "t" else "stopped (state T)"
    host = scene.host(ranks[0])
    pids = " ".join(str(scene.members[rank].worker.pid) for rank in ranks[:8] if scene.host(rank) == host)
    where = f" in {member.site.label}" if member.site.own else ""
    return [
        Origin(
            cause="dead-worker",
            ranks=ranks,
            function=member.site.function,
            clause=f"{name_workers(ranks)} {verb(ranks, 'is', 'are')} {by}{where}",
            evidence=(describe(member),),
            confidence=0.95,
            next_step=f"Continue it: kill -CONT {pids} on host {host}; and find out who stopped it (a "
            "debugger, a scheduler that suspends jobs, Ctrl-Z).",
        )
    ]


def find_lock_holders(scene: Scene, can_answer: bool) -> Iterator[Origin]:
    """Find workers in which one thread owned the interpreter lock in both looks and none could answer.

    `can_answer` is the setting `answering_thread`: workers have a thread that answers.
    """
    for rank, member in scene.members.items():
        holder = _holder(member, can_answer) if not member.is_stopped else None
        site = find_site(holder)
        if holder is None or site.seat == "communication":  # a collective that keeps the lock still waits for others
            continue
        thread = "the training thread" if holder is member.thread else f"its thread {clean(holder.name, 40)!r}"
        is_asleep = holder.state in ("S", "D")
        how = "asleep" if is_asleep else "running"
        yield Origin(
            cause="held-interpreter-lock",
            ranks=(rank,),
            function=site.function,
            clause=f"worker {rank} holds Python's interpreter lock in {site.label} ({thread}), so that none of its "
            "threads can run",
            evidence=(
                f"In both looks {thread} owned the interpreter lock, {how}, and no thread of the worker could answer.",
                describe(member),
            ),
            confidence=0.93 if is_asleep else 0.85,
        )


def _holder(member: Member, can_answer: bool) -> ThreadLook | None:
    """Find the thread that owned the lock in both looks. If nobody could be asked, it counts only if it is asleep."""
    before, now = member.before, member.now
    if before is None or before.answered or now.answered:
        return None
    earlier, later = (
        next((thread for thread in one.process.threads if thread.holds_interpreter_lock), None) for one in (before, now)
    )
    if earlier is None or later is None or earlier.thread_id != later.thread_id:
        return None
    was_asked = can_answer and before.asked and now.asked
    return later if was_asked or {earlier.state, later.state} <= {"S", "D"} else None


# --- workers in user code: queues, locks, storage, loops ---


_LOCKS = frozenset({"lock", "futex"})
_DOES: dict[Wait, str] = {
    "queue-get": "waiting for a queue that stays empty",
    "queue-put": "waiting for room in a full queue",
    "lock": "waiting for a lock",
    "futex": "asleep in a lock or in native code",
    "thread": "waiting for another thread",
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
    """Build one origin per place of the user's code at which these workers sit, the one with most workers first."""
    places: dict[tuple[str, str, str], list[int]] = {}
    for rank in sorted(ranks):
        site = scene.members[rank].site
        place = (site.function.name, site.file, site.wait)
        places.setdefault(place, []).append(rank)
    ordered = sorted(places.values(), key=lambda some: (-len(some), some[0]))
    return [_code_origin(scene, some, confidence) for some in ordered[:MOST_TOLD]]


def _code_origin(scene: Scene, ranks: Sequence[int], confidence: float) -> Origin:
    member = scene.members[ranks[0]]
    other = _find_other(member)
    is_all = len(ranks) == scene.expected > 1
    site = other.site if other is not None and other.is_place else member.site
    wait = site.wait or (other.site.wait if other is not None else "")
    evidence = [describe(member)]
    if other is not None:
        place = f": {other.site.label}" if other.is_place else ""
        evidence.append(f"The training thread waits for {other.label}{place}.")
        wait = "lock" if {member.site.wait, other.site.wait} <= _LOCKS else wait
    who = f"every one of the {len(ranks)} workers" if is_all else name_workers(ranks)
    return Origin(
        cause="blocked-in-user-code",
        ranks=tuple(ranks),
        function=site.function,
        clause=f"{who} {'sits' if is_all else verb(ranks, 'sits', 'sit')} in {member.site.label}{_rest(member, other)}",
        evidence=tuple(evidence),
        confidence=confidence * (0.85 if is_all else 1.0) * (1.0 if site.has_own else 0.8),
        next_step=_NEXT.get(wait, ""),
        is_all=is_all,
    )


def _rest(member: Member, other: _Other | None) -> str:
    """Return the end of the clause: what the worker does there."""
    site = other.site if other is not None else member.site
    inside = f" in {site.inside}" if site.inside and site.wait != "children" else ""
    if other is None:
        does = "still running" if member.runs and not site.wait else _DOES[site.wait]
        return f"{inside and ','}{inside}{does and ', '}{does}"
    if not other.is_place:
        return f" waiting for {other.label}"
    does = f", {_DOES[site.wait]}" if site.wait in ("storage", "lock", "sleep", "process") else ""
    return f" waiting for {other.label}, stuck{inside} at {site.label}{does}"


# --- find what the training thread waits for inside its own worker: another thread, or a data-loader child ---


#: How suspicious another thread is that sits in such a wait, by what the training thread waits for. A prefetch thread
#: on a full queue is healthy as long as nobody waits for its data; one that gets from an empty queue has nothing to do.
#: One that sleeps may be anybody's heartbeat: it counts only in the file where the training thread waits.
_OF_DATA: dict[Wait, float] = {
    "queue-put": 3, "storage": 3, "lock": 3, "futex": 2, "process": 2, "sleep": 1.5, "": 2,
}  # fmt: skip
_SUSPICION: dict[Wait, dict[Wait, float]] = {
    **dict.fromkeys(("queue-get", "queue-put", "children"), _OF_DATA),
    "thread": {**_OF_DATA, "queue-get": 2},
    "lock": {"lock": 3, "storage": 2, "futex": 2, "process": 2, "sleep": 2, "": 1.5},
    "futex": {"lock": 1.5, "futex": 1.5},
}
#: The same file speaks for a common matter; what counts for less holds nobody up.
_NEAR, _LEAST = 0.6, 2.0


class _Other(NamedTuple):
    """The thread or child that the training thread waits for.

    Attributes:
        suspicion: How much speaks for it.
        label: "its thread 'feed'", "its data-loader child 4711".
        site: Where it sits.
        is_place: That is the place to look; not where it is stopped or gone, nor where both wait for a lock: then the
            training thread is as good a place.
    """

    suspicion: float
    label: str
    site: Site
    is_place: bool = True


def _find_other(member: Member) -> _Other | None:
    """Find the thread or child that the training thread waits for; None if none is seen to hold it up."""
    wait = member.site.wait
    if wait not in _SUSPICION:
        return None
    found = list(_children(member)) if wait in ("children", "queue-get", "thread") else []
    found += _threads(member, wait)
    best = max(found, key=lambda one: (one.suspicion, one.label), default=None)
    return best if best is not None and best.suspicion >= _LEAST else None


def _threads(member: Member, wait: Wait) -> Iterator[_Other]:
    """List other threads with code of the user's on their stacks."""
    for thread in member.now.process.threads:
        site = find_site(thread)
        worth = _SUSPICION[wait].get(site.wait, 0.0)
        if not worth or thread is member.thread or thread.name.startswith("eroica"):
            continue
        if site.has_own and site.seat == "code":
            worth -= 0.5 if not site.wait and thread.state == "S" else 0.0
            worth += _NEAR if site.file == member.site.file else 0.0
            name = f"its thread {clean(thread.name, 40)!r}" if thread.name else "another of its threads"
            is_deadlock = {wait, site.wait} <= _LOCKS
            label = f"a lock, while {name} waits for one at {site.label}" if is_deadlock else name
            yield _Other(worth, label, site, not is_deadlock)


def _children(member: Member) -> Iterator[_Other]:
    """List loader processes that are stuck or stopped, or say that none lives."""
    children = sorted(member.now.children, key=lambda one: one.pid)
    is_loader = any("_MultiProcessingDataLoaderIter" in entry for entry in member.site.stack)
    if member.site.wait == "children" and is_loader and all(child.state in ("Z", "X") for child in children):
        seen = "is alive" if children else "is to be seen"  # some kernels do not tell who is whose child
        yield _Other(9.0, f"its data-loader children, of which none {seen}", Site(), is_place=False)
    for child in children:
        main = next((one for one in child.threads if one.thread_id == child.pid or one.name == "MainThread"), None)
        site, label = find_site(main, in_child=True), f"its data-loader child {child.pid}"
        if child.state in ("T", "t"):
            yield _Other(5.0, f"{label}, which is stopped (state {child.state})", site, is_place=False)
        elif site.has_own and site.wait in _OF_DATA and child.state not in ("Z", "X"):
            yield _Other(_OF_DATA[site.wait] + 1.0, label, site)
