"""The verdict of a whole job from the verdicts of its windows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from eroica import __version__
from eroica.model.verdict import Coverage, IterationTimes, Verdict

#: Iterations that end so many times longer than the best are not called healthy, though nobody looked at them.
_NOT_HEALTHY = 1.5


def final_verdict(
    job: str,
    verdicts: Mapping[int, Verdict],
    workers_expected: int,
    workers_seen: int,
    *,
    standing: Collection[int] = (),
    passed: Collection[int] = (),
    slowed: float = 1.0,
) -> Verdict:
    """The verdict that the history of windows supports best.

    A job that stood still at its end, or lost a worker, ended for that reason whatever it suffered from before. Else
    verdicts that name the same cause on the same workers add up their confidence; the newest of the heaviest group
    stands. Without any cause: undetermined if a window said so last, else healthy.

    Args:
        job: Name of the job.
        verdicts: Window id -> verdict, without the baseline window.
        workers_expected: World size, 0 if never learned.
        workers_seen: Workers that ever beat.
        standing: Windows of a standstill that lasted to the end, its cause known or not, or of a death that ended the
            job.
        passed: Windows of standstills that ended by themselves; they count for nothing.
        slowed: How many times the best mean iteration the last one was, on the worker where that is most.
    """
    last = max((window_id for window_id in standing if window_id in verdicts), default=None)
    if last is not None:
        return verdicts[last]
    counting = {window_id: verdict for window_id, verdict in sorted(verdicts.items()) if window_id not in passed}
    weights: dict[tuple[str, tuple[int, ...], str], float] = {}
    newest: dict[tuple[str, tuple[int, ...], str], Verdict] = {}
    for verdict in counting.values():
        cause = verdict.cause
        if cause is None:
            continue
        key = (cause.cause, cause.workers if cause.scope == "some" else (), cause.scope)
        weights[key] = weights.get(key, 0.0) + cause.confidence
        newest[key] = verdict
    if weights:
        return newest[max(weights, key=lambda key: weights[key])]
    if counting:
        return counting[max(counting)]
    return _nothing_looked_wrong(job, workers_expected, workers_seen, len(verdicts), slowed)


def _nothing_looked_wrong(
    job: str, workers_expected: int, workers_seen: int, stood_still: int, slowed: float
) -> Verdict:
    notes: tuple[str, ...] = ()
    if workers_seen and slowed >= _NOT_HEALTHY:
        summary = (
            f"Iterations ended {slowed:.1f} times as long as the job's best, but it was over before a window could "
            "show why."
        )
    elif workers_seen and stood_still:
        times = "once" if stood_still == 1 else f"{stood_still} times"
        summary = f"Healthy: {workers_seen} workers never looked slow; the job stood still {times}, and went on."
    elif workers_seen:
        summary = f"Healthy: iterations of {workers_seen} workers never looked slow, so no window was opened."
    else:
        summary = "No worker was seen: no process finished an optimizer step or called eroica.step()."
        notes = (
            "a process becomes a worker at its first torch optimizer step or eroica.step()",
            "if there were any, look into log/ in the run directory",
        )
    return Verdict(
        eroica_version=__version__,
        job=job,
        verdict="healthy" if workers_seen and slowed < _NOT_HEALTHY else "undetermined",
        summary=summary,
        window=None,
        iteration=IterationTimes(),
        coverage=Coverage(workers_expected=workers_expected, workers_reported=workers_seen, notes=notes),
    )


def lost_verdict(job: str, problems: Sequence[str]) -> Verdict:
    """The verdict of a job whose collector failed."""
    return Verdict(
        eroica_version=__version__,
        job=job,
        verdict="undetermined",
        summary="The job was not watched to its end: Eroica's collector is gone.",
        window=None,
        iteration=IterationTimes(),
        coverage=Coverage(workers_expected=0, workers_reported=0, notes=tuple(problems)),
    )


def stamped(verdict: Verdict, trigger_to_verdict_s: float) -> Verdict:
    """The verdict with the time that passed between trigger and verdict, the window itself excluded."""
    cost = msgspec.structs.replace(verdict.cost, trigger_to_verdict_s=round(trigger_to_verdict_s, 3))
    return msgspec.structs.replace(verdict, cost=cost)
