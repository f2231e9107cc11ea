"""Find why a job stands still: two looks at every worker, one verdict.

EROICA, section 4.1: a worker without any event for five mean iterations triggers a profile. Section 6.3 shows one
blocked job (case 3: a prefetch thread stuck in `queue.put()`, others idle, an all-gather that not all ranks ran). The
way from there to the origin is not published; these rules are ours.

    looks ─▶ scene (who sits where) ─▶ meetings (open collectives) ─▶ waiting (graph) ─▶ rules ─▶ findings ─▶ verdict

No clocks are compared. Collectives are matched by their number in their process group, and every age is a duration that
was measured on one host.

Flight Recorder dumps from files take the same way with less in them (`Blockage.source`): who entered and completed
which collective, and nothing else (`recorded`).
"""

from __future__ import annotations

from collections.abc import Iterable

from eroica import __version__
from eroica.diagnosis.blocked.collectives import (
    find_circle,
    find_leavers,
    find_mismatches,
    find_stacks_apart,
    find_stuck_transport,
    find_unreadable_waits,
    find_unrecorded,
    find_unseen,
)
from eroica.diagnosis.blocked.conclusion import build_findings, choose_word, complete_notes, find_waiters, summarize
from eroica.diagnosis.blocked.culprits import find_blocked_code, find_dead, find_lock_holders, find_stopped
from eroica.diagnosis.blocked.meetings import find_meetings
from eroica.diagnosis.blocked.recorded import find_absent, find_facing, find_stalled, find_without_dump
from eroica.diagnosis.blocked.scene import Scene, build_scene, has_moved
from eroica.diagnosis.blocked.waiting import Origin, Waiting, find_waiting, remaining, standing_waits
from eroica.model.look import Blockage
from eroica.model.verdict import NAMED, Coverage, Finding, Hypothesis, IterationTimes, Verdict, VerdictWindow
from eroica.settings import Settings

__all__ = ["diagnose_blockage"]

#: Waits in which a training thread is certainly not inside a collective, though no frame tells.
_ELSEWHERE = frozenset({"queue-get", "queue-put", "lock", "event", "join", "children", "process", "storage", "sleep"})


def diagnose_blockage(blockage: Blockage, job: str, settings: Settings) -> Verdict | None:
    """Build the verdict on a job that stands still.

    Args:
        blockage: Two looks at all living workers, and who is gone.
        job: Name of the job.
        settings: `answering_thread`.

    Returns:
        "blocked" with the origin as cause and those who wait for it as symptoms; "undetermined" where too little is
        known; None if somebody moved between the looks: then nothing is blocked. The same whatever the order of hosts
        and workers in the record.
    """
    scene = build_scene(blockage)
    if any(has_moved(member) for member in scene.members.values()):
        return None
    waiting = find_waiting(find_meetings(scene))
    origins = find_origins(scene, waiting, settings)
    waiters = find_waiters(scene, waiting, origins)
    findings = build_findings(scene, waiting, origins, waiters)
    word = choose_word(scene, findings)
    baseline_s = blockage.baseline_iteration_s
    return Verdict(
        eroica_version=__version__,
        job=job,
        verdict=word,
        summary=summarize(scene, word, origins, waiters),
        window=_window(scene, blockage.reason),
        iteration=IterationTimes(baseline_ms=round(1e3 * baseline_s, 3) if baseline_s else None),
        coverage=Coverage(
            workers_expected=scene.expected,
            workers_reported=scene.heard,
            missing=scene.missing,
            notes=tuple(complete_notes(scene, blockage, origins)),
        ),
        findings=tuple(findings),
        waits=standing_waits(scene, waiting),
        considered=tuple(_hypothesis(finding) for finding in findings if finding.role == "cause"),
    )


