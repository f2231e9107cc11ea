"""The word of the verdict, its sentence and its notes: slow, healthy, or undetermined and what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eroica.diagnosis.communication import common_wait
from eroica.diagnosis.selection import Cause
from eroica.diagnosis.view import FEWEST_ITERATIONS, View
from eroica.diagnosis.wording import format_ms, name_workers, summarize_cause
from eroica.model.verdict import Finding, VerdictWord

#: If everybody who reported waits this share of the iteration, somebody who did not report is late.
_ALL_WAIT = 0.3


def conclude(
    view: View, causes: Sequence[Cause], findings: Sequence[Finding]
) -> tuple[VerdictWord, str, tuple[str, ...]]:
    """Word, sentence and coverage notes of a verdict."""
    notes = tuple(_notes(view))
    missing = _too_little(view)
    if missing:
        return "undetermined", f"Too little to tell: {missing}.", notes
    if causes:
        return "slow", summarize_cause(view, causes[0], findings[0].resource), notes
    if _waits_for_missing(view):
        ranks = name_workers(view.context.missing)
        return "undetermined", f"All workers that reported wait in collectives; {ranks} did not report.", notes
    if view.is_slow:
        return "undetermined", _unexplained(view), notes
    return "healthy", _healthy(view), notes


def _too_little(view: View) -> str:
    iterations = view.fleet.columns.shape[1]
    if iterations < FEWEST_ITERATIONS:
        wanted = f"at least {FEWEST_ITERATIONS} are needed; take a longer window"
        return f"the workers share {iterations} iteration, {wanted}"
    if not view.has_enough:
        return f"only {view.workers} of {view.context.expected_workers} workers reported"
    return ""


def _waits_for_missing(view: View) -> bool:
    share = float(common_wait(view.fleet.wait_us).mean()) / max(view.iteration_us, 1e-9)
    return bool(view.context.missing) and share >= _ALL_WAIT


def _unexplained(view: View) -> str:
    now, before = format_ms(view.iteration_us), view.stated_baseline_us
    text = f"Iterations take {now}" + (f" instead of {format_ms(before)}" if before else "")
    lacking = []
    if view.suspects.baseline is None:
        lacking.append("there is no baseline window of the healthy job to compare with")
    if not any(pattern.samples_used for pattern in view.fleet.patterns):
        lacking.append("there are no Python stacks")
    if view.workers > 1 and not view.suspects.arrivals.executions:
        lacking.append("no collective could be matched between workers")
    why = ", and ".join(lacking) or "no worker stands out among its peers or against the job's own healthy window"
    return f"{text}, but no function accounts for it: {why}."


def _healthy(view: View) -> str:
    least, now = f"{view.settings.min_gain:.0%}", format_ms(view.iteration_us)
    text = f"No cause found: nothing in this window costs {least} of the iteration ({now})."
    if view.context.window.purpose == "slow" and view.stated_baseline_us:
        return f"{text} The slowdown was over when the window opened."
    return text


def _notes(view: View) -> Iterator[str]:
    context = view.context
    if context.missing:
        absent = name_workers(context.missing)
        yield f"Based on {view.workers} of {context.expected_workers} workers; {absent} did not report."
    yield from view.suspects.notes
    yield from view.suspects.arrivals.notes
    iterations = view.fleet.columns.shape[1]
    if FEWEST_ITERATIONS <= iterations < 5:
        yield f"Only {iterations} iterations were captured: small excesses cannot be told from noise."
    if view.suspects.baseline is None and context.window.purpose != "baseline":
        yield "No baseline window: changes that hit all workers alike can only be judged against expectation."
    yield from _worker_notes(view)


def _worker_notes(view: View) -> Iterator[str]:
    """Each worker's own notes, equal ones together."""
    owners: dict[str, list[int]] = {}
    for pattern in view.fleet.patterns:
        for note in dict.fromkeys(pattern.notes):
            owners.setdefault(note, []).append(pattern.worker.global_rank)
    for note, ranks in owners.items():
        whom = "all workers" if len(ranks) == view.workers else name_workers(ranks)
        yield f"{note} ({whom})"
