"""The word of the verdict, its sentence and its notes: slow, healthy, or undetermined and what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.communication import common_wait
from eroica.diagnosis.selection import Cause
from eroica.diagnosis.uneven import find_uneven_work
from eroica.diagnosis.view import View
from eroica.diagnosis.wording import summarize_cause
from eroica.diagnosis.words import format_ms, name_workers
from eroica.model.verdict import Finding, VerdictWord

#: Advice where an iteration or a comparison is lacking.
LONGER_WINDOW = "take a longer window"
MORE_STEPS = "record more steps (schedule(active=...))"

#: Online, if everybody who reported waits this share of the iteration, somebody who did not report is late.
_ALL_WAIT = 0.3
#: Below so many iterations the reader is told.
_FEW = 5


def conclude(
    view: View, causes: Sequence[Cause], findings: Sequence[Finding], doubted: Cause | None = None
) -> tuple[VerdictWord, str, tuple[str, ...]]:
    """Word, sentence and coverage notes of a verdict.

    Args:
        view: The window.
        causes: Its causes.
        findings: The same as findings, symptoms after them.
        doubted: Where there is no cause, what may be one.
    """
    notes = tuple(_notes(view, causes))
    missing = _too_little(view)
    if missing:
        return "undetermined", f"Too little to tell: {missing}.", notes
    if causes and all(cause.candidate.may_be_recording or cause.candidate.is_remark for cause in causes):
        return "undetermined", _only_the_start(view, causes, findings), notes
    if causes:
        return "slow", summarize_cause(view, causes[0], findings[0].resource), notes
    if view.suspects.arrivals.contradicted:
        return "undetermined", _contradiction(view), notes
    if _waits_for_missing(view):
        return "undetermined", _all_wait(view), notes
    if doubted is not None:
        return "undetermined", _doubted(view, doubted), notes
    if view.is_slow:
        return "undetermined", _unexplained(view), notes
    if view.is_trace and all(pattern.found_by == "span" for pattern in view.fleet.patterns):
        return "undetermined", _no_iterations(view), notes
    return "healthy", _healthy(view), notes


def _no_iterations(view: View) -> str:
    return (
        f"No iterations were found in what was recorded ({format_ms(view.iteration_us)}), so nothing tells whether it "
        "is training at all; record whole steps, and mark them with the profiler's step()."
    )


def _too_little(view: View) -> str:
    if view.iterations < view.fewest_iterations:
        wanted = f"at least {view.fewest_iterations} are needed; {MORE_STEPS if view.is_trace else LONGER_WINDOW}"
        return f"the workers share {view.iterations} iteration, {wanted}"
    if not view.has_enough:
        return f"only {view.workers} of {view.context.expected_workers} workers reported"
    return ""


def _waits_for_missing(view: View) -> bool:
    if view.is_trace:
        return bool(view.context.missing) and float(_for_nobody(view).max()) >= view.settings.min_gain
    share = float(common_wait(view.fleet.wait_us).mean()) / max(view.iteration_us, 1e-9)
    return bool(view.context.missing) and share >= _ALL_WAIT


def _for_nobody(view: View) -> NDArray[np.float64]:
    """Share of the iteration in collectives that each worker spends for none of the recorded. float64 [W]."""
    waited_W = view.wait_us - view.suspects.arrivals.waited_us.mean(axis=1)
    return np.asarray(waited_W / max(view.iteration_us, 1e-9))


def _only_the_start(view: View, causes: Sequence[Cause], findings: Sequence[Finding]) -> str:
    text = summarize_cause(view, causes[0], findings[0].resource)
    return f"{text} One iteration does not tell which of the two: {MORE_STEPS}."


def _doubted(view: View, doubted: Cause) -> str:
    found = doubted.candidate
    what = f"{found.focus.label} ({found.cause})" if found.focus.functions else f"Something unknown ({found.cause})"
    if found.is_latecomer and not found.focus.functions:
        what = "Waiting for a late start into collectives"
    who = name_workers([view.fleet.ranks[worker] for worker in found.workers]) if found.workers else "changing workers"
    count = f"{view.iterations} iteration{' is' if view.iterations == 1 else 's are'}"
    return (
        f"{what} seems to cost {doubted.gain:.0%} of the iteration ({format_ms(view.iteration_us)}) on {who}, but "
        f"{count} too few to tell it from noise; {MORE_STEPS}."
    )


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


def _all_wait(view: View) -> str:
    ranks = name_workers(view.context.missing)
    if view.is_trace:
        worst = int(_for_nobody(view).argmax())
        who, share = name_workers([view.fleet.ranks[worst]], capital=True), f"{_for_nobody(view)[worst]:.0%}"
        return (
            f"{who} spends {share} of the iteration in collectives, and for none of the recorded workers: that may be "
            f"the transfer, or {ranks}, of which there is no trace."
        )
    return f"All workers that reported wait in collectives; {ranks} did not report."


def _contradiction(view: View) -> str:
    return (
        f"Collectives of the recorded workers do not pair ({view.suspects.arrivals.contradicted}): events are missing, "
        "or these traces were not recorded together. Nothing else in them costs "
        f"{view.settings.min_gain:.0%} of the iteration ({format_ms(view.iteration_us)})."
    )


def _healthy(view: View) -> str:
    least, now = f"{view.settings.min_gain:.0%}", format_ms(view.iteration_us)
    if view.is_trace:
        whose = f"the trace of {name_workers(view.fleet.ranks)}" if view.context.missing else "what was recorded"
        return f"No cause found: nothing in {whose} costs {least} of the iteration ({now})."
    text = f"No cause found: nothing in this window costs {least} of the iteration ({now})."
    if view.context.window.purpose == "slow" and view.stated_baseline_us:
        return f"{text} The slowdown was over when the window opened."
    return text


def _notes(view: View, causes: Sequence[Cause]) -> Iterator[str]:
    yield from _missing(view)
    yield from view.suspects.notes
    yield from view.suspects.arrivals.notes
    yield from _few_iterations(view)
    if view.is_trace:
        yield from (remark.sentence for remark in find_uneven_work(view) if not causes)
    elif view.suspects.baseline is None and view.context.window.purpose != "baseline":
        yield "No baseline window: changes that hit all workers alike can only be judged against expectation."
    yield from _worker_notes(view)


def _missing(view: View) -> Iterator[str]:
    context = view.context
    if context.missing:
        absent = name_workers(context.missing)
        if view.is_trace:
            whom = "it" if len(context.missing) == 1 else "them"
            yield f"There is no trace of {absent}, and nothing is said of {whom}."
        else:
            yield f"Based on {view.workers} of {context.expected_workers} workers; {absent} did not report."


def _few_iterations(view: View) -> Iterator[str]:
    if view.is_trace and view.iterations == 1:
        yield f"One iteration was recorded: its noise is unknown, and confidence lower; {MORE_STEPS}."
    elif view.fewest_iterations <= view.iterations < _FEW:
        how = "recorded" if view.is_trace else "captured"
        yield f"Only {view.iterations} iterations were {how}: small excesses cannot be told from noise."


def _worker_notes(view: View) -> Iterator[str]:
    """Each worker's own notes, equal ones together."""
    owners: dict[str, list[int]] = {}
    for pattern in view.fleet.patterns:
        for note in dict.fromkeys(pattern.notes):
            owners.setdefault(note, []).append(pattern.worker.global_rank)
    for note, ranks in owners.items():
        whom = "all workers" if len(ranks) == view.workers else name_workers(ranks)
        yield f"{note} ({whom})"
