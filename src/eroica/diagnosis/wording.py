"""Sentences of a verdict: the summary, and evidence with numbers that a person can check."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from eroica.diagnosis.arbiter import Cause
from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.communication import Waiting
from eroica.diagnosis.lateness import LEAST_AGREEMENT
from eroica.diagnosis.loader_children import where_it_runs
from eroica.diagnosis.placement import describe_place, is_extra_duty, name_accused
from eroica.diagnosis.rows import WAITS_RATHER
from eroica.diagnosis.speed import queued_share
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms, name_workers
from eroica.model.shares import percent
from eroica.model.verdict import ResourceUse

__all__ = ["describe_evidence", "format_ms", "name_workers", "summarize_cause"]

#: In a recording with many groups, blame stays with workers that pass the waiting on: a small share tells nothing then.
_MOSTLY_THEIRS = 0.15
#: A function that holds a smaller share of what is longer is not all that is meant.
_SPECIFIC = 0.5
#: A thread that waits this long for a core, and uses so much of the rest, is computing.
_OFTEN_QUEUED = 0.2
_ALLOWED = 0.6
#: A function took so much of its time beside collectives then that the sentence on what it took says so.
_HIDDEN = 0.1
#: Less than this is told as nothing, microseconds.
_NOTHING_US = 10.0
_REFERENCES = {
    "peers": "{whose} peers spend {}",
    "baseline": "in the {window} it was {}",
    "expectation": "at most {} is expected",
    "stages": "the other stages spend {}",
    "slowdown": "it may have been {} before the job got slower",
}


def summarize_cause(view: View, cause: Cause, resource: ResourceUse | None) -> str:
    """Write the sentence on a cause that a person can act on."""
    found = cause.candidate
    who_waits = "" if found.sentence else _who_waits(view, found)
    parts = [_what(view, found), who_waits, _limit(view, found, resource), _gain(cause)]
    return " ".join(part for part in parts if part)


def _subject(view: View, found: Candidate) -> tuple[str, str]:
    """Return the subject of the sentence, and the ending of its verb."""
    ranks = [view.fleet.ranks[worker] for worker in found.workers]
    if found.scope == "all" and len(ranks) == view.workers and not (view.is_trace and view.context.missing):
        together = {1: ("The worker", "s"), 2: ("Both workers", "")}
        return together.get(len(ranks), (f"All {len(ranks)} workers", ""))
    who, is_one = name_accused(view, found.workers, capital=True)
    return who, "s" if is_one else ""


def _what(view: View, found: Candidate) -> str:
    iteration = format_ms(view.pace_us)
    if found.sentence:
        return found.sentence
    if found.subject and not found.focus.functions:
        return f"{found.subject}; that is {format_ms(found.excess_us)} of each {iteration} iteration."
    if found.subject and found.coverage < _SPECIFIC:
        more = format_ms(found.excess_us)
        return f"{found.subject}; that is {more} of each {iteration} iteration, most of all in {found.focus.name}."
    if found.subject:
        return f"{found.subject}; {found.focus.name} takes {format_ms(found.mean_us)} of each {iteration} iteration."
    if found.scope == "rotating":
        lost = format_ms(float(found.removed_us.max(axis=0).mean()))
        return f"Python's garbage collector pauses one worker after another, {lost} of each {iteration} iteration."
    if found.cause == "slow-collective-everywhere":
        what = f"{found.focus.name} takes {format_ms(found.mean_us)} of each {iteration} iteration on all workers"
        return f"{what} although nobody arrives late."
    return _does(view, found, iteration) + _duty(view, found) + _rest(view, found)


def _duty(view: View, found: Candidate) -> str:
    """Mark a cause as rank 0's extra duty, which is often meant to be so; "" for any other cause."""
    return ", rank 0's extra duty, which no other worker runs" if is_extra_duty(view, found) else ""


