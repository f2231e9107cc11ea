"""Rules on single workers: gone, stopped, holding the interpreter lock, or in user code for which others wait."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from eroica.diagnosis.blocked.places import Site, Wait, find_site
from eroica.diagnosis.blocked.scene import Member, Scene
from eroica.diagnosis.blocked.waiting import MOST_TOLD, Origin, by_place, describe, function_of, silence_words
from eroica.model.look import Death, Ending, ProcessLook, ThreadLook
from eroica.model.verdict import FindingFunction
from eroica.model.words import clean, signal_name
from eroica.settings import Settings


def find_dead(scene: Scene) -> list[Origin]:
    """Find the first death and those like it on its host; later deaths are a consequence (aborted, terminated)."""
    if not scene.deaths:
        return []
    first = next(iter(scene.deaths.values()))
    alike = [
        death
        for death in scene.deaths.values()
        if _manner(death) == _manner(first) and death.worker.host == first.worker.host
    ]
    ranks = tuple(sorted(death.worker.global_rank for death in alike))
    later = [death for death in scene.deaths.values() if death.worker.global_rank not in ranks]
    evidence = [_sentence(death) for death in alike[:4]]
    evidence += [f"Later: {_sentence(death)[0].lower()}{_sentence(death)[1:]}" for death in later[:3]]
    evidence += [f"{len(later) - 3} more workers died later."] if len(later) > 3 else []
    words = _ending(first.ending)
    where = f" on host {first.worker.host}" if first.worker.host else ""
    return [
        Origin(
            cause="dead-worker",
            ranks=ranks,
            function=FindingFunction(name=words, kind="other"),
            verbs=("is", "are"),
            rest=f"gone: {words}{where} after {first.iteration} iterations",
            evidence=tuple(evidence),
            confidence=0.8 if first.ending.kind == "unknown" else 0.95,
            next_step=_next_step(first.ending),
        )
    ]


def _manner(death: Death) -> tuple[str, int, bool]:
    return death.ending.kind, death.ending.number, death.ending.out_of_memory


def _ending(ending: Ending) -> str:
    """Say how a process ended."""
    if ending.out_of_memory:
        return "killed because its memory limit was reached"
    if ending.kind == "signal":
        return f"killed by {signal_name(ending.number)}"
    return f"exited with status {ending.number}" if ending.kind == "exit" else "vanished"


def _sentence(death: Death) -> str:
    worker, ending = death.worker, death.ending
    on = f" on {worker.host}" if worker.host else ""
    lived = f"; others were still there {death.lived_on_s:.0f} s later" if death.lived_on_s >= 1 else ""
    ago = f" {ending.ago_s:.0f} s before it was reported" if ending.ago_s >= 1 else ""
    who = f"Worker {worker.global_rank} (process {worker.pid}{on})"
    return f"{who} was {_ending(ending)}{ago} after {death.iteration} iterations{lived}.".replace(
        "was exited", "exited"
    ).replace("was vanished", "vanished")


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
    pids = ", ".join(str(scene.members[rank].worker.pid) for rank in ranks[:8])
    return [
        Origin(
            cause="dead-worker",
            ranks=ranks,
            function=function_of(member.site),
            verbs=("is", "are"),
            rest=f"{by}" + (f" in {member.site.label}" if member.site.own else ""),
            evidence=(
                f"The kernel says {by} of process{'es' if len(ranks) > 1 else ''} {pids}.",
                f"Worker {ranks[0]}: {silence_words(member)}.",
            ),
            confidence=0.95,
            next_step=f"Continue it: kill -CONT {member.worker.pid} on host {member.worker.host}; and find out who "
            "stopped it (a debugger, a scheduler that suspends jobs, Ctrl-Z).",
        )
    ]


def find_lock_holders(scene: Scene, settings: Settings) -> list[Origin]:
    """Find workers in which one thread owned the interpreter lock in both looks and nobody could answer."""
    found = []
    for rank, member in scene.members.items():
        holder = _holder(member, settings)
        if holder is None or member.is_stopped:
            continue
        site = find_site(holder)
        if site.kind != "communication":  # a collective that keeps the lock still waits for others
            found.append(_lock_origin(rank, member, holder, site))
    return found


def _holder(member: Member, settings: Settings) -> ThreadLook | None:
    """Find the thread that owned the lock in both looks. If nobody could be asked, it counts only if it is asleep."""
    before, now = member.before, member.now
    if before is None or before.answered or now.answered:
        return None
    earlier, later = (
        next((thread for thread in one.process.threads if thread.holds_interpreter_lock), None) for one in (before, now)
    )
    if earlier is None or later is None or earlier.thread_id != later.thread_id:
        return None
    asked = settings.answering_thread and before.asked and now.asked
    return later if asked or (later.state in ("S", "D") and earlier.state in ("S", "D")) else None


def _lock_origin(rank: int, member: Member, holder: ThreadLook, site: Site) -> Origin:
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


# --- workers in user code: queues, locks, storage, loops ---


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
    return [_code_origin(scene, place, confidence) for place in places[:MOST_TOLD]]


def _code_origin(scene: Scene, ranks: Sequence[int], confidence: float) -> Origin:
    member = scene.members[ranks[0]]
    other = find_other(member)
    is_all = len(ranks) == scene.expected > 1
    # in a deadlock of locks the training thread is as good a place to look as the other
    is_own = other is None or other.is_deadlock or other.who in ("no child", "stopped child")
    named = member.site if other is None or is_own else other.site
    evidence = [describe(ranks[0], member)]
    if other is not None and other.who != "no child":
        place = f": {other.site.label}{_inside(other.site)}" if other.site.own else ""
        evidence.append(f"The training thread waits for {other.label}{place}.")
    wait = named.wait or (other.site.wait if other else "")
    return Origin(
        cause="blocked-in-user-code",
        ranks=tuple(ranks),
        function=function_of(named),
        verbs=("sits", "sit"),
        who=f"every one of the {len(ranks)} workers" if is_all else "",
        rest=_rest(member, other),
        evidence=tuple(evidence),
        confidence=confidence * (0.85 if is_all else 1.0) * (1.0 if named.has_own else 0.8),
        next_step=_NEXT.get("lock" if other is not None and other.is_deadlock else wait, ""),
        is_all=is_all,
    )


def _inside(site: Site) -> str:
    return f", in {clean(site.inside, 60)}" if site.inside else ""


def _rest(member: Member, other: Other | None) -> str:
    site = member.site
    if other is None:
        does = "still running" if member.runs and not site.wait else _DOES[site.wait]
        return f"in {site.label}{_inside(site) if site.wait != 'children' else ''}" + (f", {does}" if does else "")
    if other.is_deadlock:
        return f"in {site.label}, waiting for a lock, while {other.label} waits for one at {other.site.label}"
    text = f"in {site.label} waiting for {other.label}"
    if other.who in ("no child", "stopped child"):
        return text
    inside = f"in {clean(other.site.inside, 60)} " if other.site.inside else ""
    does = f", {_DOES[other.site.wait]}" if other.site.wait in ("storage", "lock", "sleep", "process") else ""
    return f"{text}, stuck {inside}at {other.site.label}{does}"


# --- find what the training thread waits for inside its own worker: another thread, or a data-loader child ---


#: How suspicious another thread is that sits in such a wait, by what the training thread waits for. A prefetch thread
#: on a full queue is healthy as long as nobody waits for its data; one that gets from an empty queue has nothing to do.
#: One that sleeps may be anybody's heartbeat: it counts only in the file where the training thread waits.
_SUSPICION: dict[str, dict[Wait, float]] = {
    "data": {"queue-put": 3, "storage": 3, "lock": 3, "futex": 2, "process": 2, "sleep": 1.5, "": 2},
    "room": {"queue-put": 2.5, "storage": 3, "lock": 3, "futex": 2.5, "process": 2, "sleep": 1.5, "": 2},
    "end": {"queue-put": 3, "storage": 3, "lock": 3, "futex": 2, "process": 2, "sleep": 1.5, "queue-get": 2, "": 2},
    "lock": {"lock": 3, "storage": 2, "futex": 2, "process": 2, "sleep": 2, "": 1.5},
    "futex": {"lock": 1.5, "futex": 1.5, "storage": 1, "sleep": 1},
}
_ASKS: dict[Wait, str] = {
    "queue-get": "data", "children": "data", "queue-put": "room", "join": "end", "future": "end", "event": "end",
    "lock": "lock", "futex": "futex",
}  # fmt: skip
_NEAR = 0.6

Who = Literal["thread", "child", "stopped child", "no child"]


class Other(msgspec.Struct, frozen=True, kw_only=True):
    """The thread or child that the training thread waits for.

    Attributes:
        who: Kind: thread, child, stopped child, or no child left.
        label: "its prefetch thread 'feed'", "its data-loader child 4711".
        site: Where it sits.
        is_deadlock: Both wait for a lock: the training thread is as good a place to look as the other.
    """

    who: Who
    label: str
    site: Site
    is_deadlock: bool = False


def find_other(member: Member) -> Other | None:
    """Find the thread or child that the training thread waits for; None if none is seen to hold it up."""
    asks = _ASKS.get(member.site.wait)
    if asks is None:
        return None
    found = list(_children(member)) if member.site.wait in ("children", "queue-get", "future") else []
    if member.site.wait == "children" and not found:
        nobody = _nobody(member)
        if nobody is not None:
            return nobody
    found += _threads(member, asks)
    best = max(found, key=lambda one: (one[0], one[1].label), default=None)
    return best[1] if best is not None and best[0] >= 2.0 else None


def _threads(member: Member, asks: str) -> Iterator[tuple[float, Other]]:
    """List other threads with code of the user's on their stacks, and how suspicious each is."""
    for thread in sorted(member.now.process.threads, key=lambda one: -one.thread_id):
        if thread is member.thread or thread.name.startswith("eroica"):
            continue
        site = find_site(thread)
        worth = _SUSPICION[asks].get(site.wait, 0.0) if site.has_own and site.kind == "code" else 0.0
        if worth and not site.wait and thread.state == "S":
            worth -= 0.5
        if worth:
            yield (
                worth + _nearness(member.site, site),
                Other(
                    who="thread",
                    label=f"its thread {clean(thread.name, 40)!r}" if thread.name else "another of its threads",
                    site=site,
                    is_deadlock=asks in ("lock", "futex") and site.wait in ("lock", "futex"),
                ),
            )


