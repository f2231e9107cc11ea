"""Findings of a verdict: its causes, and the collectives that are long because of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.block import Block
from eroica.diagnosis.operators import weighted_mean
from eroica.diagnosis.outliers import FEWEST_SAMPLES
from eroica.diagnosis.recordings import FEW_STEPS
from eroica.diagnosis.selection import Cause
from eroica.diagnosis.view import View
from eroica.diagnosis.wording import describe_evidence
from eroica.diagnosis.words import FEW, format_ms, host_step, name_workers
from eroica.localize.families import likeness_of_groups
from eroica.localize.fleet import Fleet
from eroica.localize.rule import expected_beta
from eroica.model.causes import CATALOG
from eroica.model.verdict import DurationSummary, Finding, FindingFunction, PatternSummary, ResourceUse

Floats = NDArray[np.float64]
#: What a machine can have brought about. Work and code go where they are sent.
_OF_HOSTS = frozenset(
    {
        "compute-slow", "cpu-contention", "sibling-process", "misconfiguration", "slow-link", "slow-storage-read",
        "slow-data-loading", "unknown",
    }
)  # fmt: skip


def build_findings(view: View, causes: Sequence[Cause]) -> tuple[Finding, ...]:
    """Return the findings: causes by falling gain, then symptoms, each under the first cause that explains it."""
    symptoms: dict[tuple[str, str], tuple[int, Finding]] = {}
    for at, cause in enumerate(causes):
        for kind, symptom in find_waiting(view, cause):
            symptoms.setdefault(kind, (at, symptom))
    first = len(causes) + 1
    findings = []
    for at, cause in enumerate(causes):
        explains = tuple(first + n for n, (owner, _) in enumerate(symptoms.values()) if owner == at)
        findings.append(_cause(view, at + 1, cause, explains))
    findings += [msgspec.structs.replace(one, order=first + n) for n, (_, one) in enumerate(symptoms.values())]
    return tuple(findings)


def find_waiting(view: View, cause: Cause) -> list[tuple[tuple[str, str], Finding]]:
    """Return the collectives in which others wait for a cause's workers, if a tenth of its excess; longest first.

    Their order among the findings is not known yet.
    """
    block = cause.block
    others = np.setdiff1d(np.arange(view.workers), np.asarray(block.workers, dtype=np.intp))
    if block.scope == "all" or block.cell == "collectives" or not others.size:
        return []
    like, groups = likeness_of_groups(view.fleet.patterns), defaultdict[tuple[str, str], list[int]](list)
    for row, key in enumerate(view.fleet.keys):
        if key.kind == "collective":
            # like groups wait alike: in a recording all of one name are one, online those that do the same job
            groups[key.name, "" if view.is_trace else str(like.get(key.group, key.group))].append(row)
    waits = [(kind, rows, _waiters(view, rows, others, block)) for kind, rows in sorted(groups.items())]
    found = [(kind, _symptom(view, cause, kind[0], rows, waiters)) for kind, rows, waiters in waits if waiters]
    worth = [one for one in found if 1e3 * _extra_ms(one[1]) >= 0.1 * block.excess_us]
    return sorted(worth, key=lambda one: -_extra_ms(one[1]))[:FEW]


def _extra_ms(symptom: Finding) -> float:
    told = symptom.duration
    return told.per_iteration_ms - (told.peers_ms or 0.0) if told is not None else 0.0


def _waiters(view: View, rows: list[int], others: NDArray[np.intp], block: Block) -> list[int]:
    """Return those of the others that spend clearly longer in a collective than the accused, beyond its transfer."""
    accused, time_GW = list(block.workers), view.fleet.critical_us[rows]
    shortest_G1 = np.where(time_GW > 0, time_GW, np.inf).min(axis=1, keepdims=True)
    extra_W = np.where(time_GW > 0, time_GW - shortest_G1, 0.0).sum(axis=0)
    usual = float(extra_W[accused].mean()) if accused else 0.0
    return list(others[extra_W[others] - usual >= view.settings.beta_gate * view.iteration_us].tolist())


def _hosts(view: View, workers: Sequence[int]) -> tuple[str, ...]:
    names = dict.fromkeys(view.fleet.patterns[worker].worker.host for worker in workers)
    return tuple(name for name in names if name)


def _ranks(view: View, workers: Sequence[int]) -> tuple[int, ...]:
    return tuple(view.fleet.ranks[worker] for worker in workers)


def _cause(view: View, order: int, cause: Cause, explains: tuple[int, ...]) -> Finding:
    block = cause.block
    at_host = host_step(view, block.workers) if block.scope == "some" and cause.cause in _OF_HOSTS else ""
    steps = [block.culprit.next_step if block.culprit is not None else ""]
    if view.is_trace:
        steps.append(CATALOG[cause.cause].next_step_recorded.format(active=max(FEW_STEPS, 2 * view.iterations)))
    caller = block.facts.caller  # of operators without a stack that of the function that calls them is told
    stack = block.focus.stack or (caller.focus.stack if caller is not None else ())
    return Finding(
        order=order,
        role="cause",
        cause=cause.cause,
        function=FindingFunction(name=block.focus.name, kind=block.kind, stack=stack),
        workers=_ranks(view, block.workers),
        scope=block.scope,
        hosts=_hosts(view, block.workers),
        resource=summarize_resource(view, block),
        pattern=summarize_pattern(view, block) if block.rows else None,
        duration=_durations(
            view.fleet,
            list(block.rows),
            _sides(view, block),
            block.mean_us,
            np.nan if block.cell == "late" and not block.focus.functions else block.reference_us,
        ),
        gain=round(cause.gain, 4),
        confidence=round(cause.probability, 3),
        explains=explains,
        evidence=describe_evidence(view, cause),
        next_step=at_host + next((one for one in steps if one), CATALOG[cause.cause].next_step),
    )


def _symptom(view: View, cause: Cause, name: str, rows: list[int], waiters: list[int]) -> Finding:
    block, accused = cause.block, list(cause.block.workers)
    time_W = view.fleet.critical_us[rows].sum(axis=0)
    mean_us, accused_us = float(time_W[waiters].mean()), float(time_W[accused].mean()) if accused else np.nan
    whom = name_workers(_ranks(view, block.workers)) if block.workers else "a different worker each time"
    awaited = f"{block.focus.label} on {whom}" if block.focus.functions else whom
    return Finding(
        order=0,
        role="symptom",
        cause=cause.cause,
        function=FindingFunction(name=name, kind="collective"),
        workers=_ranks(view, waiters),
        scope="rotating" if block.scope == "rotating" else "some",
        hosts=_hosts(view, waiters),
        duration=_durations(view.fleet, rows, (waiters, []), mean_us, accused_us),
        confidence=round(cause.probability, 3),
        evidence=(f"It takes {format_ms(mean_us)} per iteration because it waits for {awaited}.",),
        next_step="Nothing: it goes away with its cause.",
    )


def _sides(view: View, block: Block) -> tuple[list[int], list[int]]:
    """Split workers (indices) into accused and others; a rotating cause counts all workers as accused."""
    accused = list(block.workers) or list(range(view.workers))
    own = set(accused)
    return accused, [worker for worker in range(view.workers) if worker not in own]


def summarize_pattern(view: View, block: Block) -> PatternSummary:
    """Return (beta, mu, sigma) of the block's rows on the accused and on everybody else."""
    rows = list(block.rows)
    accused, others = _sides(view, block)
    own = _pattern(view, rows, accused)
    highest = min((expected_beta(view.fleet.keys[row], view.settings) for row in rows), default=1.0)
    names = ("beta", "mu", "sigma")
    return PatternSummary(
        beta=round(own[0], 4),
        mu=round(own[1], 4),
        sigma=round(own[2], 4),
        peers={n: round(x, 4) for n, x in zip(names, _pattern(view, rows, others), strict=True)} if others else None,
        expected={"beta": (0.0, highest)},
    )


