"""What recordings may be compared, and what a verdict may claim of them: an absence accuses nobody.

A file that lacks device events, communication, or most of the iterations that the others have is left out, as if there
were no file; its rank counts as missing, and a note says why. Of a damaged file only those iterations count that hold
as much of the device's work as the calls that launched it say. The others are compared on the iterations that all of
them hold whole. "Healthy" is said only of recordings that are whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from statistics import median

import msgspec

from eroica.model.trace import Held, Range, TraceSummary
from eroica.model.verdict import Verdict
from eroica.model.words import clean, seconds, worker_list
from eroica.offline.jobs import Span

#: An iteration is whole if so much of what it must hold was recorded.
_WHOLE = 0.9
#: So few launches tell nothing about kernels that may be lost.
_FEWEST_LAUNCHES = 8
#: Iterations that most have are those of at least this share of the workers; who has a smaller share is left out.
_MOST = 0.5
#: Iterations that workers are compared on, at least, unless most recorded fewer.
_FEWEST_COMMON = 2
#: Start-up of this share of what was recorded is told.
_LEAST_STARTUP = 0.1
#: Causes that are read from what a device does not do.
_OF_IDLE_DEVICES = frozenset({"host-bound", "python-on-critical-path"})
_ALL_AS_ONE = "No iterations were found: all that was recorded counts as one."
_INFERENCE = "It looks like inference: no backward pass and no optimizer were recorded."
_FOUND_BY = {
    "profiler steps": "iterations are the profiler's steps",
    "optimizer steps": "iterations end with the optimizer's steps",
    "loader": "iterations begin with the data loader's next",
    "marks": "iterations are the ranges that the user has numbered",
    "span": "no iterations were found",
}


@dataclass(frozen=True)
class Choice:
    """What of a recording is compared.

    Attributes:
        kept: The workers, in order of rank.
        left_out: Rank -> why, as a clause about its recording.
        only: Rank -> first and last iteration that count, for those who recorded more than all have whole.
        lost: Rank -> a sentence, for those of the kept that lost kernels.
        notes: What the reader should know about the iterations chosen.
    """

    kept: tuple[TraceSummary, ...]
    left_out: Mapping[int, str] = field(default_factory=dict)
    only: Mapping[int, Range] = field(default_factory=dict)
    lost: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def choose(summaries: Sequence[TraceSummary]) -> Choice:
    """Leave out what cannot be compared, and find the iterations that the others have in common.

    Args:
        summaries: One per rank, each with a pattern.

    Returns:
        At least one worker is kept.
    """
    left: dict[int, str] = {}
    kept = list(summaries)
    for lacking in (_without_device, _without_communication, _unlike_most):
        left.update(lacking(kept))
        kept = [one for one in kept if one.rank not in left]
    runs = {one.rank: _whole_run(one, kept) for one in kept}
    for one in kept if any(run is not None for run in runs.values()) else ():
        if runs[one.rank] is None:
            is_damaged = bool(one.held.damage)
            why = "holds no whole iteration" if is_damaged else f"holds {_lost(one)} in every iteration"
            left[one.rank] = _damaged_and(one) + why
    kept = [one for one in kept if one.rank not in left]
    whole = {one.rank: runs[one.rank] or _recorded(one) for one in kept}
    common = _common(whole, {one.rank: one for one in kept}, left)
    kept = [one for one in kept if one.rank not in left]
    only = {one.rank: common for one in kept if common is not None and _recorded(one) != common}
    lost = {one.rank: f"it holds {_lost(one)}" for one in kept if _is_lossy(one.held, 1.0)}
    notes = []
    if only and common is not None:
        which = f"iteration {common[0]}" if common[0] == common[1] else f"iterations {common[0]}–{common[1]}"
        notes.append(f"compared are {which}, which all recorded whole; {len(only)} of {len(kept)} recorded others, too")
    return Choice(tuple(kept), left, only, lost, tuple(notes))


# ---------------------------------------------------------------------- what is lacking altogether


def _without_device(summaries: Sequence[TraceSummary]) -> dict[int, str]:
    lacking = [one for one in summaries if not any(one.held.kernels)]
    is_told = len(lacking) < len(summaries)
    return {one.rank: _damaged_and(one) + "holds no device events" for one in lacking} if is_told else {}


def _without_communication(summaries: Sequence[TraceSummary]) -> dict[int, str]:
    """Return the workers without communication, if most workers show some in a group that they belong to."""
    talking = [one for one in summaries if any(one.held.communication)]
    if len(talking) < _MOST * len(summaries):
        return {}
    members = _members_of_used_groups(talking)
    why = "holds no communication, though the others' recordings do"
    return {
        one.rank: _damaged_and(one) + why
        for one in summaries
        if not any(one.held.communication) and (not members or one.rank in members)
    }


def _members_of_used_groups(talking: Sequence[TraceSummary]) -> set[int]:
    """Return the ranks in groups of which executions were recorded; none if no trace lists members."""
    found: set[int] = set()
    for one in talking:
        assert one.pattern is not None
        used = {record.group for record in one.pattern.collectives}
        for group in one.pattern.process_groups:
            if group.name in used:
                found.update(group.ranks)
    return found


def _unlike_most(summaries: Sequence[TraceSummary]) -> dict[int, str]:
    """Return the workers whose iterations were found in another way than most: their numbers are not comparable."""
    ways = [one.found_by for one in summaries]
    usual = max(ways, key=ways.count)
    if ways.count(usual) <= _MOST * len(ways):
        return {}
    why = "does not tell its iterations as the others do"
    return {one.rank: f"{why} ({one.found_by} instead of {usual})" for one in summaries if one.found_by != usual}


# ---------------------------------------------------------------------- whole iterations


def _recorded(one: TraceSummary) -> Range:
    assert one.pattern is not None
    return one.pattern.first_iteration, one.pattern.last_iteration - 1


def _whole_run(one: TraceSummary, peers: Sequence[TraceSummary]) -> Range | None:
    """Return the first and last of the longest run of whole iterations; None if there is none."""
    held, first = one.held, _recorded(one)[0]
    usual = min(1.0, median(_per_launch(peer.held) or 1.0 for peer in peers)) if len(peers) > 1 else 1.0
    own = _per_launch(held)
    if not (held.damage or _is_lossy(held, usual)):
        return _recorded(one)
    present = held.kernels if any(held.kernels) else held.operators
    fullest, talk = max(held.kernels or held.operators, default=0), max(held.communication, default=0)
    whole = [
        number > 0
        and number >= _WHOLE * (held.launches[at] * usual if own is not None else fullest)
        and held.communication[at] >= _WHOLE * talk
        for at, number in enumerate(present)
    ]
    runs = [[at for at, _ in run] for is_whole, run in groupby(enumerate(whole), key=itemgetter(1)) if is_whole]
    longest = max(runs, key=len, default=None)
    return None if longest is None else (first + longest[0], first + longest[-1])


def _per_launch(held: Held) -> float | None:
    """Return kernels per launching call; None if calls do not tell how many kernels they launch."""
    if held.launches_many or held.all_launches < _FEWEST_LAUNCHES:
        return None
    return held.all_kernels / held.all_launches


def _is_lossy(held: Held, usual: float) -> bool:
    """Whether a recording holds clearly fewer kernels than the calls that launched them say."""
    own = _per_launch(held)
    return own is not None and own < _WHOLE * usual


def _common(whole: Mapping[int, Range], by_rank: Mapping[int, TraceSummary], left: dict[int, str]) -> Range | None:
    """Return the iterations that all remaining workers have whole; workers with too few of them are added to `left`."""
    numbers = [number for low, high in whole.values() for number in range(low, high + 1)]
    usual = {number for number in set(numbers) if numbers.count(number) >= _MOST * len(whole)}
    ranges = dict(whole)

    def shared(one: Range) -> int:
        return sum(one[0] <= number <= one[1] for number in usual)

    def drop(rank: int) -> None:
        few = f"holds {shared(ranges.pop(rank))} of the {len(usual)} iterations that most have whole"
        left[rank] = _damaged_and(by_rank[rank]) + few

    for rank, one in whole.items():
        if shared(one) < _MOST * len(usual) and len(ranges) > 1:
            drop(rank)
    while True:
        common = max(low for low, _ in ranges.values()), min(high for _, high in ranges.values())
        if common[1] - common[0] + 1 >= min(_FEWEST_COMMON, len(usual)) or len(ranges) == 1:
            return common
        drop(min(ranges, key=lambda rank: shared(ranges[rank])))


# ---------------------------------------------------------------------- words


def _lost(one: TraceSummary) -> str:
    return f"{one.held.all_kernels} kernels for {one.held.all_launches} calls that launched one: kernels were lost"


def _damaged_and(one: TraceSummary) -> str:
    return f"is damaged ({one.held.damage[0]}) and " if one.held.damage else ""


# ---------------------------------------------------------------------- what a verdict may claim


def damage_note(one: TraceSummary) -> str:
    """Return the note on a damaged recording that is compared nevertheless."""
    return f"the recording of worker {one.rank} is damaged: {one.held.damage[0]}"


def how_found(span: Span) -> str:
    """Return how iterations were found, as a clause."""
    ways = sorted({one.found_by for one in span.summaries})
    return " and ".join(_FOUND_BY.get(way, way) for way in ways)


def temper(verdict: Verdict, span: Span) -> Verdict:
    """Say in a recording's verdict what it rests on, and make it undetermined where that is too little.

    Without iterations, or with kernels lost, "slow" is; "healthy" is where the recording is damaged or incomplete.

    Args:
        verdict: As the chain gave it.
        span: What was compared.
    """
    startup = _startup(span)
    if verdict.verdict in ("slow", "undetermined") and not _may_say_slow(verdict, span, bool(startup)):
        verdict = _without_iterations(verdict, span, startup) if _has_none(span) else _only_startup(verdict)
    verdict = _without_lost_work(verdict, span)
    word, summary = verdict.verdict, verdict.summary
    if word == "slow" and _has_none(span):
        summary = f"{summary} {_ALL_AS_ONE}"
    if startup:
        summary = f"{summary} {startup}"
    if word == "healthy" and (doubt := _doubt(span)):
        word, summary = "undetermined", f"{summary.rstrip('.')}; but {doubt}."
    if word in ("healthy", "undetermined") and span.left_out:
        summary = f"{summary} {_left_out(span)}"
    if all(one.purpose == "inference" for one in span.summaries):
        summary = f"{summary} {_INFERENCE}"
    return msgspec.structs.replace(verdict, verdict=word, summary=summary)


def _doubt(span: Span) -> str:
    """Return why recordings without a cause may not be called healthy, as a clause; "" if they may."""
    alone = len(span.summaries) == 1
    talk = any(any(one.held.communication) for one in span.summaries)
    for one in span.summaries:
        if one.held.damage:
            return f"{damage_note(one)}, so nobody knows what is lost: copy or record it again"
    for one in span.summaries:
        if one.held.unknown:
            return f"{one.held.unknown}, so nothing is known of that part of the device's work"
    if alone and talk and span.left_out:
        return "whether it and those left out wait for each other cannot be told from one of them"
    if not talk and max(span.world_size, len(span.summaries)) > 1:
        whose = "its" if alone else "their"
        return f"none of {whose} kernels is known to be communication, so nobody knows who waits for whom"
    return ""


def _without_iterations(verdict: Verdict, span: Span, startup: str) -> Verdict:
    """Return an undetermined verdict for a recording without iterations; its former sentence becomes a note."""
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
    """Return an undetermined verdict for iterations in which the process was still being set up."""
    summary = "The recorded iterations hold the start of the process; record later ones (schedule(wait=..., warmup=2))."
    return msgspec.structs.replace(verdict, verdict="undetermined", summary=summary, findings=())


def _without_lost_work(verdict: Verdict, span: Span) -> Verdict:
    """Withdraw causes that rest on an idle device if the file says that kernels were lost."""
    lossy = [
        one
        for one in span.summaries
        if one.held.damage and not one.held.launches_many and sum(one.held.kernels) < _WHOLE * sum(one.held.launches)
    ]
    causes = [finding for finding in verdict.findings if finding.role == "cause"]
    is_open = verdict.verdict == "undetermined" and span.world_size <= len(span.summaries)
    if not lossy or not (is_open or verdict.verdict == "slow"):
        return verdict
    if any(finding.cause not in _OF_IDLE_DEVICES for finding in causes):
        return verdict
    first = lossy[0]
    summary = (
        f"The recording of worker {first.rank} is damaged ({first.held.damage[-1]}): a device that seems to idle may "
        "have worked. Record it again."
    )
    notes = (*verdict.coverage.notes, f"Taken as it was recorded: {verdict.summary}")
    coverage = msgspec.structs.replace(verdict.coverage, notes=notes)
    return msgspec.structs.replace(verdict, verdict="undetermined", summary=summary, findings=(), coverage=coverage)


def _has_none(span: Span) -> bool:
    """Return whether no iterations were found."""
    return all(one.found_by == "span" for one in span.summaries)


def _may_say_slow(verdict: Verdict, span: Span, starts_up: bool) -> bool:
    """Whether causes may be called what makes the job slow.

    What all workers do costs a share of an iteration only if there are iterations, and not while a process is set up.
    A worker that its peers wait for is late whatever they do.
    """
    causes = [finding for finding in verdict.findings if finding.role == "cause"]
    is_compared = any(finding.scope == "some" and len(span.summaries) > len(finding.workers) for finding in causes)
    return is_compared or not (_has_none(span) or starts_up)


def _startup(span: Span) -> str:
    """Return a sentence on start-up work, which is done once per process; "" if it is little."""
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
    """Return a sentence on the workers that are not compared."""
    ranks: Sequence[int] = sorted(span.left_out)
    reasons = {span.left_out[rank] for rank in ranks}
    whose = "its recording" if len(ranks) == 1 else "their recordings"
    why = f": {whose} {next(iter(reasons))}" if len(ranks) == 1 else ""
    who = worker_list(ranks)
    return f"{who[0].upper()}{who[1:]} {'is' if len(ranks) == 1 else 'are'} left out{why}."