def _does(view: View, found: Candidate, iteration: str) -> str:
    """Say what the accused do, without the end of the sentence."""
    who, ending = _subject(view, found)
    time, more = f"{format_ms(found.mean_us)} of each {iteration} iteration", format_ms(found.excess_us)
    name = found.focus.label
    in_other = found.is_elsewhere
    where = where_it_runs(view, found.focus.functions)
    data = f"{who} wait{ending} {time} for data that {name}"
    sentences = {
        "slow-data-loading": f"{data} makes in {where}"
        if in_other
        else f"{who} spend{ending} {time} in {name} loading data",
        "slow-storage-read": f"{data} reads in {where}"
        if in_other
        else f"{who} wait{ending} {time} for data to be read in {name}",
        "garbage-collection": f"{who} spend{ending} {time} in Python's garbage collector{_while(found)}",
        "python-on-critical-path": f"{who} wait{ending} {time} for {name}, which runs in {where}"
        if in_other
        else f"{who} spend{ending} {time} in the Python function {name}",
        "compute-slow": f"{who} compute{ending} the same operators {_times(found)} as slowly",
        "cpu-contention": f"{who} compute{ending} {_times(found)} as slowly, with threads that wait for a core",
        "load-imbalance": f"{who} run{ending} {more} more work per {iteration} iteration, at full speed",
    }
    if found.is_one_operator and found.kind == "compute":
        return f"{who} spend{ending} {time} in {name}{_by(found)}, {_times(found)} as long as elsewhere"
    late = f"{who} {'is' if ending else 'are'} {more} late in each {iteration} iteration"
    return sentences.get(found.cause, f"{late}, most of all in {name}{_by(found)}")


def _while(found: Candidate) -> str:
    return f", most of it while {found.caller} runs" if found.caller else ""


def _by(found: Candidate) -> str:
    return f", which {found.caller} calls" if found.caller else ""


def _times(found: Candidate) -> str:
    return f"{found.mean_us / max(found.reference_us, 1e-9):.1f} times"


def _rest(view: View, found: Candidate) -> str:
    """End the sentence: with the workers that wait, or with the time when the job was healthy."""
    others = view.workers - len(found.workers)
    if found.scope == "some" and others > 0:
        whom = "it" if name_accused(view, found.workers)[1] else "them"
        waiting = _waiting_for(view, found)
        if found.is_hidden and (np.delete(view.wait_us, found.workers) < LEAST_AGREEMENT * found.excess_us).all():
            return f"; the other {f'{others} workers are' if others > 1 else 'worker is'} late by other work."
        if 0 < waiting < others:
            return f"; {waiting} of the other {others} workers wait{'s' if waiting == 1 else ''} for {whom}."
        return f"; the other {f'{others} workers wait' if others > 1 else 'worker waits'} for {whom}."
    if found.reference == "baseline":
        before = format_ms(found.reference_us) if found.reference_us >= _NOTHING_US else "nothing"
        return f", against {before} {view.back_then}."
    return "."


def _waiting_for(view: View, found: Candidate) -> int:
    """Count the other workers that wait for somebody for a good part of the accused's lateness."""
    waited_W = view.suspects.arrivals.waited_us.mean(axis=1)
    others = np.setdiff1d(np.arange(view.workers), found.workers)
    return int((waited_W[others] >= LEAST_AGREEMENT * found.excess_us).sum())


def _who_waits(view: View, found: Candidate) -> str:
    return "All others wait each time." if found.scope == "rotating" and view.workers > 1 else ""


def _limit(view: View, found: Candidate, resource: ResourceUse | None) -> str:
    """Say whether the function computes or waits; a thread that is often without a core computes less than it would."""
    if resource is None or resource.name != "cpu" or found.kind != "python" or _is_mostly_operators(view, found):
        return ""
    waits_W = np.nan_to_num(queued_share(view.fleet))  # of training threads
    queued = 0.0 if found.is_elsewhere else float(waits_W[list(found.workers) or slice(None)].mean())
    if resource.mean < 0.7 and queued >= _OFTEN_QUEUED and resource.mean >= _ALLOWED * (1 - queued):
        return f"It computes whenever it has a core, for which it waits {percent(queued)} of the time."
    if resource.mean < WAITS_RATHER:
        return f"It waits rather than computes ({percent(resource.mean)} of a core)."
    return f"It keeps a core busy ({percent(resource.mean)})." if resource.mean > 0.7 else ""


def _is_mostly_operators(view: View, found: Candidate) -> bool:
    """True if most of a function's time is that of operators which it calls: its own use of a core says little then."""
    if found.is_elsewhere or found.scope == "rotating":
        return False
    own_W = view.fleet.critical_us[list(found.focus.functions)].sum(axis=0)
    return float(own_W[list(found.workers)].mean()) < _SPECIFIC * found.mean_us