def _pattern(view: View, rows: list[int], workers: list[int]) -> tuple[float, float, float]:
    """Return beta summed over rows, mu and sigma weighted by beta; 0 where never sampled."""
    part = view.fleet.pattern[np.ix_(rows, workers)]
    beta = part[:, :, 0]
    mu, sigma = (weighted_mean(part[:, :, axis].ravel(), beta.ravel()) for axis in (1, 2))
    return float(beta.sum(axis=0).mean()), float(np.nan_to_num(mu)), float(np.nan_to_num(sigma))


def summarize_resource(view: View, block: Block) -> ResourceUse | None:
    """Return the use of the resource that bounds the rows; None if it was sampled too seldom to tell.

    Where the training thread only waits for another thread, the rows of that thread count.
    """
    if block.culprit is not None and block.culprit.resource is not None:
        return block.culprit.resource
    if block.culprit is not None and block.culprit.kind == "thread":
        return ResourceUse(name="interpreter lock", mean=round(block.facts.core, 4))
    fleet, rows = view.fleet, list(block.focus.functions if block.is_elsewhere else block.rows)
    samples_FW, which_FW = fleet.samples[rows], fleet.resource[rows]
    counts = np.bincount(which_FW[samples_FW > 0], minlength=len(fleet.resources))
    if not counts.any():
        return None
    name = min(fleet.resources, key=lambda one: (-counts[fleet.resources.index(one)], one))
    used_FW = (which_FW == fleet.resources.index(name)) & (samples_FW > 0)
    accused, others = _sides(view, block)
    if (samples_FW * used_FW)[:, accused].sum() < FEWEST_SAMPLES:
        return None
    mu_FW, time_FW = fleet.pattern[rows, :, 1], (fleet.total_us if block.is_elsewhere else fleet.critical_us)[rows]
    own, usual = (
        weighted_mean(mu_FW[:, side][used_FW[:, side]], time_FW[:, side][used_FW[:, side]])
        for side in (accused, others)
    )
    if np.isnan(own):
        return None
    unit = "fraction of one core" if name == "cpu" else "fraction"
    return ResourceUse(
        name=name, mean=round(own, 4), peers_mean=None if np.isnan(usual) else round(usual, 4), unit=unit
    )


def _durations(
    fleet: Fleet, rows: list[int], sides: tuple[list[int], list[int]], mean_us: float, usual_us: float
) -> DurationSummary:
    """Return how long and how often rows run on one side of the workers, against the reference and the other side."""
    accused, others = sides
    count, total_us = (float(told[rows][:, accused].sum(axis=0).mean()) for told in (fleet.count, fleet.total_us))
    return DurationSummary(
        per_iteration_ms=round(mean_us / 1e3, 3),
        peers_ms=None if np.isnan(usual_us) else round(usual_us / 1e3, 3),
        mean_ms=round(total_us / count / 1e3, 4) if count > 0 else 0.0,
        count_per_iteration=round(count, 3),
        peers_count=round(float(fleet.count[rows][:, others].sum(axis=0).mean()), 3) if others else None,
        is_sampled=any(fleet.keys[row].kind == "python" for row in rows),
    )
