"""Find why a job stands still: two looks at every worker, one verdict.

EROICA, section 4.1: a worker without any event for five mean iterations triggers a profile. Section 6.3 shows one
blocked job (case 3: a prefetch thread stuck in `queue.put()`, others idle, an all-gather that not all ranks ran). The
way from there to the origin is not published; these rules are ours.

    looks ─▶ scene (who sits where) ─▶ waiting (open collectives, graph) ─▶ origins ─▶ conclusion (findings, verdict)

No clocks are compared. Collectives are matched by their number in their process group, and every age is a duration that
was measured on one host.

Flight Recorder dumps from files take the same way with less in them (`Blockage.source`): who entered and completed
which collective, and nothing else (`recorded`).
"""

from __future__ import annotations

from collections.abc import Iterable

from eroica import __version__
from eroica.diagnosis.blocked.conclusion import (
    build_findings,
    choose_word,
    complete_notes,
    find_waiters,
    standing_waits,
    summarize,
)
from eroica.diagnosis.blocked.origins import (
    Origin,
    find_circle,
    find_leavers,
    find_mismatches,
    find_stuck_transport,
    find_unrecorded,
    find_unseen,
    named_by,
    remaining,
)
from eroica.diagnosis.blocked.processes import find_blocked_code, find_dead, find_lock_holders, find_stopped
from eroica.diagnosis.blocked.recorded import find_absent, find_stalled, find_without_dump
from eroica.diagnosis.blocked.scene import Scene, Seat, build_scene, has_moved
from eroica.diagnosis.blocked.waiting import Waiting, find_waiting
from eroica.model.look import Blockage
from eroica.model.verdict import NAMED, Coverage, Hypothesis, IterationTimes, Verdict, VerdictWindow
from eroica.settings import Settings

__all__ = ["diagnose_blockage"]

#: Waits in which a training thread is certainly not inside a collective, though no frame tells.
_ELSEWHERE = frozenset({"queue-get", "queue-put", "lock", "thread", "children", "process", "storage", "sleep"})


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
    waiting = find_waiting(scene)
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
            for one in findings
            if one.role == "cause"
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


# --- the rules in order: each takes what the rules before it left unexplained ---


def find_origins(scene: Scene, waiting: Waiting, settings: Settings) -> list[Origin]:
    """Find why the job stands still, most certain reason first; empty if nothing is known."""
    if scene.from_dumps:
        return _from_dumps(scene, waiting)
    dead = find_dead(scene)
    found = [*dead, *find_stopped(scene), *find_lock_holders(scene, settings.answering_thread)]
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
    ends = {node for node in waiting.ends() if node >= 0} - named_by(found)
    found += find_absent(scene, waiting, sorted(ends & scene.members.keys()))
    unheard = (ends - scene.members.keys()) & waiting.reached(remaining(waiting, found))
    found += find_without_dump(scene, waiting, sorted(unheard))
    if remaining(waiting, found):
        found += find_circle(scene, waiting)
    if remaining(waiting, found):
        found += find_stuck_transport(scene, waiting, remaining(waiting, found))
    return found


def _without(candidates: list[Origin], found: list[Origin]) -> list[Origin]:
    """Keep the candidates whose workers no origin names yet."""
    named = named_by(found)
    return [origin for origin in candidates if named.isdisjoint(origin.ranks)]


def _seated(scene: Scene, ranks: Iterable[int], seat: Seat) -> list[int]:
    """Return those workers whose training thread has such a seat."""
    return [rank for rank in sorted(ranks) if rank in scene.members and scene.members[rank].seat == seat]


def _at_the_ends(scene: Scene, waiting: Waiting, found: list[Origin], dead: list[Origin]) -> list[Origin]:
    """Find workers at which the ways of the graph end: those for whom everybody waits.

    After a death survivors react in all sorts of places: then only ends count that are awaited by a worker which does
    not wait for the dead.
    """
    ends = {node for node in waiting.ends() if node >= 0} - named_by(found)
    if dead:
        ends &= waiting.reached(remaining(waiting, dead))
    origins = find_blocked_code(scene, _seated(scene, ends, "code"), confidence=0.92)
    origins += find_leavers(scene, waiting, [*sorted(ends & scene.left), *_seated(scene, ends, "exit")])
    origins += find_unseen(sorted(ends - scene.members.keys() - scene.left), is_missing=True)
    return origins + find_unseen(_seated(scene, ends, "unknown"), is_missing=False)


def _in_circles(scene: Scene, waiting: Waiting) -> list[Origin]:
    """Find the origin of a circle of waits: workers that certainly sit outside any collective, else the minority."""
    workers = [node for node in sorted(waiting.circle()) if node >= 0]
    sites = {rank: scene.members[rank].site for rank in workers}
    elsewhere = [rank for rank, site in sites.items() if site.seat == "code" and site.wait in _ELSEWHERE]
    if elsewhere and len(elsewhere) < len(workers):
        return find_blocked_code(scene, elsewhere, confidence=0.7)
    return find_circle(scene, waiting)


def _by_stacks(scene: Scene, waiting: Waiting, found: list[Origin]) -> list[Origin]:
    """Find origins by stacks alone, among workers that neither wait in a known collective nor are explained yet."""
    free = scene.members.keys() - waiting.onward.keys() - named_by(found)
    code, leaving, talking = (_seated(scene, free, seat) for seat in ("code", "exit", "communication"))
    if not code and talking and leaving:
        return find_leavers(scene, waiting, leaving)
    # `work.wait()` and waits for the device have no frame of their own: these may be for others
    members = {rank: scene.members[rank] for rank in code}
    waits = {rank: one.site.wait or ("" if one.worker.device != "cpu" else "none") for rank, one in members.items()}
    certain = [rank for rank, wait in waits.items() if wait not in ("", "futex")]
    if len(scene.members) > 1 and certain and len(certain) < len(code):
        talking += [rank for rank in code if rank not in certain]
        code = certain
    if code or leaving:
        return find_blocked_code(scene, [*code, *leaving], confidence=0.6 if talking else 0.75)
    return find_unrecorded(scene, waiting, talking, is_last=not found)
