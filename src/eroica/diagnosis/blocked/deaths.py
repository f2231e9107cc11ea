"""Rules 1 and 2: workers that are gone or stopped, and threads that never give the interpreter lock back.

Nobody comes any more, so nothing else needs asking.
"""

from __future__ import annotations

import signal

from eroica.diagnosis.blocked.origin import Origin, function_of, silence_words
from eroica.diagnosis.blocked.places import Site, find_site
from eroica.diagnosis.blocked.scene import Member, Scene, holder_of_interpreter_lock
from eroica.model.look import Death, Ending, ThreadLook
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
