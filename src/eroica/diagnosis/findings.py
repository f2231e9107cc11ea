"""Findings of a verdict: its causes, and the collectives that are long because of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.block import Block
from eroica.diagnosis.operators import weighted_mean
from eroica.diagnosis.outliers import FEWEST_SAMPLES
from eroica.diagnosis.recordings import FEW_STEPS
from eroica.diagnosis.selection import Cause
from eroica.diagnosis.view import View
from eroica.diagnosis.wording import describe_evidence
from eroica.diagnosis.words import FEW, format_ms, host_step, name_accused, name_workers
from eroica.localize.families import likeness_of_groups
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


class Waiting(NamedTuple):
    """A collective that is long because some worker is late.

    Attributes:
        rows: Its rows (indices into the fleet's keys).
        name: Name of the collective.
        workers: Workers (indices) that wait in it.
        mean_us: Critical time per iteration on them.
        accused_us: The same on the accused; NaN where nobody is accused.
    """

    rows: list[int]
    name: str
    workers: list[int]
    mean_us: float
    accused_us: float


def build_findings(view: View, causes: Sequence[Cause]) -> tuple[Finding, ...]:
    """Return the findings: causes by falling gain, then symptoms, each under the first cause that explains it."""
    symptoms: dict[tuple[str, str], tuple[int, Waiting]] = {}
    for at, cause in enumerate(causes):
        for kind, wait in find_waiting(view, cause.block):
            symptoms.setdefault(kind, (at, wait))
    first = len(causes) + 1
    findings = []
    for at, cause in enumerate(causes):
        mine = {first + n: wait for n, (owner, wait) in enumerate(symptoms.values()) if owner == at}
        findings.append(_cause(view, at + 1, cause, list(mine.values()), tuple(mine)))
    findings += [_symptom(view, first + n, causes[owner], wait) for n, (owner, wait) in enumerate(symptoms.values())]
    return tuple(findings)


def find_waiting(view: View, block: Block) -> list[tuple[tuple[str, str], Waiting]]:
    """Return the collectives in which others wait for a block's workers, if a tenth of its excess; longest first."""
    others = np.setdiff1d(np.arange(view.workers), np.asarray(block.workers, dtype=np.intp))
    if block.scope == "all" or block.cell == "collectives" or not others.size:
        return []
    like, groups = likeness_of_groups(view.fleet.patterns), defaultdict[tuple[str, str], list[int]](list)
    for row, key in enumerate(view.fleet.keys):
        if key.kind == "collective":
            # like groups wait alike: in a recording all of one name are one, online those that do the same job
            groups[key.name, "" if view.is_trace else str(like.get(key.group, key.group))].append(row)
    waits = [(kind, _waiting(view, kind[0], rows, others, block)) for kind, rows in sorted(groups.items())]
    worth = [(kind, wait) for kind, wait in waits if wait is not None and _extra_us(wait) >= 0.1 * block.excess_us]
    return sorted(worth, key=lambda one: -_extra_us(one[1]))[:FEW]


def _extra_us(wait: Waiting) -> float:
    return wait.mean_us - float(np.nan_to_num(wait.accused_us))


def _waiting(view: View, name: str, rows: list[int], others: NDArray[np.intp], block: Block) -> Waiting | None:
    """Return a collective if some of the others spend clearly longer in it than the accused, beyond its transfer."""
    accused, time_GW = list(block.workers), view.fleet.critical_us[rows]
    shortest_G1 = np.where(time_GW > 0, time_GW, np.inf).min(axis=1, keepdims=True)
    extra_W = np.where(time_GW > 0, time_GW - shortest_G1, 0.0).sum(axis=0)
    usual = float(extra_W[accused].mean()) if accused else 0.0
    waiters = others[extra_W[others] - usual >= view.settings.beta_gate * view.iteration_us].tolist()
    if not waiters:
        return None
    time_W = time_GW.sum(axis=0)
    accused_us = float(time_W[accused].mean()) if accused else np.nan
    return Waiting(rows, name, waiters, float(time_W[waiters].mean()), accused_us)


def _hosts(view: View, workers: Sequence[int]) -> tuple[str, ...]:
    names = dict.fromkeys(view.fleet.patterns[worker].worker.host for worker in workers)
    return tuple(name for name in names if name)


def _ranks(view: View, workers: Sequence[int]) -> tuple[int, ...]:
    return tuple(view.fleet.ranks[worker] for worker in workers)


def _cause(view: View, order: int, cause: Cause, waits: Sequence[Waiting], explains: tuple[int, ...]) -> Finding:
    block = cause.block
    told = [_tell_wait(view, block, wait) for wait in waits]
    at_host = host_step(view, block.workers) if block.scope == "some" and cause.cause in _OF_HOSTS else ""
    advice = block.culprit.next_step if block.culprit is not None else ""
    return Finding(
        order=order,
        role="cause",
        cause=cause.cause,
        function=FindingFunction(name=block.focus.name, kind=block.kind, stack=_stack(block)),
        workers=_ranks(view, block.workers),
        scope=block.scope,
        hosts=_hosts(view, block.workers),
        resource=summarize_resource(view, block),
        pattern=summarize_pattern(view, block) if block.rows else None,
        duration=summarize_durations(view, block),
        gain=round(cause.gain, 4),
        confidence=round(cause.probability, 3),
        explains=explains,
        evidence=describe_evidence(view, cause, told),
        next_step=at_host + (advice or _next_step(view, cause.cause)),
    )


def _stack(block: Block) -> tuple[str, ...]:
    """Return the stack of the named function; of operators without one, that of their caller."""
    caller = block.facts.caller
    return block.focus.stack or (caller.focus.stack if caller is not None else ())


def _tell_wait(view: View, block: Block, wait: Waiting) -> str:
    who = name_workers(_ranks(view, wait.workers))
    text = f"{wait.name} takes {format_ms(wait.mean_us)} per iteration on {who}"
    if not block.workers:
        return f"{text}."
    return f"{text} and {format_ms(wait.accused_us)} on {name_accused(view, block.workers)[0]}."


def _next_step(view: View, cause: str) -> str:
    entry = CATALOG[cause]
    recorded = entry.next_step_recorded.format(active=max(FEW_STEPS, 2 * view.iterations))
    return (recorded if view.is_trace else "") or entry.next_step


def _symptom(view: View, order: int, cause: Cause, wait: Waiting) -> Finding:
    block = cause.block
    whom = name_workers(_ranks(view, block.workers)) if block.workers else "a different worker each time"
    awaited = f"{block.focus.label} on {whom}" if block.focus.functions else whom
    fleet, rows, members = view.fleet, wait.rows, wait.workers
    count = float(fleet.count[rows][:, members].sum(axis=0).mean())
    total = float(fleet.total_us[rows][:, members].sum(axis=0).mean())
    return Finding(
        order=order,
        role="symptom",
        cause=cause.cause,
        function=FindingFunction(name=wait.name, kind="collective"),
        workers=_ranks(view, wait.workers),
        scope="rotating" if block.scope == "rotating" else "some",
        hosts=_hosts(view, wait.workers),
        pattern=PatternSummary(
            beta=round(float(fleet.pattern[rows][:, members, 0].sum(axis=0).mean()), 4),
            mu=0.0,
            sigma=0.0,
            expected={"beta": (0.0, view.settings.expected_collective)},
        ),
        duration=DurationSummary(
            per_iteration_ms=round(wait.mean_us / 1e3, 3),
            peers_ms=None if np.isnan(wait.accused_us) else round(wait.accused_us / 1e3, 3),
            mean_ms=round(total / count / 1e3, 4) if count else 0.0,
            count_per_iteration=round(count, 3),
        ),
        confidence=round(cause.probability, 3),
        evidence=(f"It takes {format_ms(wait.mean_us)} per iteration because it waits for {awaited}.",),
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


def summarize_durations(view: View, block: Block) -> DurationSummary:
    """Return how long and how often a block's rows run, against the reference."""
    accused, others = _sides(view, block)
    rows = list(block.rows)
    count = float(view.fleet.count[rows][:, accused].sum(axis=0).mean())
    total = float(view.fleet.total_us[rows][:, accused].sum(axis=0).mean())
    return DurationSummary(
        per_iteration_ms=round(block.mean_us / 1e3, 3),
        peers_ms=None if block.cell == "late" and not block.focus.functions else round(block.reference_us / 1e3, 3),
        mean_ms=round(total / count / 1e3, 4) if count > 0 else 0.0,
        count_per_iteration=round(count, 3),
        peers_count=round(float(view.fleet.count[rows][:, others].sum(axis=0).mean()), 3) if others else None,
        is_sampled=any(view.fleet.keys[row].kind == "python" for row in rows),
    )
