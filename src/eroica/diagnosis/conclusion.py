"""The word of the verdict, its sentence and its notes: slow, healthy, or undetermined and what is missing.

If all wait for workers that did not report, nobody who did is accused of that time: the verdict is undetermined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.frames import HALF, LARGE_PART, MOST
from eroica.diagnosis.labels import PLANNED
from eroica.diagnosis.recordings import FEW_STEPS, describe_turns
from eroica.diagnosis.selection import LEAST_CHANGE, LEAST_DOUBTED, Cause, Weighed, explained_us, growth_of
from eroica.diagnosis.setup import setup_notes
from eroica.diagnosis.stages import describe_stage, find_long_stage
from eroica.diagnosis.view import View
from eroica.diagnosis.wording import summarize_cause
from eroica.diagnosis.words import format_ms, name_workers
from eroica.localize.excess import SURE, mean_error
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
    absence = _find_absence(view)
    if causes:
        text = summarize_cause(view, causes[0])
        if absence is not None and _hides(view, absence, causes):
            return "undetermined", _describe_absence(view, absence), (*notes, f"Besides: {text}")
        text, is_slow = _with_rest(view, causes, findings, text)
        beside = (_note_absence(view, absence),) if absence is not None and not view.is_trace else ()
        word: VerdictWord = "slow" if is_slow else "undetermined"
        if all(one.cause == PLANNED for one in causes):  # no fault, if it is all that has grown
            # the rest of a busy machine's growth is noise
            word = "healthy" if explained_us(view, causes) >= LARGE_PART * _grown_us(view) else "undetermined"
        return word, text, (*notes, *beside)
    if view.suspects.arrivals.contradicted:
        return "undetermined", _contradiction(view), notes
    if absence is not None and absence.is_most:
        return "undetermined", _describe_absence(view, absence), notes
    doubted = [one for one in weighed if one.is_doubted and one.cause.gain >= LEAST_DOUBTED]
    if doubted:
        return "undetermined", _doubted(view, doubted[0].cause), notes
    if view.is_slow:
        return "undetermined", _unexplained(view, weighed), notes
    if view.is_trace and all(pattern.found_by == "span" for pattern in view.fleet.patterns):
        text = (
            f"No iterations were found in what was recorded ({view.now_text}), so nothing tells whether it is training "
        )
        return "undetermined", f"{text}at all; record whole steps, and mark them with step().", notes
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
        share = _common_share(view)
        who = "it waits" if view.workers == 1 else "they wait"
        waits = f", and {who} {percent(share)} of each iteration in collectives" if share >= 0.2 else ""
        return f"{few}{waits}; start {ALL_OF_THEM}"
    return ""


def _with_rest(view: View, causes: Sequence[Cause], findings: Sequence[Finding], text: str) -> tuple[str, bool]:
    """Add the growth that no cause explains; False if it is most of it and all causes are improbable."""
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
    block = cause.block
    what = f"{block.focus.label} ({cause.cause})" if block.focus.functions else cause.cause
    if block.cell == "late" and not block.focus.functions:
        what = "Waiting for a late start into collectives"
    who = name_workers([view.fleet.ranks[at] for at in block.workers]) if block.workers else "changing workers"
    count = f"{view.iterations} iteration{' is' if view.iterations == 1 else 's are'}"
    if block.culprit is not None:
        what = f"{block.culprit.subject}: {cause.cause}"
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
    stage = find_long_stage(view)
    if stage is not None:
        return f"No cause found: no worker is slower than its peers. {describe_stage(view, stage)}, which is structure."
    text = "No cause found: no worker is slower than its peers, and no function stands out"
    text += f" ({view.now_text} per iteration)."
    if (view.times.current_ms or 0.0) >= 1.1 * (view.times.baseline_ms or np.inf):  # told, though it may be noise
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


# --- workers that did not report: nobody else is accused of what may be theirs ---


#: What would tell.
ALL_OF_THEM = (
    "all of them with Eroica, and let their hosts reach the collector; if some step no optimizer, call eroica.step() "
    "once per iteration on all of them"
)


class _Absence(msgspec.Struct, frozen=True, kw_only=True):
    """Waiting of all workers that reported, for workers that did not or for the transfer: nothing tells which.

    Attributes:
        us: Waiting per iteration; or its excess over the baseline window, see `is_longer`.
        is_longer: `us` is the excess over the baseline window.
        is_most: The waiting is enough to be the reason by itself.
    """

    us: float
    is_longer: bool
    is_most: bool


def _common_share(view: View) -> float:
    """Return the share of the iteration that even the worker that waits least spends in collectives."""
    return float(view.fleet.wait_us.min(axis=0).mean()) / max(view.iteration_us, 1e-9)


def _find_absence(view: View) -> _Absence | None:
    """Find the time that all wait in collectives for a worker that did not report; None where that is too little."""
    if not view.context.missing:
        return None
    if view.is_trace:
        worst = float(_for_nobody(view).max())
        is_most = worst >= view.settings.min_gain
        return _Absence(us=worst * view.iteration_us, is_longer=False, is_most=True) if is_most else None
    now_1I, past = view.fleet.wait_us.min(axis=0)[None], view.suspects.baseline
    those = [] if past is None else [at for at, rank in enumerate(past.ranks) if rank in view.fleet.known_ranks]
    if past is not None and those:
        then_1I = past.wait_us[those].min(axis=0)[None]  # of fewer workers the least wait is longer
        longer_us = float(now_1I.mean() - then_1I.mean())
        error_us = float(np.hypot(mean_error(now_1I)[0], mean_error(then_1I)[0]))
        least = view.settings.min_gain if view.is_slow or view.fleet.has_accelerator else LEAST_CHANGE
        if longer_us >= max(least * view.iteration_us, SURE * error_us):
            is_most = longer_us >= MOST * (view.iteration_us - past.mean_iteration_us) > 0
            return _Absence(us=longer_us, is_longer=True, is_most=is_most)
    share = _common_share(view)
    if share < 0.3:  # nor may one be late that did not report
        return None
    # as long as when all had reported it is what they always wait
    is_known = past is not None and bool(those) and set(view.context.missing) <= set(past.ranks)
    return _Absence(us=share * view.iteration_us, is_longer=False, is_most=not is_known)


def _hides(view: View, absence: _Absence, causes: Sequence[Cause]) -> bool:
    """Return True if waiting for workers that did not report may cost more than all causes together.

    Where that wait is no longer than in the baseline window, or there is none, it stands beside causes as a note. A
    cause of kind "collective" is that wait itself.
    """
    if not absence.is_most:
        return False
    if any(cause.block.kind == "collective" for cause in causes):
        return False
    gained_us = sum(cause.gain for cause in causes) * view.iteration_us
    return not causes or (absence.is_longer and absence.us > gained_us)


def _describe_absence(view: View, absence: _Absence) -> str:
    """Say that all may wait for workers that did not report, and what would settle it."""
    ranks = name_workers(view.context.missing)
    if view.is_trace:
        worst = int(_for_nobody(view).argmax())
        who, share = name_workers([view.fleet.ranks[worst]], capital=True), f"{percent(_for_nobody(view)[worst])}"
        is_there = set(view.context.missing) <= set(view.context.left_out)
        why = "left out of the comparison" if is_there else "of which there is no trace"
        return (
            f"{who} spends {share} of the iteration in collectives, and for none of the recorded workers: that may be "
            f"the transfer, or {ranks}, {why}. Traces of all ranks would tell."
        )
    late = "it is" if len(view.context.missing) == 1 else "they are"
    return (
        f"{_wait(view, absence)}; {ranks} did not report, and whether {late} late or the transfer is slow cannot be "
        f"told. Start {ALL_OF_THEM}."
    )


def _note_absence(view: View, absence: _Absence) -> str:
    """Note that wait beside causes that cost more, or as much as can be told."""
    return f"{_wait(view, absence)}, which may be for {name_workers(view.context.missing)}: not reported."


def _wait(view: View, absence: _Absence) -> str:
    longer = f" longer than {view.back_then}" if absence.is_longer else ""
    each = f"{format_ms(absence.us)} of each {view.now_text} iteration"
    return f"All workers that reported wait in collectives, {each}{longer}"


def _for_nobody(view: View) -> NDArray[np.float64]:
    """Return the share of the iteration in collectives in which no recorded worker is waited for. float64 [W]."""
    waited_W = view.wait_us - view.suspects.arrivals.waited_us.mean(axis=1)
    return np.asarray(waited_W / max(view.iteration_us, 1e-9))
