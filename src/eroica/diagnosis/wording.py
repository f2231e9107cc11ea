"""Sentences of a verdict, made from facts: the summary of a cause, and its evidence with one number each."""

from __future__ import annotations

import math

import numpy as np

from eroica.diagnosis.block import Block
from eroica.diagnosis.frames import MOST
from eroica.diagnosis.labels import PLANNED, UNKNOWN
from eroica.diagnosis.outliers import LEAST_AGREEMENT
from eroica.diagnosis.selection import Cause
from eroica.diagnosis.setup import tell_settings
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms, name_accused, name_affected, name_workers, short_name
from eroica.model.shares import percent

#: Use of a core below which a function waits rather than computes, and from which it computes.
_WAITS_RATHER, _COMPUTES = 0.3, 0.7
_MEANINGS = {
    "compile": "That is a compiler: code is compiled again while the job trains.",
    "program": "That waits for another program that this function started.",
    "thread": "That waits for another thread.",
    "service": "That waits for the answer of a service.",
    "sync": "That waits until the device has done all that it was given.",
}
_GROWN = {
    "parameters": "{} parameters get gradients instead of {}",
    "gradients": "gradients are computed for {} tensors of parameters instead of {}",
    "batches": "an iteration takes {} batches instead of {}",
    "passes": "an iteration runs {} backward passes instead of {}",
    "samples": "a batch holds {} samples instead of {}",
    "elements": "a sample holds {} elements instead of {}",
    "tensors": "operators of forward and backward take {} times as long, those of the optimizer do not",
}
#: Quantities that are not told beside another one that has grown, too.
_SAYS_AS_MUCH = {"gradients": "parameters", "batches": "passes"}
_REFERENCES = {
    "peers": "{whose} peers spend {}",
    "baseline": "in the {window} it was {}",
    "expectation": "at most {} is expected",
}


def summarize_cause(view: View, cause: Cause) -> str:
    """Return the sentences on a cause that a person can act on."""
    block = cause.block
    others = "All others wait each time." if block.scope == "rotating" and view.workers > 1 else ""
    parts = [_what(view, cause), others, _limit(view, block), _gain(cause)]
    return " ".join(part for part in parts if part)


def _what(view: View, cause: Cause) -> str:
    block, iteration = cause.block, view.now_text
    if cause.cause == PLANNED:
        return _planned(view, block, iteration)
    if block.culprit is not None:
        inside = f", most of all in {block.focus.name}" if block.focus.functions else ""
        more = f"; that is {format_ms(block.excess_us)} of each {iteration} iteration{inside}."
        return f"{block.culprit.subject}{block.culprit.ending or more}"
    if block.cell == "process":
        return _held(view, block)
    if block.cell == "collectives":
        return _collectives(view, block, iteration)
    if block.scope == "rotating":
        return _in_turn(view, cause, iteration)
    return _does(view, cause, iteration) + _rest(view, block)


def _planned(view: View, block: Block, iteration: str) -> str:
    """Return what the training does more of, from which iteration on, and what that takes."""
    began = view.context.window.since
    since = f"Since about iteration {began:,}" if began else f"Since the {view.past_window}"
    names = {one.what for one in block.facts.planned}
    told = [one for one in block.facts.planned if _SAYS_AS_MUCH.get(one.what) not in names]
    grown = " and ".join(_GROWN[one.what].format(_count(one.now), _count(one.before)) for one in told)
    where = "collectives" if block.cell == "collectives" else block.focus.label
    return (
        f"{since}, {grown}. That is a planned change, no fault: {where} takes {format_ms(block.mean_us)} of each "
        f"{iteration} iteration, against {format_ms(block.reference_us)} in the {view.past_window}."
    )


def _count(value: float) -> str:
    """Format a count: "1.9 million", "22", "1.5"."""
    return f"{value / 1e6:.3g} million" if value >= 1e6 else f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _subject(view: View, block: Block) -> tuple[str, str]:
    """Return the subject of the sentence, and the ending of its verb."""
    ranks = [view.fleet.ranks[worker] for worker in block.workers]
    if block.scope == "all" and len(ranks) == view.workers and not (view.is_trace and view.context.missing):
        together = {1: ("The worker", "s"), 2: ("Both workers", "")}
        return together.get(len(ranks), (f"All {len(ranks)} workers", ""))
    who, is_one = name_accused(view, block.workers, capital=True)
    return who, "s" if is_one else ""


def _held(view: View, block: Block) -> str:
    whose, be = ("The process", "is") if len(block.workers) == 1 else ("The processes", "are")
    how = "stopped" if block.facts.stopped >= block.facts.held / 2 else "held back by a CPU quota"
    whom = name_workers([view.fleet.ranks[at] for at in block.workers])
    return f"{whose} of {whom} {be} {how} {percent(block.facts.held)} of the time, and the others wait."