def _nearness(training: Site, other: Site) -> float:
    """Weigh nearness: the same file speaks for a common matter, the same folder a little."""
    if training.own is None or other.own is None or not training.has_own:
        return 0.0
    if training.own.file == other.own.file:
        return _NEAR
    return _NEAR / 2 if training.own.file.rpartition("/")[0] == other.own.file.rpartition("/")[0] else 0.0


def _children(member: Member) -> Iterator[tuple[float, Other]]:
    for child in sorted(member.now.children, key=lambda one: one.pid):
        if child.state in ("T", "t"):
            label = f"its data-loader child {child.pid}, which is stopped (state {child.state})"
            yield 5.0, Other(who="stopped child", label=label, site=find_site(_main(child), in_child=True))
            continue
        site = find_site(_main(child), in_child=True)
        worth = _SUSPICION["data"].get(site.wait, 0.0) if site.has_own else 0.0
        if worth and child.state not in ("Z", "X"):
            yield worth + 1.0, Other(who="child", label=f"its data-loader child {child.pid}", site=site)


def _nobody(member: Member) -> Other | None:
    """Report a loop that waits for loader processes of which none lives."""
    if not any("_MultiProcessingDataLoaderIter" in entry or "_try_get_data" in entry for entry in member.site.stack):
        return None
    if any(child.state not in ("Z", "X") for child in member.now.children):
        return None
    seen = "is alive" if member.now.children else "is to be seen"  # some kernels do not tell who is whose child
    return Other(who="no child", label=f"its data-loader children, of which none {seen}", site=member.site)


def _main(process: ProcessLook) -> ThreadLook | None:
    threads = process.threads
    return next((one for one in threads if one.thread_id == process.pid or one.name == "MainThread"), None)