def _hypothesis(finding: Finding) -> Hypothesis:
    """Return an origin as what was considered: all that the looks show are named."""
    return Hypothesis(
        cause=finding.cause,
        function=finding.function.name,
        workers=finding.workers,
        scope=finding.scope,
        gain=None,
        decision=NAMED,
        met=finding.evidence,
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


# --- the rules in order: each takes what the rules before it left unexplained ---


def find_origins(scene: Scene, waiting: Waiting, settings: Settings) -> list[Origin]:
    """Find why the job stands still, most certain reason first; empty if nothing is known."""
    if scene.from_dumps:
        return _from_dumps(scene, waiting)
    dead = find_dead(scene)
    found = [*dead, *find_stopped(scene), *find_lock_holders(scene, settings)]
    found += _without(find_mismatches(scene, waiting), found)
    found += _at_the_ends(scene, waiting, found, dead)
    if remaining(waiting, found):
        found += _in_circles(scene, waiting)
    if remaining(waiting, found):
        found += find_stuck_transport(scene, waiting, remaining(waiting, found))
    if not found or (remaining(waiting, found) and not dead):
        found += _by_stacks(scene, waiting, found)
    return found


def _from_dumps(scene: Scene, waiting: Waiting) -> list[Origin]:
    """Find origins where neither processes nor stacks are known, only collectives entered and completed."""
    found = find_mismatches(scene, waiting)
    found += _without(find_stalled(scene, waiting), found)
    ends = {node for node in waiting.ends() if node >= 0} - _named(found) - waiting.meetings.stalls.keys()
    found += find_absent(scene, waiting, sorted(ends & scene.members.keys() - waiting.meetings.facing))
    unheard = (ends - scene.members.keys()) & waiting.reached(remaining(waiting, found))
    found += find_without_dump(scene, waiting, sorted(unheard))
    if remaining(waiting, found):
        found += find_circle(scene, waiting)
    if remaining(waiting, found):
        found += find_stuck_transport(scene, waiting, remaining(waiting, found))
    return found + _without(find_facing(waiting, found), found)


def _named(found: Iterable[Origin]) -> set[int]:
    return {rank for origin in found for rank in origin.ranks}


def _without(candidates: list[Origin], found: list[Origin]) -> list[Origin]:
    """Keep the candidates whose workers no origin names yet."""
    named = _named(found)
    return [origin for origin in candidates if named.isdisjoint(origin.ranks)]


def _at_the_ends(scene: Scene, waiting: Waiting, found: list[Origin], dead: list[Origin]) -> list[Origin]:
    """Find workers at which the ways of the graph end: those for whom everybody waits.

    After a death survivors react in all sorts of places: then only ends count that are awaited by a worker which does
    not wait for the dead.
    """
    ends = {node for node in waiting.ends() if node >= 0} - _named(found)
    if dead:
        ends &= waiting.reached(remaining(waiting, dead))
    members = {rank: scene.members[rank] for rank in sorted(ends) if rank in scene.members}
    code = [rank for rank, member in members.items() if member.seat == "code"]
    leaving = [rank for rank, member in members.items() if member.seat == "exit"]
    blind = [rank for rank, member in members.items() if member.seat == "unknown"]
    gone = sorted(rank for rank in ends if rank in scene.left)
    origins = find_blocked_code(scene, code, confidence=0.92)
    origins += find_leavers(scene, [*gone, *leaving], waiting)
    missing = sorted(rank for rank in ends if rank not in scene.members and rank not in scene.left)
    return origins + find_unseen(scene, [*missing, *blind])


def _in_circles(scene: Scene, waiting: Waiting) -> list[Origin]:
    """Find the origin of a circle of waits: workers that certainly sit outside any collective, else the minority."""
    workers = [node for node in sorted(waiting.circle()) if node >= 0]
    sites = {rank: scene.members[rank].site for rank in workers}
    elsewhere = [rank for rank, site in sites.items() if site.kind == "code" and site.wait in _ELSEWHERE]
    if elsewhere and len(elsewhere) < len(workers):
        return find_blocked_code(scene, elsewhere, confidence=0.7)
    return find_circle(scene, waiting)


def _by_stacks(scene: Scene, waiting: Waiting, found: list[Origin]) -> list[Origin]:
    """Find origins by stacks alone, among workers that neither wait in a known collective nor are explained yet."""
    named = _named(found)
    free = {rank: member for rank, member in scene.members.items() if rank not in waiting.onward and rank not in named}
    code = [rank for rank, member in free.items() if member.seat == "code"]
    leaving = [rank for rank, member in free.items() if member.seat == "exit"]
    talking = [rank for rank, member in free.items() if member.seat == "communication"]
    if not code and talking and leaving:
        return find_leavers(scene, leaving, waiting)
    # `work.wait()` and waits for the device have no frame of their own: these may be for others
    waits = {rank: free[rank].site.wait for rank in code}
    certain = [rank for rank, wait in waits.items() if wait != "futex" and (wait or free[rank].worker.device == "cpu")]
    if len(scene.members) > 1 and certain and len(certain) < len(code):
        talking += [rank for rank in code if rank not in certain]
        code = certain
    if code or leaving:
        return find_blocked_code(scene, [*code, *leaving], confidence=0.6 if talking else 0.75)
    unrecorded = find_unrecorded(scene, talking, waiting)
    if unrecorded or found:
        return unrecorded
    return find_stacks_apart(scene, talking) or find_unreadable_waits(scene, talking)