def _collectives(view: View, block: Block, iteration: str) -> str:
    time, name = format_ms(block.mean_us), block.focus.name
    if block.calls_more:
        calls = f"{block.facts.calls:.0f} times per iteration, {block.facts.calls_before:.0f} before"
        return f"{name} runs {calls}: all workers spend {time} of each {iteration} iteration in collectives."
    return f"{name} takes {time} of each {iteration} iteration on all workers although nobody arrives late."


def _in_turn(view: View, cause: Cause, iteration: str) -> str:
    block = cause.block
    lost = format_ms(float(block.removed_us.max(axis=0).mean()) if block.gain is None else block.mean_us)
    if block.cell == "collections":
        return f"Python's garbage collector pauses one worker after another, {lost} of each {iteration} iteration."
    what = {
        "cpu-contention": "waits for a core",
        "load-imbalance": "has more to compute",
        "compute-slow": "computes more slowly",
    }.get(cause.cause, f"spends longer in {block.focus.label}")
    return f"Another worker each time {what}: waiting for it takes {lost} of each {iteration} iteration."


def _does(view: View, cause: Cause, iteration: str) -> str:
    """Return what the workers do, without the end of the sentence."""
    block, (who, ending) = cause.block, _subject(view, cause.block)
    each = (
        f", {format_ms(block.facts.each_us)} every {block.facts.every:.0f} iterations" if block.facts.every > 1 else ""
    )
    time, more = f"{format_ms(block.mean_us)} of each {iteration} iteration{each}", format_ms(block.excess_us)
    name, there, caller = block.focus.label, block.facts.elsewhere, block.facts.caller
    times = f"{block.mean_us / max(block.reference_us, 1e-9):.1f} times"
    meanwhile = f", most of it while {caller.focus.label} runs" if caller is not None else ""
    data = f"{who} wait{ending} {time} for data that {name}"
    sentences = {
        "slow-data-loading": f"{data} makes in {there}"
        if there
        else f"{who} spend{ending} {time} in {name} loading data",
        "slow-storage-read": f"{data} reads in {there}"
        if there and block.cell == "input"
        else f"{who} wait{ending} {time} for data to be read in {name}",
        "blocking-checkpoint": f"{who} save{ending} state for {time} in {name}",
        "blocking-logging": f"{who} spend{ending} {time} on logging in {name}",
        "garbage-collection": f"{who} spend{ending} {time} in Python's garbage collector{meanwhile}",
        "memory-operation-storm": f"{who} spend{ending} {time} on copies, fills and allocations{_by(block)}",
        "host-bound": f"The device of {who[0].lower()}{who[1:]} waits {time} for launches"
        + (f" from {name}" if block.focus.stack else ""),
        "python-on-critical-path": f"{who} wait{ending} {time} for {name}, which runs in {there}"
        if there
        else f"{who} spend{ending} {time} in the Python function {name}",
        "compute-slow": f"{who} compute{ending} the same operators {times} as slowly{_by(block)}",
        "cpu-contention": f"{who} compute{ending} {times} as slowly, with threads that wait for a core",
        "load-imbalance": f"{who} run{ending} {more} more work per {iteration} iteration, at full speed{_by(block)}",
    }
    if cause.cause == UNKNOWN and block.cell == "operators":
        return f"{who} compute{ending} {more} more per {iteration} iteration{_by(block)}"
    late = f"{who} {'is' if ending else 'are'} {more} late in each {iteration} iteration"
    return sentences.get(cause.cause, f"{late}, most of all in {name}{_by(block)}")


def _by(block: Block) -> str:
    operator = f", most of all {short_name(block.facts.operator)}" if block.facts.operator else ""
    caller = f", which {block.facts.caller.focus.label} calls" if block.facts.caller is not None else ""
    return f"{operator}{caller}"


def _rest(view: View, block: Block) -> str:
    """Return the end of the sentence: the workers that wait, or the time in the baseline window."""
    others = view.workers - len(block.workers)
    if block.scope == "some" and others > 0:
        whom = "it" if name_accused(view, block.workers)[1] else "them"
        waited_W = np.delete(view.suspects.arrivals.waited_us.mean(axis=1), list(block.workers))
        waiting = int((waited_W >= LEAST_AGREEMENT * block.excess_us).sum())
        if 0 < waiting < others:
            return f"; {waiting} of the other {others} workers wait{'s' if waiting == 1 else ''} for {whom}."
        return f"; the other {f'{others} workers wait' if others > 1 else 'worker waits'} for {whom}."
    if block.reference == "baseline":
        before = format_ms(block.reference_us) if block.reference_us >= 10.0 else "nothing"
        return f", against {before} in the {view.past_window}."
    return "."


