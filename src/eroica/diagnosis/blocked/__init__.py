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

from eroica.diagnosis.blocked.conclusion import conclude
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
from eroica.diagnosis.blocked.recorded import find_absent, find_stalled
from eroica.diagnosis.blocked.scene import Scene, Seat, build_scene, has_moved
from eroica.diagnosis.blocked.waiting import Waiting, find_waiting
from eroica.model.look import Blockage
from eroica.model.verdict import Verdict
from eroica.settings import Settings

__all__ = ["diagnose_blockage"]

#: What is seen of a thread inside `work.wait()` or in a wait for the device, which have no frame of their own.
_VAGUE = ("", "futex")


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
    return conclude(scene, waiting, origins, blockage, job)


# --- the rules in order: each takes what the rules before it left unexplained ---


def find_origins(scene: Scene, waiting: Waiting, settings: Settings) -> list[Origin]:
    """Find why the job stands still, most certain reason first; empty if nothing is known."""
    if scene.from_dumps:
        found = find_mismatches(scene, waiting)
        found += _without(find_stalled(waiting), found)
        ends = _ends(waiting, found)
        found += find_absent(scene, waiting, ends & scene.members.keys())
        found += find_absent(scene, waiting, (ends - scene.members.keys()) & waiting.reached(remaining(waiting, found)))
    else:
        found = [*find_dead(scene), *find_stopped(scene), *find_lock_holders(scene, settings.answering_thread)]
        found += _without(find_mismatches(scene, waiting), found)
        found += _at_the_ends(scene, waiting, found)
    if remaining(waiting, found):
        found += _in_circles(scene, waiting)
    found += find_stuck_transport(scene, waiting, remaining(waiting, found))
    if not scene.from_dumps and (not found or (remaining(waiting, found) and not scene.deaths)):
        found += _by_stacks(scene, waiting, found)
    return found


def _without(candidates: list[Origin], found: list[Origin]) -> list[Origin]:
    """Keep the candidates whose workers no origin names yet."""
    named = named_by(found)
    return [origin for origin in candidates if named.isdisjoint(origin.ranks)]


def _ends(waiting: Waiting, found: list[Origin]) -> set[int]:
    """Find workers that others wait for, that wait for nobody, and that no origin names yet."""
    return {node for node in waiting.ends() if node >= 0} - named_by(found)


def _seated(scene: Scene, ranks: Iterable[int], seat: Seat) -> list[int]:
    """Return those workers that have such a seat."""
    return [rank for rank in sorted(ranks) if scene.seat(rank) == seat]


def _at_the_ends(scene: Scene, waiting: Waiting, found: list[Origin]) -> list[Origin]:
    """Find workers at which the ways of the graph end: those for whom everybody waits.

    After a death survivors react in all sorts of places: then only ends count that are awaited by a worker which does
    not wait for the dead.
    """
    ends = _ends(waiting, found)
    if scene.deaths:
        ends &= waiting.reached(remaining(waiting, found)) - scene.deaths.keys()
    origins = find_blocked_code(scene, _seated(scene, ends, "code"), confidence=0.92)
    origins += find_leavers(scene, _seated(scene, ends, "left")) + find_leavers(scene, _seated(scene, ends, "exit"))
    origins += find_unseen(_seated(scene, ends, "missing"), is_missing=True)
    return origins + find_unseen(_seated(scene, ends, "unknown"), is_missing=False)


def _in_circles(scene: Scene, waiting: Waiting) -> list[Origin]:
    """Find the origin of a circle of waits: workers that certainly sit outside any collective, else the minority."""
    workers = [node for node in sorted(waiting.circle()) if node >= 0]
    sites = {rank: scene.members[rank].site for rank in workers}
    elsewhere = [rank for rank, site in sites.items() if site.seat == "code" and site.wait not in _VAGUE]
    if elsewhere and len(elsewhere) < len(workers):
        return find_blocked_code(scene, elsewhere, confidence=0.7)
    return find_circle(scene, waiting)


def _by_stacks(scene: Scene, waiting: Waiting, found: list[Origin]) -> list[Origin]:
    """Find origins by stacks alone, among workers that neither wait in a known collective nor are explained yet."""
    free = scene.members.keys() - waiting.onward.keys() - named_by(found)
    code, leaving, talking = (_seated(scene, free, seat) for seat in ("code", "exit", "communication"))
    if not code and talking and leaving:
        return find_leavers(scene, leaving)
    members = ((rank, scene.members[rank]) for rank in code)
    vague = [rank for rank, one in members if one.site.wait in _VAGUE[one.worker.device == "cpu" :]]
    certain = [rank for rank in code if rank not in vague]
    if len(scene.members) > 1 and certain and len(certain) < len(code):
        code, talking = certain, [*talking, *vague]
    if code or leaving:
        return find_blocked_code(scene, [*code, *leaving], confidence=0.6 if talking else 0.75)
    return find_unrecorded(scene, waiting, talking, is_last=not found)