def _gain(cause: Cause) -> str:
    share = max(round(cause.gain * 100), 1)
    if cause.candidate.cause == "stage-imbalance":
        return f"Balanced stages would make iterations about {share} % shorter."
    if cause.candidate.cause == "host-bound" and cause.candidate.reference == "expectation":
        return f"Brought down to what is expected, iterations would be about {share} % shorter."
    return f"Removing it would make iterations about {share} % shorter."


def describe_evidence(view: View, cause: Cause, waiting: Sequence[Waiting]) -> tuple[str, ...]:
    """List the evidence for a cause, one fact a sentence."""
    found = cause.candidate
    now = view.pace_us
    sentences = [] if found.sentence else _amount(view, found)
    sentences += found.evidence
    if found.scope == "some" and not found.hosts:
        sentences += describe_place(view, found.workers)
    if found.is_remark:
        return tuple(sentences)
    sentences += _waiting_evidence(view, found)
    sentences += [
        f"{wait.name} takes {format_ms(wait.mean_us)} per iteration on {_waiters(view, wait.workers)}"
        + (f" and {format_ms(wait.accused_us)} on {_ranks(view, found.workers)}." if found.workers else ".")
        for wait in waiting
        if found.scope != "all"
    ]
    without = format_ms(now * (1 - cause.gain))
    how = "By what it took before, an iteration" if cause.is_growth else "Recomputed without it, an iteration"
    sentences.append(f"{how} takes {without}{' without it' if cause.is_growth else ''} instead of {format_ms(now)}.")
    return tuple(sentences)


def _amount(view: View, found: Candidate) -> list[str]:
    """State the time, its reference, the excess and its noise; and the share that the named function holds."""
    whose = "its" if len(found.workers) == 1 else "their"
    usual = _REFERENCES[found.reference].format(format_ms(found.reference_us), whose=whose, window=view.past_window)
    if found.reference == "baseline" and found.workers:
        hidden_us = float(view.uncovered(found.functions)[list(found.workers)].mean())
        if hidden_us >= max(_HIDDEN * found.reference_us, _NOTHING_US):
            usual += f", {format_ms(hidden_us)} of it beside collectives that run at another time now"
    if found.hosts and found.reference == "peers":
        usual = f"at the rate of the other links it would be about {format_ms(found.reference_us)}"
    noise = _noise(view, found)
    excess = f"(excess {format_ms(found.excess_us)}, {noise})"
    where = f"{found.focus.name} on all workers" if found.hosts else _where(view, found)
    sentences = [f"{where}: {format_ms(found.mean_us)} per iteration; {usual} {excess}."]
    if found.focus.stack and not found.caller:
        sentences.append(f"{found.focus.label} holds {percent(found.focus.share)} of the excess.")
    return sentences


def _noise(view: View, found: Candidate) -> str:
    if view.iterations == 1:
        return "one iteration only: its noise is unknown"
    return f"{min(found.strength, 999):.0f} standard errors over {view.iterations} iterations"


def _ranks(view: View, workers: Sequence[int]) -> str:
    if len(workers) == view.workers > 1:
        return f"all {view.workers} workers"
    return name_accused(view, workers)[0]


def _waiters(view: View, workers: Sequence[int]) -> str:
    return name_workers([view.fleet.ranks[worker] for worker in workers])


def _where(view: View, found: Candidate) -> str:
    if not found.workers:
        return "Mean over all workers"
    where = _ranks(view, found.workers)
    return where[0].upper() + where[1:]


def _waiting_evidence(view: View, found: Candidate) -> list[str]:
    if found.scope != "some" or view.workers < 2 or found.hosts:
        return []
    accused = list(found.workers)
    others = sorted(set(range(view.workers)).difference(accused))
    sentences = []
    if others and not found.sentence:
        theirs, own = (format_ms(float(view.wait_us[side].mean())) for side in (others, accused))
        sentences.append(f"The others spend {theirs} per iteration in collectives, {_ranks(view, accused)} {own}.")
    arrivals = view.suspects.arrivals
    share_of_blame = arrivals.blame_share(accused)
    if share_of_blame and (share_of_blame >= _MOSTLY_THEIRS or not view.is_trace):
        share = f"{percent(arrivals.waiting_for(accused))} of all critical waiting"
        sentences.append(f"{share} in {arrivals.executions} matched collectives is for {_ranks(view, accused)}.")
    return sentences
