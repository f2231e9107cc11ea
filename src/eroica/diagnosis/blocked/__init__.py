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

from eroica import __version__
from eroica.diagnosis.blocked.conclusion import build_findings, choose_word, complete_notes, find_queues, summarize
from eroica.diagnosis.blocked.meetings import find_meetings
from eroica.diagnosis.blocked.rules import find_origins
from eroica.diagnosis.blocked.scene import Scene, build_scene, has_moved
from eroica.diagnosis.blocked.waiting import find_waiting, standing_waits
from eroica.model.look import Blockage
from eroica.model.verdict import NAMED, Coverage, Finding, Hypothesis, IterationTimes, Verdict, VerdictWindow
from eroica.settings import Settings

__all__ = ["diagnose_blockage"]


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
    queues = find_queues(scene, waiting, origins)
    findings = build_findings(scene, waiting, origins, queues)
    word = choose_word(scene, findings)
    baseline_s = blockage.baseline_iteration_s
    return Verdict(
        eroica_version=__version__,
        job=job,
        verdict=word,
        summary=summarize(scene, word, origins, queues),
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
