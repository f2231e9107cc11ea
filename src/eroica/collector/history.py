"""The verdict of a whole job from the verdicts of its windows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from eroica import __version__
from eroica.collector.recurrence import Course, courses_in, follow_causes, same_place
from eroica.model.lost import Lost
from eroica.model.shares import percent
from eroica.model.verdict import (
    NAMED,
    NO_FUNCTION,
    Coverage,
    Finding,
    Hypothesis,
    IterationTimes,
    Recurrence,
    Verdict,
    VerdictWord,
)
from eroica.model.words import history, milliseconds, plural, window_list, worker_list

#: Last means that are so many times the lowest one are not called healthy, though nobody looked: the lowest of many
#: lies far below what a job does for long.
_NOT_HEALTHY = 1.5
#: From here on it is said.
_WORTH_A_WORD = 1.1
#: Two causes of which the lighter weighs at least so much of the heavier: the history does not decide between them.
_TIE = 0.75
#: Windows in a row, the last ones, in which a cause must have been seen to have taken the place of another.
_SUCCEEDS = 2
#: Windows that a sentence lists.
_MOST_SHOWN = 8
#: A job whose baseline window already shows a cause of this gain is looked at again, for longer.
_EARLY_GAIN = 0.1


class Hints(NamedTuple):
    """Facts known of a job beside its windows.

    Attributes:
        slowed: How many times the best mean iteration the last one was, on the worker where that is most.
        loss: Which workers vanished from a command that failed, if nobody saw who was first.
        missed: Why the last window that was opened for a slowdown came to nothing; "" if none did.
        failure: How the command failed, and who ended first; "" if it did not.
        gaps: Which workers were not watched all along, and why (`eroica.collector.lives`).
        pace: The job's end against its best level, over its whole life, milliseconds; None where it was too short.
        unseen: Why no window was captured, if any was tried; "" else.
        look: The verdict on the last baseline window; None if none was judged.
    """

    slowed: float = 1.0
    loss: str = ""
    missed: str = ""
    failure: str = ""
    gaps: tuple[str, ...] = ()
    pace: Lost | None = None
    unseen: str = ""
    look: Verdict | None = None

    @property
    def ended(self) -> str:
        """Say how long iterations took at the end, by the numbers of the record where it has any; "" if as ever."""
        ratio = self.slowed if self.pace is None else self.pace.now / self.pace.before
        if self.slowed >= _NOT_HEALTHY > ratio:
            return f"ended {self.slowed:.1f} times as long as the best of one worker"
        times = _times(self.pace)
        now, best = (f" ({milliseconds(ms)})" if ms else "" for ms in (times.current_ms, times.best_ms))
        return f"ended {ratio:.1f} times as long{now} as the job's best{best}" if ratio >= _WORTH_A_WORD else ""

    @property
    def ended_slow(self) -> bool:
        """Iterations ended longer than at their best by more than noise."""
        return self.slowed >= _NOT_HEALTHY or (self.pace is not None and self.pace.is_sure)

    @property
    def is_doubtful(self) -> bool:
        """Without a window that says so, such a job is not called healthy."""
        return self.ended_slow or bool(self.loss)


NO_HINTS = Hints()


def final_verdict(
    job: str,
    verdicts: Mapping[int, Verdict],
    workers_expected: int,
    workers_seen: int,
    *,
    standing: Collection[int] = (),
    passed: Collection[int] = (),
    hints: Hints = NO_HINTS,
    former: Verdict | None = None,
) -> Verdict:
    """The verdict that the history of windows supports best.

    A job that stood still at its end, or lost a worker, ended for that reason whatever it suffered from before. Else
    causes are followed through the windows (`eroica.collector.recurrence`). The cause that is expected to have cost
    most stands: the largest sum of confidences times gains, over the windows that it led. All windows together give it
    its confidence (`eroica.collector.recurrence.believe`), and a sentence says how often it was seen. A cause that
    moves from worker to worker blames none. Two causes that weigh alike, point at different places and never show in
    one window: undetermined, unless the later one has clearly taken the place of the earlier. Without any cause it is
    healthy only if a window was judged, none was undetermined last, and iterations did not end far longer than the
    best. A command that failed is never called healthy.

    Args:
        job: Name of the job.
        verdicts: Window id -> verdict, without the baseline window.
        workers_expected: World size, 0 if never learned.
        workers_seen: Workers that were watched all along.
        standing: Windows of a standstill that lasted to the end, its cause known or not, or of a death that ended the
            job.
        passed: Windows of standstills that ended by themselves; they count for nothing.
        hints: What is known beside windows.
        former: What a collector before this one concluded. It stands where no worker has reported since.
    """
    if former is not None and not workers_expected:
        return _in_full(former, hints._replace(gaps=()))  # it has told those that it saw
    last = max((window_id for window_id in standing if window_id in verdicts), default=None)
    if last is not None:
        return _in_full(verdicts[last], hints)
    counting = _not_refuted({window_id: one for window_id, one in sorted(verdicts.items()) if window_id not in passed})
    found = _of_causes(counting)
    if found is None:
        coverage = Coverage(workers_expected=workers_expected, workers_reported=workers_seen)
        found = _without_cause(job, verdicts, counting, coverage, hints)
    return _in_full(found, hints)


def _not_refuted(verdicts: Mapping[int, Verdict]) -> dict[int, Verdict]:
    """Without what communication alone found slow where a later window of iterations found nothing wrong."""
    healthy = [window_id for window_id, one in verdicts.items() if one.verdict == "healthy"]
    last = max((window_id for window_id in healthy if verdicts[window_id].found_by != "communication"), default=-1)
    return {
        window_id: one
        for window_id, one in verdicts.items()
        if window_id > last or one.verdict != "slow" or one.found_by != "communication"
    }


def _of_causes(counting: Mapping[int, Verdict]) -> Verdict | None:
    """The verdict that the causes of windows support; None without any cause.

    The heaviest comes first; of equals slow iterations before a standstill that the job survived, then the newest.
    """
    led = [course for course in follow_causes(counting) if course.leads]
    led.sort(key=lambda one: (one.weight, not one.blocked, one.best.window_id), reverse=True)
    if not led:
        return None
    first, rival = led[0], next((one for one in led[1:] if _is_rival(led[0], one)), None)
    if rival is None or _succeeds(first, rival):
        return _supported(first, counting)
    return _supported(rival, counting) if _succeeds(rival, first) else _undecided(first, rival, counting)


def _without_cause(
    job: str, verdicts: Mapping[int, Verdict], counting: Mapping[int, Verdict], coverage: Coverage, hints: Hints
) -> Verdict:
    told = {window_id: one for window_id, one in counting.items() if one.coverage.workers_reported} or counting
    if told:  # a window that the end cut off before it opened takes back nothing
        final = told[max(told)]
        if final.verdict == "healthy" and (final.findings or not hints.ended_slow):
            return final
        if final.verdict == "healthy":
            final = _nothing_looked_wrong(job, {}, coverage, hints, f"window {max(told)} found nothing wrong")
        weighed = (one.considered for _, one in sorted(told.items(), reverse=True) if one.considered)
        return msgspec.structs.replace(final, considered=next(weighed, ()))
    if hints.look is not None and looks_slow(hints.look) and not hints.is_doubtful:
        return _noted(
            hints.look,
            "this rests on the job's first, short window; the job was over before a longer one could confirm it",
        )
    return _nothing_looked_wrong(job, verdicts, coverage, hints)


def looks_slow(look: Verdict) -> bool:
    """Return whether the verdict on a baseline window shows a job that is slow from its start."""
    return look.verdict == "slow" and look.cause is not None and (look.cause.gain or 0.0) >= _EARLY_GAIN


def _is_rival(first: Course, other: Course) -> bool:
    """Return whether both causes weigh alike and would send a person to different places."""
    return (
        other.blocked == first.blocked
        and other.weight >= _TIE * first.weight
        and first.windows.isdisjoint(other.windows)
        and not same_place(first.best.finding, other.best.finding)
    )


def _succeeds(later: Course, earlier: Course) -> bool:
    """Return whether the later cause was seen again and again after the earlier one had gone."""
    return len(later.backing) >= _SUCCEEDS and min(later.backing) > max(earlier.backing)


def _supported(leader: Course, verdicts: Mapping[int, Verdict]) -> Verdict:
    """The verdict of the window that shows the cause best, with what all windows say of its causes."""
    verdict = verdicts[leader.best.window_id]
    if len(verdicts) < 2 and verdict.verdict == "blocked":
        return verdict
    courses = courses_in(leader.best.window_id, verdicts)
    findings = tuple(
        _mark(finding, courses[finding.order]) if finding.order in courses else finding for finding in verdict.findings
    )
    recurrence = leader.recurrence(leader.best.finding)
    summary = _wandering(leader.best.finding) if recurrence.kind == "rotating" else verdict.summary
    said = _seen(recurrence, verdicts)
    return msgspec.structs.replace(verdict, findings=findings, summary=" ".join(filter(None, (summary, said))))


def _mark(finding: Finding, course: Course) -> Finding:
    recurrence = course.recurrence(finding)
    marked = msgspec.structs.replace(finding, recurrence=recurrence, confidence=course.belief(finding))
    if recurrence.kind != "rotating":
        return marked
    evidence = (_who_when(course), *finding.evidence)
    return msgspec.structs.replace(marked, workers=(), scope="rotating", evidence=evidence)


def _who_when(course: Course) -> str:
    """Say which workers had the cause in which window, the newest last."""
    shown = course.sightings[-_MOST_SHOWN:]
    more = f", after {len(course.sightings) - len(shown)} earlier ones" if len(shown) < len(course.sightings) else ""
    who = (f"{worker_list(one.finding.workers)} in window {one.window_id}" for one in shown)
    return f"It was {', '.join(who)}{more}."


def _wandering(finding: Finding) -> str:
    where = f" in {finding.function.name}" if finding.function.name != NO_FUNCTION else ""
    cost = f" It costs about {percent(finding.gain)} of an iteration." if finding.gain is not None else ""
    return f"{finding.cause}{where} moves from worker to worker, and none of them is to blame alone.{cost}"


def _seen(recurrence: Recurrence, verdicts: Mapping[int, Verdict]) -> str:
    """Say how often the cause was seen, in a sentence; "" where only one window looked."""
    if recurrence.kind == "single":
        return ""
    after = sum(at > recurrence.windows[-1] and verdict.verdict != "undetermined" for at, verdict in verdicts.items())
    gone = f", not in the last {'one' if after == 1 else after}" if after else ""
    gone = gone or (", the last of them" if recurrence.kind == "one-off" else "")
    return f"{history(recurrence)}{gone}."


def _undecided(first: Course, other: Course, verdicts: Mapping[int, Verdict]) -> Verdict:
    """Windows that contradict each other: both causes side by side, in the frame of the newest of the two."""
    both = sorted((first, other), key=lambda one: one.best.window_id)
    newest = verdicts[both[-1].best.window_id]
    findings = tuple(
        msgspec.structs.replace(_mark(one.best.finding, one), order=order, explains=())
        for order, one in enumerate(both, 1)
    )
    summary = (
        f"The windows contradict each other: {' and '.join(_claim(one) for one in both)}. Another window while the job "
        "is slow would settle it (eroica profile)."
    )
    named = [each for one in (first, other) for each in _weighed(one, verdicts)]
    considered = (*named, *(one for one in newest.considered if one not in named))
    return msgspec.structs.replace(
        newest, verdict="undetermined", summary=summary, findings=findings, considered=considered
    )


def _weighed(leader: Course, verdicts: Mapping[int, Verdict]) -> list[Hypothesis]:
    """Return the hypothesis that a leader was in the window that shows it best; none where nothing was weighed."""
    what, whom = leader.best.finding.cause, leader.best.finding.workers
    weighed = verdicts[leader.best.window_id].considered
    return [one for one in weighed if one.decision == NAMED and (one.cause, one.workers) == (what, whom)]


def _claim(leader: Course) -> str:
    finding = leader.best.finding
    where = worker_list(finding.workers) if finding.scope == "some" else f"{finding.scope} workers"
    where = "changing workers" if finding.scope == "rotating" or leader.wanders else where
    return f"{window_list(leader.backing)} found {finding.cause} ({finding.function.name}) on {where}"


def _in_full(verdict: Verdict, hints: Hints) -> Verdict:
    """The verdict with how the command failed, and with who was not watched; where it has a cause, as notes."""
    failure = f"{hints.failure[:1].upper()}{hints.failure[1:]}." if hints.failure else ""
    gaps = f"Not watched all along: {'; '.join(hints.gaps)}." if hints.gaps else ""
    if verdict.verdict not in ("healthy", "undetermined") or verdict.findings:
        return _noted(verdict, *(sentence.removesuffix(".") for sentence in (failure, gaps) if sentence))
    word, known = verdict.verdict, verdict.summary
    if hints.loss and hints.loss in known:
        failure = ""
    elif failure:
        word = "undetermined"
        known = f"Before that: {known.removeprefix('Healthy: ')}" if known.startswith("Healthy: ") else known
    breakdown = verdict.breakdown or (hints.look.breakdown if hints.look is not None else None)
    summary = " ".join(filter(None, (failure, known, gaps)))
    return msgspec.structs.replace(verdict, verdict=word, summary=summary, breakdown=breakdown)


def _noted(verdict: Verdict, *notes: str) -> Verdict:
    coverage = msgspec.structs.replace(verdict.coverage, notes=(*notes, *verdict.coverage.notes))
    return msgspec.structs.replace(verdict, coverage=coverage)


def _survived(stood_still: Mapping[int, Verdict]) -> tuple[str, str]:
    """Say how often the job stood still and went on, and what held it the last time; "" for what is not known.

    Several windows may look at one standstill, which has one iteration.
    """
    places = {at if one.window is None else one.window.last_iteration for at, one in stood_still.items()}
    times = "once" if len(places) == 1 else f"{len(places)} times"
    told = [f" Window {at} says what held it: {one.summary}" for at, one in sorted(stood_still.items()) if one.cause]
    return f"; the job stood still {times}, and went on" if places else "", told[-1] if told else ""


def _nothing_looked_wrong(
    job: str, stood_still: Mapping[int, Verdict], coverage: Coverage, hints: Hints, looked: str = ""
) -> Verdict:
    notes: tuple[str, ...] = ()
    seen = coverage.workers_reported
    who = f"{seen} of {coverage.workers_expected} workers" if hints.gaps else plural(seen, "worker")
    look, ended = hints.look, hints.ended
    is_judged = look is not None and look.verdict != "undetermined"
    word: VerdictWord = "healthy" if seen and is_judged and not hints.is_doubtful else "undetermined"
    if seen and hints.ended_slow:
        came = f"the window opened for it came to nothing ({hints.missed})" if hints.missed else ""
        nothing = "no window was opened" if look is None else "the only window was taken before"
        why = "; ".join(filter(None, (looked, came))) or nothing
        summary = f"Iterations {ended}; why was not seen: {why}."
    elif seen and hints.loss:
        summary = f"Iterations never looked slow, but {hints.loss}; the command's own output may say it."
    elif seen:
        stood, why = _survived(stood_still)
        course = f"{ended}, no more than they vary by" if ended else "never got slower"
        start = "No window was judged: i" if look is None else "Healthy: i" if word == "healthy" else "I"
        shown = "" if look is None else f" {_shown(look, word)}"
        summary = f"{start}terations of {who} {course}{stood}.{shown}{why}"
        notes = (f"no window was captured: {hints.unseen}",) if hints.unseen else ()
        slow = "a job that is slow on all workers from its start shows no change; see --expected-iteration-s"
        notes = (*notes, *(look.coverage.notes if look is not None else ()), slow)
    elif hints.gaps:
        summary = "No worker was watched long enough to tell whether it was slow."
    else:
        summary = (
            "No worker was seen: no process stepped an optimizer, exchanged data with others, or trained for long."
        )
        notes = (
            "a process becomes a worker at its first torch optimizer step, eroica.step() or torch.distributed "
            "operation, or when it has loaded batches or run backward passes for 10 s",
            "if there were any, look into log/ in the run directory",
        )
    base = look or _empty(job, summary, coverage)
    return msgspec.structs.replace(
        base,
        verdict=word,
        summary=summary,
        iteration=base.iteration if hints.pace is None else _times(hints.pace),
        coverage=msgspec.structs.replace(coverage, notes=notes),
        findings=(),
    )


def _empty(job: str, summary: str, coverage: Coverage) -> Verdict:
    return Verdict(
        eroica_version=__version__, job=job, verdict="undetermined", summary=summary, window=None,
        iteration=IterationTimes(), coverage=coverage,
    )  # fmt: skip


def _shown(look: Verdict, word: VerdictWord) -> str:
    """Say what the baseline window showed, in a sentence."""
    if word != "healthy":
        return f"The only window does not decide: {look.summary}"
    cost = f" but {look.cause.cause}, {percent(look.cause.gain or 0.0)}" if look.cause is not None else ""
    return f"In their baseline window no worker was slower than its peers, and no function stood out{cost}."


def _times(pace: Lost | None) -> IterationTimes:
    if pace is None:
        return IterationTimes()
    before_ms, now_ms, rest_ms = (round(ms, 3) for ms in (pace.before, pace.now, pace.rest(0.0)))
    return IterationTimes(best_ms=before_ms, baseline_ms=before_ms, current_ms=now_ms, rest_ms=rest_ms)


def lost_verdict(job: str, problems: Sequence[str], *, was_watched: bool = True) -> Verdict:
    """The verdict of a job whose collector failed, or that was never watched."""
    gone = (
        "The job was not watched to its end: Eroica's collector is gone. What it had found lies in the run "
        "directory (eroica report); its log is in log/."
    )
    summary = gone if was_watched else f"Nothing was looked at: {'; '.join(problems)}."
    return _empty(job, summary, Coverage(workers_expected=0, workers_reported=0, notes=tuple(problems)))


def stamped(verdict: Verdict, trigger_to_verdict_s: float) -> Verdict:
    """The verdict with the time that passed between trigger and verdict, the window itself excluded."""
    cost = msgspec.structs.replace(verdict.cost, trigger_to_verdict_s=round(trigger_to_verdict_s, 3))
    return msgspec.structs.replace(verdict, cost=cost)
