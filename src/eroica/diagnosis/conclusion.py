"""The word of the verdict, its sentence and its notes: slow, healthy, or undetermined and what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.arbiter import Cause
from eroica.diagnosis.gains import HALF, find_remainder
from eroica.diagnosis.growth import describe_growth, describe_more_to_do, has_grown, has_more_to_do
from eroica.diagnosis.holders import find_holders
from eroica.diagnosis.lateness_by_iteration import BEYOND_TURN
from eroica.diagnosis.missing_workers import (
    ALL_OF_THEM,
    Absence,
    common_share,
    describe_absence,
    find_absence,
    hides,
    note_absence,
)
from eroica.diagnosis.neighbors import unexplained_neighbors
from eroica.diagnosis.new_code import new_function
from eroica.diagnosis.seldom import describe_seldom
from eroica.diagnosis.setup import setup_notes
from eroica.diagnosis.stages import describe_long_stage, has_lost_peers
from eroica.diagnosis.uneven import find_uneven_work
from eroica.diagnosis.view import View
from eroica.diagnosis.wording import summarize_cause
from eroica.diagnosis.words import format_ms, name_workers
from eroica.model.causes import CATALOG
from eroica.model.lost import Lost
from eroica.model.shares import percent
from eroica.model.verdict import Finding, VerdictWord

#: Advice where an iteration or a comparison is lacking.
LONGER_WINDOW = "take a longer window"
MORE_STEPS = "record more steps (schedule(active=...))"
LEAVE_ON = "leave the baseline window on, or compare with a healthy run (eroica diff)"
#: Where most did not report, this much is worth a word.
_SOME_WAIT = 0.2
#: An iteration so many times as long as the usual one had a pause.
_PAUSE = 1.5
#: Workers that run the same operators so many times as fast as most, as often, and wait this share of the iteration.
_FAST = 1.2
_OPTIMIZER_TOO = 0.9
_SAME_WORK = 0.1
_WAITS_MUCH = 0.1
#: Waiting for the slowest of each iteration is told from this share on.
_IN_TURN = 0.1
#: Iterations that are so many times as long as before are told, though that may be noise.
_TOLD = 1.1
#: Code of all workers that is new is told from this share of the iteration on, with all that it calls.
_NEW = 0.3
#: Below so many iterations the reader is told.
_FEW = 5


def conclude(
    view: View, causes: Sequence[Cause], findings: Sequence[Finding], doubted: Cause | None = None
) -> tuple[VerdictWord, str, tuple[str, ...]]:
    """Choose word, sentence and coverage notes of a verdict.

    Args:
        view: The window.
        causes: Its causes.
        findings: The same as findings, symptoms after them.
        doubted: Candidate that may be a cause where there is none, or that may cost more than all causes.
    """
    notes = tuple(_notes(view, causes))
    missing = _too_little(view)
    if missing and not (causes and _has_no_measure(view)):
        return "undetermined", f"Too little to tell: {missing}.", notes
    absence = find_absence(view)
    if causes:
        besides = (f"Besides: {_doubted(view, doubted)}",) if doubted is not None else ()
        return _with_causes(view, causes, findings, absence, (*notes, *besides))
    if view.suspects.arrivals.contradicted:
        return "undetermined", _contradiction(view), notes
    if absence is not None and absence.is_most:
        return "undetermined", describe_absence(view, absence), notes
    notes = (*notes, *_beside(view, absence))
    if doubted is not None:
        return "undetermined", _doubted(view, doubted), notes
    if view.context.window.purpose == "seldom":
        return "undetermined", describe_seldom(view), notes
    if has_grown(view):
        return "undetermined", describe_growth(view), notes
    if view.is_slow and has_more_to_do(view):
        return "undetermined", describe_more_to_do(view), notes
    if view.is_slow:
        return "undetermined", _unexplained(view), notes
    if view.is_trace and all(pattern.found_by == "span" for pattern in view.fleet.patterns):
        return "undetermined", _no_iterations(view), notes
    if view.loss is not None and view.loss.is_sure:
        return "undetermined", _longer(view, view.loss), notes
    if has_lost_peers(view):
        return "undetermined", _long_without_peers(view), notes
    faster = _faster_few(view)
    return ("undetermined", _most_are_slow(view, faster), notes) if faster.size else ("healthy", _healthy(view), notes)


def _with_causes(
    view: View, causes: Sequence[Cause], findings: Sequence[Finding], absence: Absence | None, notes: tuple[str, ...]
) -> tuple[VerdictWord, str, tuple[str, ...]]:
    """Choose word, sentence and notes where there are causes: slow, unless something larger may be behind it."""
    text = summarize_cause(view, causes[0], findings[0].resource)
    if all(cause.candidate.may_be_recording or cause.candidate.is_remark for cause in causes):
        return "undetermined", f"{text} One iteration does not tell which of the two: {MORE_STEPS}.", notes
    if absence is not None and hides(view, absence, causes):
        return "undetermined", describe_absence(view, absence), (*notes, f"Besides: {text}")
    rest = find_remainder(view, causes)
    if rest is not None:
        part, grown = format_ms(rest.explained_us), format_ms(rest.grown_us)
        what = "That explains" if len(causes) == 1 else "All causes together explain"
        text += f" {what} {part} of the {grown} that iterations take longer than before, and nothing the rest."
        if max(finding.confidence for finding in findings) < HALF:
            return "undetermined", f"{text} It is rather wrong than right; {LONGER_WINDOW}.", notes
    return "slow", text, (*notes, *_beside(view, absence))


def _beside(view: View, absence: Absence | None) -> Iterator[str]:
    """Note the wait of all for workers that did not report, where the verdict is not about it."""
    if absence is not None and not view.is_trace:
        yield note_absence(view, absence)


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
        few = f"only {view.workers} of {view.context.expected_workers} workers reported"
        share, who = common_share(view), "it waits" if view.workers == 1 else "they wait"
        waits = f", and {who} {percent(share)} of each iteration in collectives" if share >= _SOME_WAIT else ""
        return f"{few}{waits}; start {ALL_OF_THEM}"
    if _has_no_measure(view):
        return (
            f"every one of {view.workers} workers has a role of its own, and there is no baseline window of a healthy "
            "job; let one be taken, or state which workers do the same work (setting roles)"
        )
    return ""


def _has_no_measure(view: View) -> bool:
    """True if no worker of a running job can be compared with anything, neither a peer nor its own past."""
    return not view.is_trace and bool(view.alone.all()) and view.suspects.baseline is None


def _doubted(view: View, doubted: Cause) -> str:
    found = doubted.candidate
    title = CATALOG[found.cause].title
    what = f"{found.focus.label} ({title[0].lower()}{title[1:]})" if found.focus.functions else title
    if found.is_latecomer and not found.focus.functions:
        what = "Waiting for a late start into collectives"
    who = name_workers([view.fleet.ranks[worker] for worker in found.workers]) if found.workers else "changing workers"
    if found.cause == "host-bound" and found.focus.place and not found.focus.stack:
        what = f"{title} in {found.focus.name}" if found.focus.functions else title
        what = f"{what} inside {found.focus.place}"
    count = f"{view.iterations} iteration{' is' if view.iterations == 1 else 's are'}"
    return (
        f"{what} seems to cost {percent(doubted.gain)} of the iteration ({format_ms(view.iteration_us)}) on {who}, but "
        f"{count} too few to tell it from noise; {MORE_STEPS if view.is_trace else LONGER_WINDOW}."
        f"{_in_turn(view) if view.is_trace else ''}"
    )


def _unexplained(view: View) -> str:
    now, before = format_ms(view.iteration_us), view.stated_baseline_us or view.baseline_us
    text = f"Iterations take {now}" + (f" instead of {format_ms(before)}" if before else "")
    if view.context.window.purpose == "expected":
        expected_us = view.settings.expected_iteration_s * 1e6
        longer = percent(view.iteration_us / expected_us - 1)
        text = f"Iterations take {now}, {longer} more than expected ({format_ms(expected_us)})"
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
    new = new_function(view, _NEW * view.iteration_us)
    if new:
        runs = f"All workers run {new} now, which hardly ran in the {view.past_window}."
        return f"{text}, but no single function accounts for it. {runs} {what[0].upper()}{what[1:]}."
    held = ", ".join(one.function for one in find_holders(view))
    long = f" Long enough to be it: {held}." if held else ""
    return f"{text}, but no function accounts for it: {why}.{long} {what[0].upper()}{what[1:]}."


def _contradiction(view: View) -> str:
    return (
        f"Collectives of the recorded workers do not pair ({view.suspects.arrivals.contradicted}): events are missing, "
        "or these traces were not recorded together. Nothing else stands out in them "
        f"({format_ms(view.iteration_us)} per iteration). Record the same steps on all ranks, in one run, and let no "
        "file be cut short."
    )


def _faster_few(view: View) -> NDArray[np.intp]:
    """Find the few that compute the same operators clearly faster than most of their role, and wait for the others.

    Then most are slow: older hardware, a cap on their power. Where workers share cores, one may have more of them.
    """
    if view.is_trace or view.iteration_us <= 0 or view.is_crowded.any() or view.context.missing:
        return np.zeros(0, dtype=np.intp)  # they may wait for missing workers
    waits_W = view.suspects.arrivals.waited_us.mean(axis=1) / view.iteration_us
    faster_W = np.nan_to_num(view.speed.factor, nan=1.0) <= 1 / _FAST
    faster_W &= np.abs(np.nan_to_num(view.speed.count_ratio, nan=1.0) - 1) <= _SAME_WORK
    with_less_data_W = np.nan_to_num(view.factors_by_data[1], nan=1.0) > _OPTIMIZER_TOO
    faster_W &= np.asarray(waits_W >= _WAITS_MUCH) & ~with_less_data_W
    roles_W = view.fleet.roles
    share_W = (np.bincount(roles_W, weights=faster_W) / np.maximum(np.bincount(roles_W), 1))[roles_W]
    return np.flatnonzero(faster_W & (share_W < 1 / 2))


def _most_are_slow(view: View, faster: NDArray[np.intp]) -> str:
    who = name_workers([view.fleet.ranks[worker] for worker in faster], capital=True)
    waits_us = float(view.suspects.arrivals.waited_us.mean(axis=1)[faster].mean())
    times = 1 / float(np.nanmedian(view.speed.factor[faster]))
    one = faster.size == 1
    return (
        f"Most workers may be slow: {who} {'takes' if one else 'take'} {times:.1f} times less for the same operators "
        f"than the others, and {'waits' if one else 'wait'} for them {format_ms(waits_us)} of each "
        f"{format_ms(view.iteration_us)} iteration. Compare the hardware, clocks and power limits of their hosts; if "
        "they are meant to differ, give the faster ones more to do."
    )


def _longer(view: View, loss: Lost) -> str:
    busy_I = view.whole.busy_us.max(axis=0)
    long = int((busy_I >= _PAUSE * np.median(busy_I)).sum())
    what = f", {long} of {busy_I.size} at least half as long again as the usual one" if long else ""
    when = "in the baseline window" if loss.is_inside else "at the job's best"
    again = f"{LONGER_WINDOW}, to see whether and how often that comes again" if loss.is_inside else LEAVE_ON
    return (
        f"Iterations take {format_ms(loss.now)} on average{what}, {when} {format_ms(loss.before)}, and no function "
        f"accounts for it. {again[0].upper()}{again[1:]}."
    )


def _long_without_peers(view: View) -> str:
    ranks = name_workers(view.context.missing, capital=True)
    return f"{describe_long_stage(view)[0]} {ranks} did not report; start {ALL_OF_THEM}."


def _in_turn(view: View) -> str:
    """Say how long all wait for the slowest of each iteration, where that is another worker each time; else "".

    Stages of a pipeline wait for each other however even their work is.
    """
    arrivals, is_pipeline = view.suspects.arrivals, view.is_pipeline
    waited_us, most_us = float(arrivals.waited_us.sum()), float(arrivals.blamed_us.sum(axis=1).max(initial=0.0))
    each_us = float(view.wait_us.mean()) if is_pipeline else waited_us / max(view.iterations * (view.workers - 1), 1)
    is_of_one = most_us > (1 / view.workers + BEYOND_TURN) * waited_us and not is_pipeline
    if each_us < _IN_TURN * view.iteration_us or is_of_one:
        return ""
    share = f"{percent(each_us / view.iteration_us)} of each iteration ({format_ms(each_us)})"
    if is_pipeline:
        why = "they wait while it fills and drains, and for each other. More microbatches make that less"
        return f" But stages of the pipeline spend {share} in communication: {why}."
    who = "another worker each time: nobody is to blame, and evener work would save most of it"
    if view.iterations == 1:
        who = "and one iteration does not tell whether that is always the same worker"
    return f" But {share} is waiting for whoever is slowest in it, {who}."


def _healthy(view: View) -> str:
    now = format_ms(view.iteration_us)
    if view.is_trace:
        whose = f"the trace of {name_workers(view.fleet.ranks)}" if view.context.missing else "what was recorded"
        return f"No cause found: nothing stands out in {whose} ({now} per iteration).{_in_turn(view)}"
    structure, _ = describe_long_stage(view)
    if structure:
        return f"No cause found: no worker is slower than its peers. {structure}{_unjudged(view)}"
    text = f"No cause found: no worker is slower than its peers, and no function stands out ({now} per iteration)."
    text += _unjudged(view)
    if view.loss is not None and view.iteration_us >= _TOLD * view.loss.before:
        text += f" Before, iterations took {format_ms(view.loss.before)}; healthy windows differ by as much."
    if view.context.window.purpose == "slow" and view.stated_baseline_us:
        return f"{text} The slowdown was over when the window opened."
    return text


def _unjudged(view: View) -> str:
    """Name the workers of which nothing can be said, without peers and baseline window; "" without any."""
    if view.suspects.baseline is not None or not view.alone.any():
        return ""
    ranks = [view.fleet.ranks[worker] for worker in np.flatnonzero(view.alone)]
    return f" Nothing is said of {name_workers(ranks)}: no peers, and no baseline window."


def _alone(view: View, causes: Sequence[Cause]) -> Iterator[str]:
    """Note the workers that cannot be compared, and the stage that is long by structure."""
    if view.is_trace:
        return
    if view.alone.any():
        ranks = [view.fleet.ranks[worker] for worker in np.flatnonzero(view.alone)]
        are, their = ("is", "its") if len(ranks) == 1 else ("are", "their")
        judged = "against the baseline window only" if view.suspects.baseline is not None else "against nothing"
        whom = name_workers(ranks, capital=True)
        yield f"{whom} {are} alone in {their} role (pipeline stage, process groups) and so judged {judged}."
    accused = {worker for cause in causes for worker in cause.candidate.workers if cause.candidate.scope == "some"}
    known = {cause.candidate.cause for cause in causes}
    _, structure = describe_long_stage(view, accused) if "stage-imbalance" not in known else ("", "")
    if structure:
        yield structure


def _notes(view: View, causes: Sequence[Cause]) -> Iterator[str]:
    yield from _missing(view)
    yield from _alone(view, causes)
    yield from view.suspects.notes
    yield from view.suspects.arrivals.notes
    yield from _few_iterations(view)
    if view.is_trace:
        yield from (remark.sentence for remark in find_uneven_work(view) if not causes)
    elif view.suspects.baseline is None and view.context.window.purpose not in ("baseline", "early"):
        yield "No baseline window: changes that hit all workers alike can only be judged against expectation."
    yield from setup_notes(view, {cause.candidate.cause for cause in causes})
    if view.is_slow and not causes:
        yield from unexplained_neighbors(view)
    yield from _worker_notes(view)


def _missing(view: View) -> Iterator[str]:
    context = view.context
    missing = [rank for rank in context.missing if rank not in context.left_out]
    if missing:
        absent = name_workers(missing)
        if view.is_trace:
            whom = "it" if len(missing) == 1 else "them"
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
    """List each worker's own notes, equal ones together."""
    owners: dict[str, list[int]] = {}
    for pattern in view.fleet.patterns:
        for note in dict.fromkeys(pattern.notes):
            owners.setdefault(note, []).append(pattern.worker.global_rank)
    for note, ranks in owners.items():
        whom = "all workers" if len(ranks) == view.workers else name_workers(ranks)
        yield f"{note} ({whom})"