def _limit(view: View, block: Block) -> str:
    """Return whether the function computes or waits; a thread that lacks a core computes less than it would."""
    core = block.facts.core
    if block.cell not in ("input", "python") or math.isnan(core) or block.culprit is not None:
        return ""
    queued = 0.0 if block.is_elsewhere else 1 - block.facts.allowed
    if core < _COMPUTES and queued >= 0.2 and core >= MOST * (1 - queued):
        return f"It computes whenever it has a core, for which it waits {percent(queued)} of the time."
    if core < _WAITS_RATHER:
        return f"It waits rather than computes ({percent(core)} of a core)."
    return f"It keeps a core busy ({percent(core)})." if core > _COMPUTES else ""


def _gain(cause: Cause) -> str:
    share = max(round(cause.gain * 100), 1)
    if cause.cause == PLANNED:
        return ""
    if cause.cause == "stage-imbalance":
        return f"Balanced stages would make iterations about {share} % shorter."
    if cause.cause == "host-bound" and cause.block.reference == "expectation":
        return f"Brought down to what is expected, iterations would be about {share} % shorter."
    return f"Removing it would make iterations about {share} % shorter."


def describe_evidence(view: View, cause: Cause) -> tuple[str, ...]:
    """Return the evidence for a cause, one fact a sentence."""
    block = cause.block
    sentences = [_amount(view, block), *_of_function(block), *_of_operators(view, block)]
    sentences += block.culprit.evidence if block.culprit is not None else ()
    if block.culprit is None or block.culprit.kind != "setting":
        sentences += tell_settings(view, block, cause.cause)
    if block.scope == "some":
        sentences += _waiting(view, block)
    return tuple(one for one in sentences if one)


def _amount(view: View, block: Block) -> str:
    """State the time, its reference, the excess and its noise."""
    whose = "its" if len(block.workers) == 1 else "their"
    usual = _REFERENCES[block.reference].format(format_ms(block.reference_us), whose=whose, window=view.past_window)
    noise = f"{min(block.strength, 999):.0f} standard errors over {view.iterations} iterations"
    if view.iterations == 1:
        noise = "one iteration only: its noise is unknown"
    where = "Mean over all workers" if not block.workers else name_affected(view, block.workers)
    where = where[0].upper() + where[1:]
    return f"{where}: {format_ms(block.mean_us)} per iteration; {usual} (excess {format_ms(block.excess_us)}, {noise})."


def _of_function(block: Block) -> list[str]:
    facts = block.facts
    told: list[str] = []
    leaf = block.focus.stack[-1] if block.focus.stack else ""
    if leaf and block.cell in ("input", "python") and not leaf.startswith(f"{block.focus.name} ("):
        told.append(f"Its heaviest stack ends in {leaf}.")
    if facts.activity in _MEANINGS:
        told.append(_MEANINGS[facts.activity])
    if facts.waits_for_read and facts.activity in ("network", "service", "file"):
        where = "a file" if facts.activity == "file" else "a socket"
        told.append(f"Its stacks end in library code that reads {where}.")
    if facts.on_disk >= 0.1:
        told.append(f"The kernel had its thread in the wait for a disk for {percent(facts.on_disk)} of that time.")
    return told


def _of_operators(view: View, block: Block) -> list[str]:
    facts = block.facts
    told: list[str] = []
    if block.cell not in ("operators", "memory", "launches", "collections"):
        return told
    if facts.more_work >= 0.05:
        told.append(
            f"{percent(facts.more_work)} of the operators' time is executions that the reference does not have."
        )
    if facts.factor > 1.05:
        told.append(f"An execution takes {facts.factor:.2f} times as long as the reference's.")
    if facts.has_more_data:
        told.append("Forward and backward take longer, the optimizer does not: the tensors are larger.")
    if facts.held > 0.05:
        told.append(f"The processes are stopped or throttled {percent(facts.held)} of the time.")
    if facts.queued >= 0.2:
        told.append(f"Waiting longer for a core accounts for {percent(facts.queued)} of the excess.")
    if facts.caller is not None:
        usual = "before" if block.reference == "baseline" else "on the peers"
        own, other = format_ms(facts.caller.own_us), format_ms(facts.caller.usual_us)
        told.append(f"What {facts.caller.focus.label} calls takes {own}; {usual} {other}.")
    return told


def _waiting(view: View, block: Block) -> list[str]:
    """State who waits: time in collectives on both sides, and the share of the blame."""
    accused = list(block.workers)
    others = sorted(set(range(view.workers)).difference(accused))
    theirs, own = (format_ms(float(view.wait_us[side].mean())) for side in (others, accused))
    told = [f"The others spend {theirs} per iteration in collectives, {name_affected(view, accused)} {own}."]
    arrivals = view.suspects.arrivals
    if arrivals.blame_share(accused):
        share = f"{percent(arrivals.waiting_for(accused))} of all critical waiting"
        told.append(f"{share} in {arrivals.executions} matched collectives is for {name_affected(view, accused)}.")
    return told
