"""What a verdict says, as clauses and rows of numbers, for the terminal and the page. Names are clean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from eroica.model.shares import percent
from eroica.model.verdict import (
    NAMED,
    NO_FUNCTION,
    UNMEASURED,
    BreakdownItem,
    Finding,
    Hypothesis,
    Verdict,
)
from eroica.model.words import amount, byte_size, change, clean, history, milliseconds, seconds, sentence, worker_list

#: Head and foot of the breakdown.
BREAKDOWN = (
    "What an iteration is made of, and its largest functions",
    "No fault: nothing says that they are too long.",
)
#: What is being done about a window, or how it ended, where the phase's own word says too little.
PHASES = {
    "probe": "measuring one iteration",
    "window": "capturing",
    "patterns": "summarizing",
    "analysis": "comparing",
    "looking": "looking at stacks",
    "examining": "comparing stacks",
    "passed": "done, it went on by itself",
    "restarted": "done, the job was started again",
}
#: Smaller parts of an iteration are not told.
_LEAST_SHARE = 0.005


def stands_still(verdict: Verdict) -> bool:
    """Return whether the job made no iteration while Eroica looked at it."""
    return verdict.window is not None and verdict.window.kind == "blocked"


def is_recorded(verdict: Verdict) -> bool:
    """Return whether the verdict is on recorded files, not on a running job."""
    return verdict.window is not None and verdict.window.kind == "trace"


def without_word(word: str, summary: str) -> str:
    """Return the sentence without a leading "Healthy: ", which stands before it."""
    text = sentence(summary)
    head, colon, rest = text.partition(": ")
    return rest if colon and head.lower() == word else text


def opening(word: str, summary: str) -> str:
    """Return the same with a capital letter."""
    text = without_word(word, summary)
    return text[:1].upper() + text[1:]


def window_facts(verdict: Verdict) -> list[str]:
    """Return the iterations, or since when the job stands still, as clauses."""
    window = verdict.window
    if window is None:
        return ["no window was judged"]
    first, end, lasted = window.first_iteration, window.last_iteration, seconds(window.duration_s)
    if window.kind == "blocked":
        stands = [] if first is None or end is None else [f"stands after iterations {first} to {end}"]
        if stands and first == end:
            stands = [f"stands after iteration {first}"]
        return [*stands, *([f"silent for {lasted}"] if window.duration_s else [])]
    if first is None or end is None:
        return [f"{window.kind} window of {lasted}"]
    last = max(end - 1, first)
    if window.kind == "trace":
        return [
            f"one recorded iteration ({first})"
            if last == first
            else f"{end - first} recorded iterations ({first}–{last})",
            lasted,
        ]
    if verdict.found_by == "communication":
        return [f"at iteration {last}, by the last {lasted} of communication"]
    return [f"iterations {first}–{last}, {lasted}"]


def pace_facts(verdict: Verdict) -> list[str]:
    """Return the mean iteration now, before and at best."""
    before, now, best = verdict.iteration.baseline_ms, verdict.iteration.current_ms, verdict.iteration.best_ms
    if now is None and before and stands_still(verdict):
        return [f"{milliseconds(before)} per iteration until then"]
    if now is None:
        return []
    if not before:
        return [f"{milliseconds(now)} per iteration"]
    rest = verdict.iteration.rest_ms
    more = [f"{milliseconds(best)} at the job's best"] if best and milliseconds(best) != milliseconds(before) else []
    more += [f"{milliseconds(rest)} longer without a cause"] if rest else []
    return [f"{milliseconds(now)} per iteration, {milliseconds(before)} before ({change(before, now)})", *more]


def whereabouts(finding: Finding, *, everybody: bool = True) -> str:
    """Return workers and hosts of a finding; `everybody`: a finding of scope "all" may say "all workers"."""
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


def who(one: Finding | Hypothesis) -> str:
    """Return the workers of a finding or hypothesis."""
    some = worker_list(one.workers) if one.workers else "some workers"
    return {"all": "all workers", "rotating": "changing workers"}.get(one.scope, some)


def in_short(finding: Finding) -> str:
    """Return a finding in short: "slow-data-loading on worker 2"."""
    return f"{clean(finding.cause, 60)} on {who(finding)}"


def price(finding: Finding, iteration_ms: float | None) -> str:
    """Return the cost of a cause: "22 % of the iteration, 21.9 ms each time"."""
    if finding.gain is None:
        return "unknown"
    cost = f"{percent(finding.gain)} of the iteration"
    return cost if iteration_ms is None else f"{cost}, {milliseconds(finding.gain * iteration_ms)} each time"


def cause_facts(finding: Finding, verdict: Verdict) -> Iterator[tuple[str, str]]:
    """Yield where a cause lies, what it costs, and whether earlier windows saw it: term and text."""
    yield "where", whereabouts(finding, everybody=not (is_recorded(verdict) and verdict.coverage.missing))
    if not stands_still(verdict):
        yield "costs", price(finding, verdict.iteration.current_ms)
    if finding.recurrence is not None and finding.recurrence.kind != "single":
        yield "history", history(finding.recurrence)


def breakdown_lines(verdict: Verdict) -> list[str]:
    """Return the parts of an iteration, then its largest functions; none without a breakdown."""
    breakdown, workers = verdict.breakdown, verdict.coverage.workers_reported
    if breakdown is None:
        return []
    parts = (f"{part} {percent(share)}" for part, share in breakdown.shares.items() if share >= _LEAST_SHARE)
    return [
        f"{milliseconds(breakdown.iteration_ms)} in the window: {', '.join(parts)}",
        *(_item(one, workers) for one in breakdown.items),
    ]


def _item(item: BreakdownItem, workers: int) -> str:
    caller = f", called by {clean(item.caller, 80)}" if item.caller else ""
    where = "all workers" if len(item.workers) == workers else worker_list(item.workers)
    cost = f"{milliseconds(item.per_iteration_ms)}, at most {percent(item.most_gain)} to gain"
    return f"{clean(item.function.name, 80)} ({item.phase}{caller}) on {where}: {cost}"


def symptom_lines(verdict: Verdict) -> list[str]:
    """Return a line for each symptom: its function, workers, time, and what it waits for."""
    return [_symptom(finding, verdict) for finding in verdict.findings if finding.role == "symptom"]


def _symptom(finding: Finding, verdict: Verdict) -> str:
    causes = [other for other in verdict.findings if finding.order in other.explains]
    awaited = " and ".join(
        f"{clean(cause.function.name, 60) if cause.function.name != NO_FUNCTION else worker_list(cause.workers)} "
        f"(cause {cause.order})"
        for cause in causes
    )
    duration = finding.duration
    long = f", {milliseconds(duration.per_iteration_ms)} per iteration" if duration is not None else ""
    return f"{clean(finding.function.name, 80)} on {who(finding)}{long}: waits for {awaited or 'another worker'}"


def coverage_line(verdict: Verdict) -> str:
    """Return how many workers the verdict rests on, and which are missing."""
    coverage = verdict.coverage
    missing = f"; missing: {worker_list(coverage.missing)}" if coverage.missing else ""
    return f"Based on {coverage.workers_reported:,} of {coverage.workers_expected:,} workers{missing}"


def cost_facts(verdict: Verdict) -> Iterator[tuple[str, str]]:
    """Yield what looking or reading cost: term and value."""
    cost = verdict.cost
    if verdict.window is not None and verdict.window.kind == "iterations" and verdict.found_by == "window":
        yield "the job stood still for", seconds(cost.window_stall_s)
    if cost.trigger_to_verdict_s is not None:
        yield "verdict after", seconds(cost.trigger_to_verdict_s)
    if cost.summarize_s:
        yield "summarizing at most", seconds(cost.summarize_s)
    if cost.localize_s:
        where = f" on Ray ({cost.engine_why})" if cost.engine == "ray" else ""
        yield "comparing", f"{seconds(cost.localize_s)}{where}"
    if cost.pattern_bytes:
        yield "kept", f"{byte_size(cost.pattern_bytes)} of {byte_size(cost.raw_bytes)}"


# --- hypotheses ---

_NEAREST = 2


def nearest_of(verdict: Verdict) -> Sequence[Hypothesis]:
    """Return the two best hypotheses of an undetermined verdict: by gain, then those with unknown gain."""
    if verdict.verdict != "undetermined":
        return ()
    known = [one for one in verdict.considered if one.gain and one.decision != NAMED]
    return [*known, *(one for one in verdict.considered if one.decision == UNMEASURED)][:_NEAREST]


def describe_nearest(one: Hypothesis) -> str:
    """Return a hypothesis with what would settle it."""
    settle = [*one.missing, *one.unknown] or [one.decision]
    return f"{describe(one)}: not named, as {clean('; '.join(settle), 200)}"


def describe(one: Hypothesis) -> str:
    """Return a hypothesis: cause, function, workers and gain."""
    where = "" if one.function == NO_FUNCTION else f" in {clean(one.function, 80)}"
    gain = "" if one.gain is None else f", {percent(one.gain)} of the iteration"
    return f"{clean(one.cause, 60)}{where} on {who(one)}{gain}"


def signs_of(one: Hypothesis) -> Iterator[tuple[str, str]]:
    """Yield mark and text of each sign: + met, - missing, ? unknown."""
    for mark, signs in (("+", one.met), ("-", one.missing), ("?", one.unknown)):
        for sign in signs:
            yield mark, clean(sign, 200)


# --- numbers ---


class NumberRow(NamedTuple):
    """One number of a finding: label, here, on peers and expected as text; here and on peers as numbers."""

    label: str
    here: str
    peers: str
    expected: str
    value: float
    peers_value: float | None


def compared_with(finding: Finding, recorded: bool) -> str:
    """Return the head of the column beside "here"."""
    if finding.scope != "all":
        return "peers"
    return "limit" if recorded else "before"


def number_rows(finding: Finding) -> Iterator[NumberRow]:
    """Yield the numbers of a finding."""
    pattern, duration = finding.pattern, finding.duration
    if pattern is not None:
        beta = (pattern.peers or {}).get("beta")
        expected = _range(pattern.expected.get("beta"))
        yield NumberRow("critical β", percent(pattern.beta), _share(beta), expected, pattern.beta, beta)
    if duration is not None:
        is_late = finding.role == "cause" and finding.function.name == NO_FUNCTION and pattern is None
        label = "others wait" if is_late and duration.peers_ms is None else "duration"
        here, peers = duration.per_iteration_ms, duration.peers_ms
        yield NumberRow(label, milliseconds(here), "" if peers is None else milliseconds(peers), "", here, peers)
        if duration.count_per_iteration or duration.peers_count:
            count, others = duration.count_per_iteration, duration.peers_count
            label = "seen in samples" if duration.is_sampled else "calls"
            yield NumberRow(label, f"{count:.1f}", "" if others is None else f"{others:.1f}", "", count, others)
    use = finding.resource
    if use is not None:
        there = "" if use.peers_mean is None else amount(use.peers_mean, use.unit)
        label = f"{clean(use.name, 24)} μ"
        yield NumberRow(label, amount(use.mean, use.unit), there, "", use.mean, use.peers_mean)
    if pattern is not None and pattern.sigma:
        sigma = (pattern.peers or {}).get("sigma")
        label = f"{clean(use.name, 24)} σ" if use is not None else "σ"
        yield NumberRow(label, percent(pattern.sigma), _share(sigma), "", pattern.sigma, sigma)


def _share(value: float | None) -> str:
    return "" if value is None else percent(value)


def _range(bounds: tuple[float, float] | None) -> str:
    """Return bounds as percent; "" where all values are within them."""
    if bounds is None or bounds[1] - bounds[0] >= 1.0:
        return ""
    return f"{percent(bounds[0]).removesuffix(' %')}–{percent(bounds[1])}"
