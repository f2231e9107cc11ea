"""Causes and the symptoms they explain, as findings of a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence

from eroica.diagnosis.arbiter import Cause
from eroica.diagnosis.communication import Waiting, find_waiting
from eroica.diagnosis.confidence import estimate_confidence
from eroica.diagnosis.placement import host_step
from eroica.diagnosis.rows import summarize_durations, summarize_pattern, summarize_resource
from eroica.diagnosis.view import View
from eroica.diagnosis.wording import describe_evidence
from eroica.diagnosis.words import format_ms, name_workers
from eroica.model.causes import CATALOG
from eroica.model.verdict import DurationSummary, Finding, FindingFunction, PatternSummary

#: A recording should hold at least so many iterations, and the next one twice as many as this one.
_FEW_STEPS = 5
#: What a machine can have brought about; work and code go where they are sent.
_OF_HOSTS = frozenset(
    {
        "compute-slow",
        "cpu-contention",
        "sibling-process",
        "misconfiguration",
        "slow-link",
        "link-fallback",
        "slow-storage-read",
        "slow-data-loading",
        "unknown",
    }
)


def build_findings(view: View, causes: Sequence[Cause]) -> tuple[Finding, ...]:
    """Build the findings: causes by falling gain, then symptoms, each under the largest cause that explains it."""
    waits = [_waiting_of(view, cause) for cause in causes]
    symptoms: list[tuple[int, Waiting]] = []
    for at, found in enumerate(waits):
        known = {(wait.name, wait.group) for _, wait in symptoms}
        if view.is_trace:
            waits[at] = [wait for wait in found if (wait.name, wait.group) not in known]
        symptoms += [(at, wait) for wait in found if (wait.name, wait.group) not in known]
    first = len(causes) + 1
    explained = [[first + n for n, (owner, _) in enumerate(symptoms) if owner == at] for at in range(len(causes))]
    findings = [
        _cause(view, order, cause, waits[order - 1], explained[order - 1])
        for order, cause in enumerate(causes, start=1)
    ]
    findings += [_symptom(view, first + n, causes[owner], wait) for n, (owner, wait) in enumerate(symptoms)]
    return tuple(findings)


def _waiting_of(view: View, cause: Cause) -> list[Waiting]:
    found = cause.candidate
    if found.scope == "all" or (found.kind == "collective" and found.agreement is None) or found.is_remark:
        return []
    return find_waiting(view, found.workers, max(found.excess_us, 0.0))


def _hosts(view: View, workers: Sequence[int]) -> tuple[str, ...]:
    return tuple(sorted({view.fleet.patterns[worker].worker.host for worker in workers} - {""}))


def _ranks(view: View, workers: Sequence[int]) -> tuple[int, ...]:
    return tuple(view.fleet.ranks[worker] for worker in workers)


def _cause(view: View, order: int, cause: Cause, waiting: Sequence[Waiting], explains: Sequence[int]) -> Finding:
    found = cause.candidate
    return Finding(
        order=order,
        role="cause",
        cause=found.cause,
        function=FindingFunction(name=found.focus.name, kind=found.kind, stack=found.focus.stack),
        workers=_ranks(view, found.workers),
        scope=found.scope,
        hosts=found.hosts or _hosts(view, found.workers),
        resource=found.resource or summarize_resource(view, found),
        pattern=summarize_pattern(view, found) if found.functions else None,
        duration=summarize_durations(view, found),
        gain=round(cause.gain, 4),
        confidence=estimate_confidence(view, found, cause.gain),
        explains=tuple(explains),
        evidence=describe_evidence(view, cause, waiting),
        next_step=(host_step(view, found.workers) if found.scope == "some" and found.cause in _OF_HOSTS else "")
        + (found.next_step or _next_step(view, found.cause)),
    )


def _awaited(cause: Cause, whom: str) -> str:
    """Name the function that is waited for; where no function is to blame, the workers."""
    focus = cause.candidate.focus
    return f"{focus.label} on {whom}" if focus.functions else whom


def _next_step(view: View, cause: str) -> str:
    entry = CATALOG[cause]
    recorded = entry.next_step_recorded.format(active=max(_FEW_STEPS, 2 * view.iterations))
    return (recorded if view.is_trace else "") or entry.next_step


def _symptom(view: View, order: int, cause: Cause, wait: Waiting) -> Finding:
    found = cause.candidate
    whom = name_workers(_ranks(view, found.workers)) if found.workers else "a different worker each time"
    fleet, rows, members = view.fleet, list(wait.functions), list(wait.workers)
    count = float(fleet.count[rows][:, members].sum(axis=0).mean())
    total = float(fleet.total_us[rows][:, members].sum(axis=0).mean())
    return Finding(
        order=order,
        role="symptom",
        cause=found.cause,
        function=FindingFunction(name=wait.name, kind="collective"),
        workers=_ranks(view, wait.workers),
        scope="rotating" if found.scope == "rotating" else "some",
        hosts=_hosts(view, wait.workers),
        pattern=PatternSummary(
            beta=round(float(fleet.pattern[rows][:, members, 0].sum(axis=0).mean()), 4),
            mu=0.0,
            sigma=0.0,
            expected={"beta": (0.0, view.settings.expected_collective)},
        ),
        duration=DurationSummary(
            per_iteration_ms=round(wait.mean_us / 1e3, 3),
            peers_ms=None if math.isnan(wait.accused_us) else round(wait.accused_us / 1e3, 3),
            mean_ms=round(total / count / 1e3, 4) if count else 0.0,
            count_per_iteration=round(count, 3),
        ),
        confidence=estimate_confidence(view, found, cause.gain),
        evidence=(f"It takes {format_ms(wait.mean_us)} per iteration because it waits for {_awaited(cause, whom)}.",),
        next_step="Nothing: it goes away with its cause.",
    )
