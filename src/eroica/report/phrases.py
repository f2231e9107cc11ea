"""What a verdict says, as clauses: shared by the text in a terminal and the page. Names are cleaned in here."""

from __future__ import annotations

from collections.abc import Iterator

from eroica.model.shares import percent
from eroica.model.verdict import NO_FUNCTION, Finding, Verdict, VerdictWindow
from eroica.report.words import change, clean, milliseconds, seconds, sentence, worker_list


def stands_still(verdict: Verdict) -> bool:
    """The job made no iteration while it was looked at: no pattern, no gain, nothing to pay."""
    return verdict.window is not None and verdict.window.kind == "blocked"


def is_recorded(verdict: Verdict) -> bool:
    """Read from files: nobody looked at a running job."""
    return verdict.window is not None and verdict.window.kind == "trace"


def opening(word: str, summary: str) -> str:
    """The sentence without a leading "Healthy: ", which the word before it says already."""
    text = sentence(summary)
    head, colon, rest = text.partition(": ")
    if colon and head.lower() == word:
        text = rest[:1].upper() + rest[1:]
    return text


def window_facts(verdict: Verdict) -> list[str]:
    """Which iterations, or since when: one clause each."""
    window = verdict.window
    if window is None:
        return ["no window was needed"]
    if window.kind == "blocked":
        return list(_standstill(window))
    if window.first_iteration is None or window.last_iteration is None:
        return [f"{window.kind} window of {seconds(window.duration_s)}"]
    if window.kind == "trace":
        return [_recorded(window.first_iteration, window.last_iteration), seconds(window.duration_s)]
    last = max(window.last_iteration - 1, window.first_iteration)
    if verdict.found_by == "communication":
        return [f"at iteration {last}, by the last {seconds(window.duration_s)} of communication"]
    return [f"iterations {window.first_iteration}–{last}, {seconds(window.duration_s)}"]


def _recorded(first: int, last: int) -> str:
    """What a trace holds: the last iteration is not among them."""
    if last - first <= 1:
        return f"one recorded iteration ({first})"
    return f"{last - first} recorded iterations ({first}–{last - 1})"


def _standstill(window: VerdictWindow) -> Iterator[str]:
    """Where the job stands and since when."""
    first, last = window.first_iteration, window.last_iteration
    if first is not None and last is not None:
        yield f"stands after iteration {first}" if first == last else f"stands after iterations {first} to {last}"
    if window.duration_s:
        yield f"silent for {seconds(window.duration_s)}"


def pace_facts(verdict: Verdict) -> list[str]:
    """The mean iteration now and before, as far as they are known."""
    before, now = verdict.iteration.baseline_ms, verdict.iteration.current_ms
    if now is None and before and stands_still(verdict):
        return [f"{milliseconds(before)} per iteration until then"]
    if now is None:
        return []
    if not before:
        return [f"{milliseconds(now)} per iteration"]
    rest = verdict.iteration.rest_ms
    unexplained = [f"{milliseconds(rest)} longer without a cause"] if rest else []
    return [f"{milliseconds(now)} per iteration, {milliseconds(before)} before ({change(before, now)})", *unexplained]


def whereabouts(finding: Finding, *, everybody: bool = True) -> str:
    """Workers and hosts of a finding.

    Args:
        finding: Cause or symptom.
        everybody: Whether a finding of scope "all" may say so, though some workers were not heard.
    """
    hosts = [clean(host, 60) for host in finding.hosts]
    on = f" on {', '.join(hosts[:4])}{f' and {len(hosts) - 4} more hosts' if len(hosts) > 4 else ''}" if hosts else ""
    if finding.scope == "rotating":
        return f"moves from worker to worker{on}; none is to blame alone"
    if finding.scope == "all" and len(finding.workers) == 1:
        return worker_list(finding.workers) + on
    if finding.scope == "all" and finding.workers:
        return (f"all workers{on}") if everybody else worker_list(finding.workers) + on
    if finding.scope == "all":
        return f"how the job is laid out{on}; no worker is to blame"
    if finding.cause == "slow-link" and finding.role == "cause" and on:
        return f"the network link{on}; behind it {worker_list(finding.workers)}"
    return worker_list(finding.workers) + on


def in_short(finding: Finding) -> str:
    """What and where, for a place that is short of room: "slow-data-loading on worker 2"."""
    named = worker_list(finding.workers) or "some workers"
    where = {"all": "all workers", "rotating": "changing workers"}.get(finding.scope, named)
    return f"{clean(finding.cause, 60)} on {where}"


def price(finding: Finding, iteration_ms: float | None) -> str:
    """What a cause costs: "22 % of the iteration, 21.9 ms each time"."""
    if finding.gain is None:
        return "unknown"
    cost = f"{percent(finding.gain)} of the iteration"
    return cost if iteration_ms is None else f"{cost}, {milliseconds(finding.gain * iteration_ms)} each time"


def awaited(cause: Finding) -> str:
    """What a symptom waits for: the cause's function, or its workers where no function is known."""
    return clean(cause.function.name, 60) if cause.function.name != NO_FUNCTION else worker_list(cause.workers)
