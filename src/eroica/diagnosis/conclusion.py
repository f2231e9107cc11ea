"""The word of the verdict, its sentence and its notes: slow, healthy, or undetermined and what is missing.

If all wait for workers that did not report, nobody who did is accused of that time: the verdict is undetermined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.frames import HALF, LARGE_PART
from eroica.diagnosis.labels import PLANNED
from eroica.diagnosis.recordings import FEW_STEPS, describe_turns
from eroica.diagnosis.selection import LEAST_CHANGE, LEAST_DOUBTED, Cause, Weighed, explained_us, growth_of
from eroica.diagnosis.setup import warn_of_settings
from eroica.diagnosis.stages import find_long_stage
from eroica.diagnosis.view import View
from eroica.diagnosis.wording import summarize_cause
from eroica.diagnosis.words import format_ms, name_workers, verb
from eroica.model.lost import Lost
from eroica.model.shares import percent
from eroica.model.verdict import Finding, VerdictWord
from eroica.model.words import milliseconds

LONGER_WINDOW = "take a longer window"
MORE_STEPS = "record more steps (schedule(active=...))"
LEAVE_ON = "leave the baseline window on, or compare with a healthy run (eroica diff)"


def conclude(
    view: View, causes: Sequence[Cause], weighed: Sequence[Weighed], findings: Sequence[Finding]
) -> tuple[VerdictWord, str, tuple[str, ...]]:
    """Choose the word, the sentence and the coverage notes.

    Args:
        view: The window.
        causes: Its causes.
        weighed: What was considered besides.
        findings: The causes as findings, symptoms after them.
    """
    notes = tuple(_notes(view, causes))
    missing = too_little(view)
    if missing:
        return "undetermined", f"Too little to tell: {missing}.", notes
    absent_us = _absent_us(view)
    if causes:
        text = summarize_cause(view, causes[0])
        if _hides(view, absent_us, causes):
            return "undetermined", _describe_absence(view, absent_us), (*notes, f"Besides: {text}")
        if absent_us and not view.is_trace:
            whom = name_workers(view.context.missing)
            notes = (*notes, f"{_wait(view, absent_us)}, which may be for {whom}: not reported.")
        text, is_slow = _with_rest(view, causes, findings, text)
        word: VerdictWord = "slow" if is_slow else "undetermined"
        if all(one.cause == PLANNED for one in causes):  # no fault, if it is all that has grown
            # the rest of a busy machine's growth is noise
            word = "healthy" if explained_us(view, causes) >= LARGE_PART * _grown_us(view) else "undetermined"
        return word, text, notes
    if view.suspects.arrivals.contradicted:
        text = f"Collectives of the recorded workers do not pair ({view.suspects.arrivals.contradicted}): events are "
        text += "missing, or these traces were not recorded together. Nothing else stands out in them "
        again = "Record the same steps on all ranks, in one run, and let no file be cut short."
        return "undetermined", f"{text}({view.now_text} per iteration). {again}", notes
    if absent_us:
        return "undetermined", _describe_absence(view, absent_us), notes
    doubted = [one.cause for one in weighed if one.is_doubted and one.cause.gain >= LEAST_DOUBTED]
    if doubted:
        return "undetermined", _doubted(view, doubted[0]), notes
    if view.is_slow:
        return "undetermined", _unexplained(view, weighed), notes
    if view.is_trace and all(pattern.found_by == "span" for pattern in view.fleet.patterns):
        text = f"No iterations were found in what was recorded ({view.now_text}), so nothing tells whether it is "
        return "undetermined", f"{text}training at all; record whole steps, and mark them with step().", notes
    if view.loss is not None and view.loss.is_sure:
        return "undetermined", _longer(view, view.loss), notes
    return "healthy", _healthy(view), notes


def too_little(view: View) -> str:
    """Return what a window lacks to say anything; "" if it has enough."""
    if view.iterations < view.fewest_iterations:
        wanted = f"at least {view.fewest_iterations} are needed; {MORE_STEPS if view.is_trace else LONGER_WINDOW}"
        return f"the workers share {view.iterations} iteration, {wanted}"
    if not view.is_trace and view.workers < HALF * view.context.expected_workers:
        few = f"only {view.workers} of {view.context.expected_workers} workers reported"
        share = _common_us(view) / max(view.iteration_us, 1e-9)
        who = "it waits" if view.workers == 1 else "they wait"
        waits = f", and {who} {percent(share)} of each iteration in collectives" if share >= 0.2 else ""
        return f"{few}{waits}; start {ALL_OF_THEM}"
    return ""


def _with_rest(view: View, causes: Sequence[Cause], findings: Sequence[Finding], text: str) -> tuple[str, bool]:
    """Add the growth that no cause explains; False if it is most of it and all causes are improbable."""
    explained_by_all = explained_us(view, causes)
    rest_us = view.loss.rest(explained_by_all) if view.loss is not None else 0.0
    if not rest_us:
        return text, True
    what = "That explains" if len(causes) == 1 else "All causes together explain"
    rest = f"no cause explains the other {milliseconds(rest_us / 1e3)} that iterations take longer than before"
    text += f" {what} {format_ms(explained_by_all)}; {rest}."
    if explained_by_all < HALF * _grown_us(view) and max(one.confidence for one in findings) < HALF:
        return f"{text} It is rather wrong than right; {LONGER_WINDOW}.", False
    return text, True


def _grown_us(view: View) -> float:
    """Return the time by which iterations have become longer, inside windows or as the job itself saw it."""
    loss = view.loss
    return max(growth_of(view)[0] * view.iteration_us, loss.now - loss.before if loss is not None else 0.0)


def _doubted(view: View, cause: Cause) -> str:
    block = cause.block
    what = f"{block.focus.label} ({cause.cause})" if block.focus.functions else cause.cause
    if block.culprit is not None:
        what = f"{block.culprit.subject}: {cause.cause}"
    who = name_workers([view.fleet.ranks[at] for at in block.workers]) if block.workers else "changing workers"
    count = f"{view.iterations} iteration{' is' if view.iterations == 1 else 's are'}"
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
    why = f"no worker stands out among its peers or against the job's own {view.past_window}"
    what = "open another window while it is slow (eroica profile)"
    if view.suspects.baseline is None:
        why, what = "there is no baseline window of the healthy job to compare with", LEAVE_ON
    if not any(pattern.samples_used for pattern in view.fleet.patterns):
        why += ", and there are no Python stacks"
    best = sorted((one.cause for one in weighed if one.cause.gain > 0), key=lambda one: -one.gain)[:2]
    likely = ", ".join(f"{one.block.focus.label} ({percent(one.gain)})" for one in best)
    why += f". Likeliest: {likely}" if likely else ""
    return f"{text}, but no function accounts for it: {why}. {_capital(what)}."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _longer(view: View, loss: Lost) -> str:
    busy_I = view.whole.busy_us.max(axis=0)
    long = int((busy_I >= 1.5 * np.median(busy_I)).sum())
    what = f", {long} of {busy_I.size} at least half as long again as the usual one" if long else ""
    against = "the baseline window" if loss.is_inside else "the job's best"
    again = f"{LONGER_WINDOW}, to see whether and how often that comes again" if loss.is_inside else LEAVE_ON
    rest = f"They lost {milliseconds(loss.rest(0.0) / 1e3)} on average against {against}"
    return f"Iterations take {view.now_and_before}{what}. {rest}, and no function accounts for it. {_capital(again)}."


def _healthy(view: View) -> str:
    if view.is_trace:
        whose = f"the trace of {name_workers(view.fleet.ranks)}" if view.context.missing else "what was recorded"
        return f"No cause found: nothing stands out in {whose} ({view.now_text} per iteration).{describe_turns(view)}"
    if (stage := find_long_stage(view)) is not None and stage.culprit is not None:
        return f"No cause found: no worker is slower than its peers. {stage.culprit.subject}, which is structure."
    now = f"({view.now_text} per iteration)"
    text = f"No cause found: no worker is slower than its peers, and no function stands out {now}."
    if (view.times.current_ms or 0.0) >= 1.1 * (view.times.baseline_ms or np.inf):  # told, though it may be noise
        text += f" Iterations take {view.now_and_before}; healthy windows differ by as much."
    if view.context.window.purpose == "slow" and view.stated_baseline_us:
        return f"{text} The slowdown was over when the window opened."
    return text


def _notes(view: View, causes: Sequence[Cause]) -> Iterator[str]:
    context = view.context
    missing = [rank for rank in context.missing if rank not in context.left_out]
    if missing and view.is_trace:
        yield f"There is no trace of {name_workers(missing)}, and nothing is said of {verb(missing, 'it', 'them')}."
    elif missing:
        yield f"Based on {view.workers} of {context.expected_workers} workers; {name_workers(missing)} did not report."
    yield from (f"{_capital(note)}." for note in view.suspects.notes)
    if view.is_trace and view.iterations == 1:
        yield f"One iteration was recorded: its noise is unknown, and confidence lower; {MORE_STEPS}."
    elif view.fewest_iterations <= view.iterations < FEW_STEPS:
        how = "recorded" if view.is_trace else "captured"
        yield f"Only {view.iterations} iterations were {how}: small excesses cannot be told from noise."
    is_first = view.context.window.purpose in ("baseline", "early")
    if view.suspects.baseline is None and not (view.is_trace or is_first):
        yield "No baseline window: changes that hit all workers alike can only be judged against expectation."
    if view.is_slow and not causes and not view.is_trace:
        yield from warn_of_settings(view, range(view.workers))
    owners: dict[str, list[int]] = {}
    for pattern in view.fleet.patterns:
        for note in dict.fromkeys(pattern.notes):
            owners.setdefault(note, []).append(pattern.worker.global_rank)
    for note, ranks in owners.items():
        yield f"{note} ({'all workers' if len(ranks) == view.workers else name_workers(ranks)})"


# --- workers that did not report: nobody else is accused of what may be theirs ---


#: What would tell.
ALL_OF_THEM = (
    "all of them with Eroica, and let their hosts reach the collector; if some step no optimizer, call eroica.step() "
    "once per iteration on all of them"
)


def _common_us(view: View) -> float:
    """Return the time per iteration that even the worker that waits least spends in collectives."""
    return float(view.fleet.wait_us.min(axis=0).mean())


def _absent_us(view: View) -> float:
    """Return the time per iteration that all wait for nobody who reported; 0 if that is too little, or all reported.

    Of a running job by how much longer than in the baseline window; without one all of it, from 30 % of the iteration
    on. It may be the transfer as well: nothing tells which.
    """
    past = view.suspects.baseline
    if not view.context.missing:
        return 0.0
    if view.is_trace:
        waited_us, least = float(_for_nobody_us(view).max()), view.settings.min_gain
    else:
        waited_us, least = _common_us(view), 0.3
        those = [] if past is None else [at for at, rank in enumerate(past.ranks) if rank in view.fleet.known_ranks]
        if past is not None and those:  # of fewer workers the least wait is longer
            waited_us -= float(past.wait_us[those].min(axis=0).mean())
            least = view.settings.min_gain if view.is_slow or view.fleet.has_accelerator else LEAST_CHANGE
    return waited_us if waited_us >= least * view.iteration_us else 0.0


def _for_nobody_us(view: View) -> NDArray[np.float64]:
    """Return each worker's time in collectives in which no recorded worker is waited for. float64 [W]."""
    return np.asarray(view.wait_us - view.suspects.arrivals.waited_us.mean(axis=1))


