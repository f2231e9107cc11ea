"""A second look at the iterations of a recording that are far longer than its others, read as a window of their own.

Everywhere else the usual iteration is judged. What happens in a few of them (a loader that runs dry, a checkpoint, a
compilation) hides there, however long it lasts. So where such iterations take a good part of the recorded time, the
files are read once more: the long iterations alone are the window, and the others are what the job is like when it is
healthy. What comes once may be anything, and is told; what comes again is a cause.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from eroica.localize.fleet import cut_out, shared_iterations
from eroica.model.pattern import WorkerPattern
from eroica.model.shares import percent
from eroica.model.verdict import Finding, Verdict
from eroica.model.window import FAR_SLOWER
from eroica.model.words import milliseconds

#: What gains no more than so many times as much tells the same time.
_AS_MUCH = 1.25
#: Reads the recordings with the iterations of these numbers only, and with the others only.
ReadApart = Callable[[Sequence[int]], tuple[Sequence[WorkerPattern], Sequence[WorkerPattern]]]
#: Judges patterns as a window, compared with others of the same workers.
Judge = Callable[[Sequence[WorkerPattern], Sequence[WorkerPattern]], Verdict]


@dataclass(frozen=True, eq=False)
class LongIterations:
    """Iterations that are far longer than the others of a recording.

    Attributes:
        numbers: Theirs.
        others: Those of the others.
        runs: How often they come; what follows each other counts once.
        long_us: Their mean length.
        usual_us: That of the others.
        time: Their share of the recorded time.
    """

    numbers: tuple[int, ...]
    others: tuple[int, ...]
    runs: int
    long_us: float
    usual_us: float
    time: float

    @property
    def beyond(self) -> float:
        """Share of the recorded time that they take beyond the usual."""
        return self.time * (1 - self.usual_us / self.long_us)

    @property
    def is_most(self) -> bool:
        """With them the mean iteration is far longer than the usual one."""
        return (1 - self.beyond) * FAR_SLOWER <= 1


def find_long_iterations(patterns: Sequence[WorkerPattern]) -> LongIterations | None:
    """The iterations that last far longer than the median one on some worker; None if there are none, or half are.

    Args:
        patterns: Of all workers of a recording.
    """
    offset_W, count, lengths, _ = shared_iterations(patterns)
    if not count:
        return None
    length_WI = cut_out(lengths, offset_W, count)
    usual_W1 = np.median(length_WI, axis=1, keepdims=True)
    is_long_I = np.asarray((length_WI >= FAR_SLOWER * usual_W1).any(axis=0), dtype=np.bool_)
    if not is_long_I.any() or 2 * is_long_I.sum() > is_long_I.size:
        return None
    numbers = patterns[0].first_iteration + int(offset_W[0]) + np.arange(count)
    return LongIterations(
        numbers=tuple(numbers[is_long_I].tolist()),
        others=tuple(numbers[~is_long_I].tolist()),
        runs=int(np.count_nonzero(is_long_I & ~np.append(False, is_long_I[:-1]))),
        long_us=float(length_WI[:, is_long_I].mean()),
        usual_us=float(length_WI[:, ~is_long_I].mean()),
        time=float(length_WI[:, is_long_I].sum() / length_WI.sum()),
    )


def with_long_iterations(
    verdict: Verdict, patterns: Sequence[WorkerPattern], read: ReadApart, judge: Judge, min_gain: float
) -> Verdict:
    """The verdict on all iterations, with what is found in the long ones where it tells less than these cost.

    Args:
        verdict: On the recording as a whole.
        patterns: What it rests on.
        read: Reads the files again.
        judge: From patterns to a verdict.
        min_gain: Share of the time that long iterations must cost.
    """
    found = find_long_iterations(patterns)
    named = [one for one in verdict.findings if one.role == "cause" and one.cause != "unknown"]
    told = sum(one.gain or 0.0 for one in named)
    if found is None or found.beyond < max(min_gain, _AS_MUCH * told):
        return verdict
    long, usual = read(found.numbers)
    if len(usual) < len(patterns):  # a file that was there at first cannot be read any more
        return verdict
    is_alike = _do_as_much(usual, long)
    inner = judge(long, usual if is_alike else ())
    causes = [finding for finding in inner.findings if finding.role == "cause"]
    if inner.verdict == "slow" and causes and found.runs > 1:
        return _with_causes(verdict, found, inner)
    if verdict.verdict == "slow" or not is_alike:
        return verdict
    once = " Once does not tell whether it comes again." if found.runs == 1 else ""
    nothing = inner.verdict == "healthy"
    text = f"{_how_many(found)}, {percent(found.beyond)} of the recorded time"
    text = f"{text}; nothing recorded accounts for it.{once}" if nothing else f"{text}. Of these: {inner.summary}{once}"
    if found.is_most:  # what was said of the mean iteration holds for none of them
        return msgspec.structs.replace(verdict, verdict="undetermined", summary=text, considered=inner.considered)
    return msgspec.structs.replace(verdict, summary=f"{verdict.summary} {text}")


def _do_as_much(usual: Sequence[WorkerPattern], long: Sequence[WorkerPattern]) -> bool:
    """Whether workers meet in usual iterations, too; else those are steps of an accumulation, and no healthy past."""
    return any(one.collectives for one in usual) or not any(one.collectives for one in long)


def _with_causes(verdict: Verdict, found: LongIterations, inner: Verdict) -> Verdict:
    """Slow, by what is found in the long iterations and by what was known before, in order of falling gain."""
    long = [
        msgspec.structs.replace(
            finding,
            gain=None if finding.gain is None else round(finding.gain * found.time, 4),
            evidence=(f"{_how_many(found)}; what follows is of these.", *finding.evidence),
        )
        for finding in inner.findings
    ]
    known = next(
        (one for one in verdict.findings if (one.cause, one.workers) == (long[0].cause, long[0].workers)), None
    )
    if known is not None and _AS_MUCH * (known.gain or 0.0) >= (long[0].gain or 0.0):
        return verdict  # it says so of all iterations
    before = _beside(verdict.findings, long)
    first, second = (long, before) if _most(long) >= _most(before) else (before, long)
    summary = verdict.summary
    if first is long:
        gain = percent(long[0].gain or 0.0)
        summary = f"{_how_many(found)}. Of these: {inner.summary} In the mean of all iterations that is {gain}."
    return msgspec.structs.replace(
        verdict, verdict="slow", summary=summary, findings=(*first, *_after(first, second)), considered=inner.considered
    )


def _beside(findings: Sequence[Finding], long: Sequence[Finding]) -> list[Finding]:
    """What was found in all iterations, less causes that tell the same time of the same workers, and their symptoms."""
    costs = {one.workers: one.gain or 0.0 for one in reversed(long) if one.role == "cause"}
    same = {
        one.order
        for one in findings
        if one.role == "cause" and one.workers in costs and (one.gain or 0.0) <= _AS_MUCH * costs[one.workers]
    }
    gone = same | {order for one in findings if one.order in same for order in one.explains}
    kept = [one for one in findings if one.order not in gone]
    place = {one.order: at for at, one in enumerate(kept, 1)}
    return [
        msgspec.structs.replace(
            one, order=place[one.order], explains=tuple(place[other] for other in one.explains if other in place)
        )
        for one in kept
    ]


def _after(first: Sequence[Finding], second: Sequence[Finding]) -> list[Finding]:
    """The second ones, numbered on."""
    by = len(first)
    return [
        msgspec.structs.replace(one, order=one.order + by, explains=tuple(other + by for other in one.explains))
        for one in second
    ]


def _most(findings: Sequence[Finding]) -> float:
    return max((finding.gain or 0.0 for finding in findings if finding.role == "cause"), default=0.0)


def _how_many(found: LongIterations) -> str:
    count, all_of_them = len(found.numbers), len(found.numbers) + len(found.others)
    who = f"{count} of the {all_of_them} recorded iterations take{'s' if count == 1 else ''}"
    return f"{who} {milliseconds(found.long_us / 1e3)} instead of {milliseconds(found.usual_us / 1e3)}"
