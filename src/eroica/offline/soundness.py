"""What a verdict may claim of recordings that do not hold everything: "healthy" is said only of those who are whole."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from eroica.model.shares import percent
from eroica.model.trace import Held, TraceSummary
from eroica.model.verdict import Verdict
from eroica.model.words import clean, seconds, worker_list
from eroica.offline.jobs import Span
from eroica.trace.communication import readable

#: Start-up of this share of what was recorded is told.
_LEAST_STARTUP = 0.1
#: So is time between batches; a cause beyond that must gain so much.
_LEAST_BETWEEN = 0.1
_LEAST_INSIDE = 0.1
#: A recording holds so many kernels for each call that launches one, or kernels were lost.
_WHOLE = 0.9
#: Causes that are read from what a device does not do.
_OF_IDLE_DEVICES = frozenset({"host-bound", "host-device-sync", "python-on-critical-path"})
_ALL_AS_ONE = "No iterations were found: all that was recorded counts as one."
_INFERENCE = "It looks like inference: no backward pass and no optimizer were recorded."
_FOUND_BY = {
    "profiler steps": "iterations are the profiler's steps",
    "optimizer steps": "iterations end with the optimizer's steps",
    "loader": "iterations begin with the data loader's next",
    "marks": "iterations are the ranges that the user has numbered",
    "batches": "iterations are the batches that a serving loop marks",
    "repetition": "iterations are what repeats among the operators, the backward pass with it",
    "span": "no iterations were found",
}


def name_of(rank: int) -> str:
    """A worker in a sentence."""
    return f"worker {rank}"


def damage_note(one: TraceSummary) -> str:
    """What is said first of a damaged recording that is compared nevertheless."""
    return f"the recording of {name_of(one.rank)} is damaged: {one.held.damage[0]}"


def left_out_note(rank: int, why: str) -> str:
    """What is said of a recording that is not compared."""
    return f"{name_of(rank)} is left out of the comparison: its recording {why}"


def found_note(names: Sequence[str]) -> str:
    """What is said of kernels that no table knows."""
    listed = ", ".join(clean(readable(name), 60) for name in names)
    whose, what = ("its", "it") if len(names) == 1 else ("their", "them")
    return (
        f"{listed}: taken for communication by {whose} behavior, workers come to {what} apart and leave {what} "
        "together: whoever comes first stays longest"
    )


def how_found(span: Span) -> str:
    """How iterations were found, as a clause."""
    ways = sorted({one.found_by for one in span.summaries})
    return " and ".join(_FOUND_BY.get(way, way) for way in ways)


def temper(verdict: Verdict, span: Span) -> Verdict:
    """The verdict with what it rests on in its sentence; no "healthy" where that is damaged.

    Args:
        verdict: As the chain gave it.
        span: What was compared.
    """
    startup = _startup(span)
    if verdict.verdict in ("slow", "undetermined") and not _may_say_slow(verdict, span, bool(startup)):
        verdict = _without_iterations(verdict, span, startup) if _has_none(span) else _only_startup(verdict)
    verdict = _waiting_for_requests(_without_lost_work(verdict, span), span)
    word, summary = verdict.verdict, verdict.summary
    if word == "slow" and _has_none(span):
        summary = f"{summary} {_ALL_AS_ONE}"
    if startup:
        summary = f"{summary} {startup}"
    damage = [f"the recording of {name_of(one.rank)} is damaged ({one.held.damage[0]})" for one in _damaged(span)]
    if word == "healthy" and damage:
        word = "undetermined"
        summary = f"{summary.rstrip('.')}; but {damage[0]}, so nobody knows what is lost. Copy or record it again."
    unknown = next((one.held.unknown for one in span.summaries if one.held.unknown), "")
    if word == "healthy" and unknown:
        word = "undetermined"
        summary = f"{summary.rstrip('.')}; but {unknown}, so nothing is known of that part of the device's work."
    if word in ("healthy", "undetermined") and span.left_out:
        summary = f"{summary} {_left_out(span)}"
        if word == "healthy" and len(span.summaries) == 1 and any(span.summaries[0].held.communication):
            word = "undetermined"
            summary += " Whether they wait for each other cannot be told from one of them."
    if word == "healthy" and span.world_size > len(span.summaries) and not _talk(span):
        word = "undetermined"
        whose = "its" if len(span.summaries) == 1 else "their"
        summary += f" None of {whose} kernels is known to be communication, so nobody knows who waits for the missing."
    if all(one.purpose == "inference" for one in span.summaries):
        summary = f"{summary} {_INFERENCE}"
    return msgspec.structs.replace(verdict, verdict=word, summary=summary)


def _without_iterations(verdict: Verdict, span: Span, startup: str) -> Verdict:
    """Nothing is a share of an iteration where there are none: what seemed to be one becomes a note."""
    said = verdict.summary
    length = seconds(max(one.pattern.duration_s for one in span.summaries if one.pattern is not None))
    summary = (
        f"No iterations were found in what was recorded ({length}), so nothing tells what of it comes again; record "
        "whole steps, and mark them with the profiler's step()."
    )
    is_news = not startup and not said.startswith("No iterations")
    if is_news and all(one.purpose == "inference" for one in span.summaries):  # calls of a model, not the steps of one
        summary = f"{summary} Taken as one iteration: {said}"
        is_news = False
    notes = (f"Taken as one iteration: {said}", *verdict.coverage.notes) if is_news else verdict.coverage.notes
    coverage = msgspec.structs.replace(verdict.coverage, notes=notes)
    kept = tuple(finding for finding in verdict.findings if finding.scope == "some" and len(span.summaries) > 1)
    return msgspec.structs.replace(verdict, verdict="undetermined", summary=summary, findings=kept, coverage=coverage)


def _only_startup(verdict: Verdict) -> Verdict:
    """Iterations were found, but the process was still being set up in them."""
    summary = "The recorded iterations hold the start of the process; record later ones (schedule(wait=..., warmup=2))."
    return msgspec.structs.replace(verdict, verdict="undetermined", summary=summary, findings=())


def _without_lost_work(verdict: Verdict, span: Span) -> Verdict:
    """No cause that rests on a device which idles, where the file says that kernels of it were lost."""
    lossy = [one for one in span.summaries if one.held.damage and _lacks_kernels(one.held)]
    causes = [finding for finding in verdict.findings if finding.role == "cause"]
    is_open = verdict.verdict == "undetermined" and span.world_size <= len(span.summaries)
    if not lossy or not (is_open or verdict.verdict == "slow"):
        return verdict
    if any(finding.cause not in _OF_IDLE_DEVICES for finding in causes):
        return verdict
    first = lossy[0]
    summary = (
        f"The recording of {name_of(first.rank)} is damaged ({first.held.damage[-1]}): a device that seems to idle may "
        "have worked. Record it again."
    )
    notes = (*verdict.coverage.notes, f"Taken as it was recorded: {verdict.summary}")
    coverage = msgspec.structs.replace(verdict.coverage, notes=notes)
    return msgspec.structs.replace(verdict, verdict="undetermined", summary=summary, findings=(), coverage=coverage)


def _lacks_kernels(held: Held) -> bool:
    """Whether the iterations that count hold fewer kernels than the calls that launched one."""
    return not held.launches_many and sum(held.kernels) < _WHOLE * sum(held.launches)


def _has_none(span: Span) -> bool:
    """No iterations were found."""
    return all(one.found_by == "span" for one in span.summaries)


def _talk(span: Span) -> bool:
    """Whether any communication was recorded."""
    return any(any(one.held.communication) for one in span.summaries)


def _damaged(span: Span) -> list[TraceSummary]:
    return [one for one in span.summaries if one.held.damage]


def _may_say_slow(verdict: Verdict, span: Span, starts_up: bool) -> bool:
    """Whether causes may be called what makes the job slow.

    What all workers do costs a share of an iteration only if there are iterations, and not while a process is set up.
    A worker that its peers wait for is late whatever they do.
    """
    causes = [finding for finding in verdict.findings if finding.role == "cause"]
    is_compared = any(finding.scope == "some" and len(span.summaries) > len(finding.workers) for finding in causes)
    return is_compared or not (_has_none(span) or starts_up)


def _waiting_for_requests(verdict: Verdict, span: Span) -> Verdict:
    """What lies between batches of a serving loop is no work of the model, and nothing that its trace explains."""
    shares = [one.between_s / one.pattern.duration_s for one in span.summaries if one.pattern is not None]
    share = min(1.0, *shares)
    if share < _LEAST_BETWEEN or any(one.found_by != "batches" for one in span.summaries):
        return verdict
    said = (
        f"{percent(share)} of the time lies between batches, where the loop waits for requests or prepares them, and "
        "nothing of the model runs."
    )
    causes = [finding for finding in verdict.findings if finding.role == "cause"]
    inside = max((finding.gain or 0.0 for finding in causes), default=0.0) - share
    if verdict.verdict != "slow" or inside >= _LEAST_INSIDE or any(finding.scope == "some" for finding in causes):
        return msgspec.structs.replace(verdict, summary=f"{verdict.summary} {said}")
    notes = (f"Taken with the time between batches: {verdict.summary}", *verdict.coverage.notes)
    coverage = msgspec.structs.replace(verdict.coverage, notes=notes)
    return msgspec.structs.replace(verdict, verdict="undetermined", summary=said, findings=(), coverage=coverage)


def _startup(span: Span) -> str:
    """The sentence about what is done once per process, "" where that is little."""
    most = max(span.summaries, key=lambda one: one.startup_s)
    assert most.pattern is not None
    window_s = most.pattern.duration_s
    if most.startup_s < _LEAST_STARTUP * window_s:
        return ""
    named = ", ".join(f"{clean(name, 60)} {seconds(length)}" for name, length in most.startup)
    return (
        f"{seconds(most.startup_s)} of the {seconds(window_s)} recorded are start-up ({named}): once per process, and "
        "no share of an iteration."
    )


def _left_out(span: Span) -> str:
    """The sentence about those who are not compared."""
    ranks: Sequence[int] = sorted(span.left_out)
    reasons = {span.left_out[rank] for rank in ranks}
    whose = "its recording" if len(ranks) == 1 else "their recordings"
    why = f": {whose} {next(iter(reasons))}" if len(ranks) == 1 else ""
    who = worker_list(ranks)
    return f"{who[0].upper()}{who[1:]} {'is' if len(ranks) == 1 else 'are'} left out{why}."