def _hides(view: View, absent_us: float, causes: Sequence[Cause]) -> bool:
    """Return True if waiting for workers that did not report has grown by more than all causes together cost.

    A cause of kind "collective" is that wait itself. Without a baseline window the wait stands beside causes as a note.
    """
    if view.is_trace or view.suspects.baseline is None or any(one.block.kind == "collective" for one in causes):
        return False
    return absent_us > sum(cause.gain for cause in causes) * view.iteration_us


def _describe_absence(view: View, absent_us: float) -> str:
    """Say that all may wait for workers that did not report, and what would settle it."""
    ranks = name_workers(view.context.missing)
    if view.is_trace:
        worst = view.fleet.ranks[int(_for_nobody_us(view).argmax())]
        is_there = set(view.context.missing) <= set(view.context.left_out)
        why = "left out of the comparison" if is_there else "of which there is no trace"
        spent = f"Worker {worst} spends {percent(absent_us / view.iteration_us)} of the iteration in collectives"
        return (
            f"{spent}, and for none of the recorded workers: that may be the transfer, or {ranks}, {why}. Traces of "
            "all ranks would tell."
        )
    late = "it is" if len(view.context.missing) == 1 else "they are"
    return (
        f"{_wait(view, absent_us)}; {ranks} did not report, and whether {late} late or the transfer is slow cannot be "
        f"told. Start {ALL_OF_THEM}."
    )


def _wait(view: View, absent_us: float) -> str:
    longer = f" longer than in the {view.past_window}" if view.suspects.baseline is not None else ""
    each = f"{format_ms(absent_us)} of each {view.now_text} iteration"
    return f"All workers that reported wait in collectives, {each}{longer}"
