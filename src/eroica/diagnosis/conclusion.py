"""The word of the verdict, its sentence and its notes: slow, healthy, or undetermined and what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from eroica.diagnosis.frames import HALF
from eroica.diagnosis.labels import PLANNED
from eroica.diagnosis.missing_workers import (
    ALL_OF_THEM,
    describe_absence,
    find_absence,
    hides,
    note_absence,
)
from eroica.diagnosis.recordings import FEW_STEPS, describe_turns
from eroica.diagnosis.selection import LEAST_CHANGE, LEAST_DOUBTED, Cause, Weighed, explained_us, growth_of
from eroica.diagnosis.setup import setup_notes
from eroica.diagnosis.stages import describe_stage, find_long_stage
from eroica.diagnosis.view import View
from eroica.diagnosis.wording import summarize_cause
from eroica.diagnosis.words import format_ms, name_workers
from eroica.model.causes import CATALOG
from eroica.model.lost import Lost
from eroica.model.shares import percent
from eroica.model.verdict import Finding, VerdictWord
from eroica.model.words import milliseconds

LONGER_WINDOW = "take a longer window"
MORE_STEPS = "record more steps (schedule(active=...))"
LEAVE_ON = "leave the baseline window on, or compare with a healthy run (eroica diff)"
#: Share of the growth from which planned changes account for all of it: the rest of a busy machine's is noise.
_MOST = 0.75
#: An iteration so many times as long as the usual one had a pause; so much longer is told, though it may be noise.
_PAUSE, _TOLD = 1.5, 1.1


class Conclusion(NamedTuple):
    """Word, sentence and coverage notes of a verdict."""

    word: VerdictWord
    summary: str
    notes: tuple[str, ...]


def conclude(
    view: View, causes: Sequence[Cause], weighed: Sequence[Weighed], findings: Sequence[Finding]
) -> Conclusion:
    """Choose the word, the sentence and the notes.

    Args:
        view: The window.
        causes: Its causes.
        weighed: What was considered besides.
        findings: The causes as findings, symptoms after them.
    """
    notes = tuple(_notes(view, causes))
    missing = too_little(view)
    if missing:
        return Conclusion("undetermined", f"Too little to tell: {missing}.", notes)
    absence = find_absence(view)
    if causes:
        text = summarize_cause(view, causes[0])
        if absence is not None and hides(view, absence, causes):
            return Conclusion("undetermined", describe_absence(view, absence), (*notes, f"Besides: {text}"))
        text, is_slow = _with_rest(view, causes, findings, text)
        beside = (note_absence(view, absence),) if absence is not None and not view.is_trace else ()
        word: VerdictWord = "slow" if is_slow else "undetermined"
        if all(one.cause == PLANNED for one in causes):  # no fault, if it is all that has grown
            word = "healthy" if explained_us(view, causes) >= _MOST * _grown_us(view) else "undetermined"
        return Conclusion(word, text, (*notes, *beside))
    if view.suspects.arrivals.contradicted:
        return Conclusion("undetermined", _contradiction(view), notes)
    if absence is not None and absence.is_most:
        return Conclusion("undetermined", describe_absence(view, absence), notes)
    doubted = [one for one in weighed if one.is_doubted and one.cause.gain >= LEAST_DOUBTED]
    if doubted:
        return Conclusion("undetermined", _doubted(view, doubted[0].cause), notes)
    if view.is_slow:
        return Conclusion("undetermined", _unexplained(view, weighed), notes)
    if view.is_trace and all(pattern.found_by == "span" for pattern in view.fleet.patterns):
        text = (
            f"No iterations were found in what was recorded ({view.now_text}), so nothing tells whether it is training "
        )
        return Conclusion("undetermined", f"{text}at all; record whole steps, and mark them with step().", notes)
    if view.loss is not None and view.loss.is_sure:
        return Conclusion("undetermined", _longer(view, view.loss), notes)
    return Conclusion("healthy", _healthy(view), notes)


def too_little(view: View) -> str:
    """Return what a window lacks to say anything; "" if it has enough."""
    if view.iterations < view.fewest_iterations:
        wanted = f"at least {view.fewest_iterations} are needed; {MORE_STEPS if view.is_trace else LONGER_WINDOW}"
        return f"the workers share {view.iterations} iteration, {wanted}"
    if not view.has_enough:
        few = f"only {view.workers} of {view.context.expected_workers} workers reported"
        share = float(view.fleet.wait_us.min(axis=0).mean()) / max(view.iteration_us, 1e-9)
        who = "it waits" if view.workers == 1 else "they wait"
        waits = f", and {who} {percent(share)} of each iteration in collectives" if share >= 0.2 else ""
        return f"{few}{waits}; start {ALL_OF_THEM}"
    return ""


def _with_rest(view: View, causes: Sequence[Cause], findings: Sequence[Finding], text: str) -> tuple[str, bool]:
    """Add what the causes leave of the growth; False if that is most and they are rather wrong than right."""
    inside, _ = growth_of(view)
    explained, loss = explained_us(view, causes), view.loss
    share = explained / max(view.iteration_us, 1e-9)
    rest_us = loss.rest(explained) if loss is not None else 0.0
    if not rest_us and (share >= HALF * inside or inside - share < LEAST_CHANGE):
        return text, True
    grown_us = _grown_us(view)
    what = "That explains" if len(causes) == 1 else "All causes together explain"
    of = f"; no cause explains the other {milliseconds(rest_us / 1e3)}" if rest_us else f" of the {format_ms(grown_us)}"
    text += f" {what} {format_ms(explained)}{of} that iterations take longer than before."
    if explained < HALF * grown_us and max(one.confidence for one in findings) < HALF:
        return f"{text} It is rather wrong than right; {LONGER_WINDOW}.", False
    return text, True


def _grown_us(view: View) -> float:
    """Return the time by which iterations have become longer, inside windows or as the job itself saw it."""
    loss = view.loss
    return max(growth_of(view)[0] * view.iteration_us, loss.now - loss.before if loss is not None else 0.0)


def _doubted(view: View, cause: Cause) -> str:
    block, title = cause.block, CATALOG[cause.cause].title
    what = f"{block.focus.label} ({title[0].lower()}{title[1:]})" if block.focus.functions else title
    if block.cell == "late" and not block.focus.functions:
        what = "Waiting for a late start into collectives"
    who = name_workers([view.fleet.ranks[at] for at in block.workers]) if block.workers else "changing workers"
    count = f"{view.iterations} iteration{' is' if view.iterations == 1 else 's are'}"
    if block.culprit is not None:
        what = f"{block.culprit.subject}: {title[0].lower()}{title[1:]}"
    return (
        f"{what} seems to cost {percent(cause.gain)} of the iteration ({view.now_text}) on {who}, but "
        f"{count} too few to tell it from noise; {MORE_STEPS}.{describe_turns(view)}"
    )


def _unexplained(view: View, weighed: Sequence[Weighed]) -> str:
    text = f"Iterations take {view.now_and_before}"
    if view.context.window.purpose == "expected":
        expected_us = view.settings.expected_iteration_s * 1e6
        longer = percent(view.iteration_us / expected_us - 1)
        text = f"Iterations take {view.now_text}, {longer} more than expected ({format_ms(expected_us)})"
    lacking, wanted = [], []
    if view.suspects.baseline is None:
        lacking.append("there is no baseline window of the healthy job to compare with")
        wanted.append(LEAVE_ON)
    if not any(pattern.samples_used for pattern in view.fleet.patterns):
        lacking.append("there are no Python stacks")
        wanted.append("let stacks be sampled")
    if view.workers > 1 and not view.suspects.arrivals.executions:
        lacking.append("no collective could be matched between workers")
    why = ", and ".join(lacking) or f"no worker stands out among its peers or against the job's own {view.past_window}"
    what = "; ".join(wanted) or "open another window while it is slow (eroica profile)"
    best = sorted(weighed, key=lambda one: -one.cause.gain)[:2]
    likely = ", ".join(
        f"{one.cause.block.focus.label} ({percent(one.cause.gain)})" for one in best if one.cause.gain > 0
    )
    return (
        f"{text}, but no function accounts for it: {why}.{f' Likeliest: {likely}.' if likely else ''} {_capital(what)}."
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _contradiction(view: View) -> str:
    return (
        f"Collectives of the recorded workers do not pair ({view.suspects.arrivals.contradicted}): events are missing, "
        "or these traces were not recorded together. Nothing else stands out in them "
        f"({view.now_text} per iteration). Record the same steps on all ranks, in one run, and let no "
        "file be cut short."
    )


def _longer(view: View, loss: Lost) -> str:
    busy_I = view.whole.busy_us.max(axis=0)
    long = int((busy_I >= _PAUSE * np.median(busy_I)).sum())
    what = f", {long} of {busy_I.size} at least half as long again as the usual one" if long else ""
    against = "the baseline window" if loss.is_inside else "the job's best"
    again = f"{LONGER_WINDOW}, to see whether and how often that comes again" if loss.is_inside else LEAVE_ON
    rest = f"They lost {milliseconds(loss.rest(0.0) / 1e3)} on average against {against}"
    return f"Iterations take {view.now_and_before}{what}. {rest}, and no function accounts for it. {_capital(again)}."


def _healthy(view: View) -> str:
    if view.is_trace:
        whose = f"the trace of {name_workers(view.fleet.ranks)}" if view.context.missing else "what was recorded"
        return f"No cause found: nothing stands out in {whose} ({view.now_text} per iteration).{describe_turns(view)}"
    stage = find_long_stage(view)
    if stage is not None:
        return f"No cause found: no worker is slower than its peers. {describe_stage(view, stage)}, which is structure."
    text = "No cause found: no worker is slower than its peers, and no function stands out"
    text += f" ({view.now_text} per iteration)."
    if (view.times.current_ms or 0.0) >= _TOLD * (view.times.baseline_ms or np.inf):
        text += f" Iterations take {view.now_and_before}; healthy windows differ by as much."
    if view.context.window.purpose == "slow" and view.stated_baseline_us:
        return f"{text} The slowdown was over when the window opened."
    return text


def _notes(view: View, causes: Sequence[Cause]) -> Iterator[str]:
    context = view.context
    missing = [rank for rank in context.missing if rank not in context.left_out]
    if missing and view.is_trace:
        whom = "it" if len(missing) == 1 else "them"
        yield f"There is no trace of {name_workers(missing)}, and nothing is said of {whom}."
    elif missing:
        yield f"Based on {view.workers} of {context.expected_workers} workers; {name_workers(missing)} did not report."
    yield from (f"{_capital(note)}." for note in view.suspects.notes)
    if view.is_trace and view.iterations == 1:
        yield f"One iteration was recorded: its noise is unknown, and confidence lower; {MORE_STEPS}."
    elif view.fewest_iterations <= view.iterations < FEW_STEPS:
        how = "recorded" if view.is_trace else "captured"
        yield f"Only {view.iterations} iterations were {how}: small excesses cannot be told from noise."
    if (
        not view.is_trace
        and view.suspects.baseline is None
        and view.context.window.purpose not in ("baseline", "early")
    ):
        yield "No baseline window: changes that hit all workers alike can only be judged against expectation."
    yield from setup_notes(view, {cause.cause for cause in causes})
    yield from _worker_notes(view)


def _worker_notes(view: View) -> Iterator[str]:
    """Yield each worker's own notes, equal ones together."""
    owners: dict[str, list[int]] = {}
    for pattern in view.fleet.patterns:
        for note in dict.fromkeys(pattern.notes):
            owners.setdefault(note, []).append(pattern.worker.global_rank)
    for note, ranks in owners.items():
        yield f"{note} ({'all workers' if len(ranks) == view.workers else name_workers(ranks)})"
