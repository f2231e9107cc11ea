"""Turn the suspects of a window into a verdict: causes, their symptoms, what each costs and what to do."""

from __future__ import annotations

from eroica import __version__
from eroica.diagnosis.call_sites import tell_callers
from eroica.diagnosis.conclusion import conclude
from eroica.diagnosis.context import WindowContext
from eroica.diagnosis.findings import build_findings
from eroica.diagnosis.gains import doubt_small_causes, explained_of, settle_gains
from eroica.diagnosis.hypotheses import list_hypotheses
from eroica.diagnosis.recomputation import tell_recomputation
from eroica.diagnosis.rest import with_rest
from eroica.diagnosis.selection import find_causes, find_doubted, weigh_weak
from eroica.diagnosis.view import View
from eroica.diagnosis.waits import read_waits
from eroica.localize.suspects import Suspects
from eroica.model.causes import CATALOG, CatalogEntry
from eroica.model.verdict import Coverage, IterationTimes, Verdict, VerdictWindow
from eroica.settings import Settings

__all__ = ["CATALOG", "CatalogEntry", "WindowContext", "diagnose"]


def diagnose(suspects: Suspects, context: WindowContext, settings: Settings) -> Verdict:
    """Build the verdict on one window.

    A cause is a group of rows with excess time per iteration, whose removal makes the recomputed iteration shorter by
    at least `min_gain`. The excess is that of workers for which the others wait, or of all workers against the job's
    baseline window or the expectation. Collectives that are long because of a cause are its symptoms. Without a cause
    the verdict is "healthy", or "undetermined" where the window is slow or says too little.

    Args:
        suspects: Result of localization.
        context: The window, who answered, notes and cost.
        settings: `min_gain` and the expectations.
    """
    view = View(suspects, context, settings)
    causes = settle_gains(view, with_rest(view, find_causes(view))) if view.has_enough else []
    causes = doubt_small_causes(view, tell_recomputation(view, tell_callers(view, causes)))
    findings = build_findings(view, causes)
    doubted = find_doubted(view, causes) if view.has_enough else None
    word, summary, notes = conclude(view, causes, findings, doubted)
    if word == "undetermined" and view.iterations >= view.fewest_iterations:
        weigh_weak(view)
    window = context.window
    return Verdict(
        eroica_version=__version__,
        job=context.job,
        verdict=word,
        summary=summary,
        window=VerdictWindow(
            kind=window.kind,
            first_iteration=window.first_iteration,
            last_iteration=window.last_iteration,
            duration_s=round(max(pattern.duration_s for pattern in suspects.fleet.patterns), 3),
            reason=window.reason,
        ),
        iteration=IterationTimes(
            baseline_ms=round(view.baseline_us / 1e3, 3) if view.baseline_us else None,
            current_ms=round(view.iteration_us / 1e3, 3),
            rest_ms=None if view.loss is None else round(view.loss.rest(explained_of(view, causes)) / 1e3, 3),
        ),
        coverage=Coverage(
            workers_expected=context.expected_workers,
            workers_reported=view.workers,
            missing=context.missing,
            notes=(*context.notes, *notes),
        ),
        findings=findings,
        cost=context.cost,
        waits=read_waits(suspects),
        considered=list_hypotheses(view, causes, word == "undetermined"),
    )
