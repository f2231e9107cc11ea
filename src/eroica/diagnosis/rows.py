"""Numbers of a group of rows for findings: reference row by row, pattern, resource, durations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.lateness import Lateness
from eroica.diagnosis.reading import FEWEST_SAMPLES
from eroica.diagnosis.speed import weighted_mean
from eroica.diagnosis.view import View
from eroica.localize.expectation import expected_beta
from eroica.localize.fleet import Fleet
from eroica.model.pattern import CollectiveRecord, FunctionKey
from eroica.model.verdict import DurationSummary, PatternSummary, ResourceUse
from eroica.summarize.collectives import collective_kind

Floats = NDArray[np.float64]
#: Python that uses less of a core waits for something else: whoever fills the cores has not brought it about.
WAITS_RATHER = 0.3


def reference_of_rows(view: View, rows: Sequence[int], late: Lateness | Candidate) -> Floats:
    """Return the reference of each row of a group, mean over the accused, microseconds. float64 [R]."""
    members = list(late.workers)
    source = {"peers": view.suspects.peers_us, "baseline": view.suspects.before_us}.get(late.reference)
    if source is None:
        return np.zeros(len(rows))
    return np.asarray(np.nan_to_num(source[list(rows)][:, members]).mean(axis=1))


def record_of(fleet: Fleet, worker: int, key: FunctionKey) -> CollectiveRecord | None:
    """Find the executions behind a row of a collective, as one worker (index) saw them; None where it has none."""
    kind = collective_kind(key.name)
    records = fleet.patterns[worker].collectives
    return next((record for record in records if record.group == key.group and record.kind == kind), None)


def summarize_pattern(view: View, candidate: Candidate) -> PatternSummary:
    """Summarize (β, μ, σ) of the candidate's rows on the accused and on everybody else."""
    fleet, rows = view.fleet, list(candidate.functions)
    accused, others = _sides(view, candidate)
    own = _pattern(view, rows, accused)
    keys = [fleet.keys[row] for row in rows]
    highest = min((expected_beta(key, view.settings) for key in keys), default=1.0)
    return PatternSummary(
        beta=round(own[0], 4),
        mu=round(own[1], 4),
        sigma=round(own[2], 4),
        peers=dict(zip(("beta", "mu", "sigma"), (round(x, 4) for x in _pattern(view, rows, others)), strict=True))
        if others
        else None,
        expected={"beta": (0.0, highest)},
    )


def _sides(view: View, candidate: Candidate) -> tuple[list[int], list[int]]:
    """Split workers (indices) into accused and others; a rotating cause counts all workers as accused."""
    accused = list(candidate.workers) or list(range(view.workers))
    own = set(accused)
    return accused, [worker for worker in range(view.workers) if worker not in own]


def _pattern(view: View, rows: list[int], workers: list[int]) -> tuple[float, float, float]:
    """Return β summed over rows, μ and σ weighted by β; 0 where never sampled."""
    part = view.fleet.pattern[np.ix_(rows, workers)]
    beta = part[:, :, 0]
    mu, sigma = (weighted_mean(part[:, :, axis].ravel(), beta.ravel()) for axis in (1, 2))
    return float(beta.sum(axis=0).mean()), float(np.nan_to_num(mu)), float(np.nan_to_num(sigma))


def summarize_resource(view: View, candidate: Candidate) -> ResourceUse | None:
    """Summarize the use of the resource that bounds the candidate's rows; None if it was sampled too seldom to tell.

    Where the training thread only waits for another thread, the rows of that thread count.
    """
    fleet, rows = view.fleet, list(candidate.functions)
    if candidate.is_elsewhere:
        rows = list(candidate.focus.functions)
    samples_FW, which_FW = fleet.samples[rows], fleet.resource[rows]
    counts = np.bincount(which_FW[samples_FW > 0], minlength=len(fleet.resources))
    if not counts.any():
        return None
    name = min(fleet.resources, key=lambda one: (-counts[fleet.resources.index(one)], one))
    used_FW = (which_FW == fleet.resources.index(name)) & (samples_FW > 0)
    accused, others = _sides(view, candidate)
    if (samples_FW * used_FW)[:, accused].sum() < FEWEST_SAMPLES:
        return None
    mu_FW = fleet.pattern[rows, :, 1]
    time_FW = (fleet.total_us if candidate.is_elsewhere else fleet.critical_us)[rows]
    means = [
        weighted_mean(mu_FW[:, side][used_FW[:, side]], time_FW[:, side][used_FW[:, side]])
        for side in (accused, others)
    ]
    if np.isnan(means[0]):
        return None
    unit = "fraction of one core" if name == "cpu" else "fraction"
    return ResourceUse(
        name=name, mean=round(means[0], 4), peers_mean=None if np.isnan(means[1]) else round(means[1], 4), unit=unit
    )


def waits_rather(view: View, candidate: Candidate) -> bool:
    """True if a candidate is Python of some workers that waits rather than computes."""
    used = summarize_resource(view, candidate) if candidate.kind == "python" and candidate.scope == "some" else None
    return used is not None and used.name == "cpu" and used.mean < WAITS_RATHER


def summarize_durations(view: View, candidate: Candidate) -> DurationSummary:
    """Summarize how long and how often a candidate's rows run, against the reference."""
    accused, others = _sides(view, candidate)
    rows = list(candidate.functions)
    unknown = np.isnan(candidate.reference_us) or (candidate.is_latecomer and not rows)
    counted = _counted(view, candidate)
    count = float(view.fleet.count[counted][:, accused].sum(axis=0).mean())
    total = float(view.fleet.total_us[rows][:, accused].sum(axis=0).mean())
    return DurationSummary(
        per_iteration_ms=round(candidate.mean_us / 1e3, 3),
        peers_ms=None if unknown else round(candidate.reference_us / 1e3, 3),
        mean_ms=round(total / count / 1e3, 4) if count > 0 else 0.0,
        count_per_iteration=round(count, 3),
        peers_count=round(float(view.fleet.count[counted][:, others].sum(axis=0).mean()), 3) if others else None,
    )


def _counted(view: View, candidate: Candidate) -> list[int]:
    """List rows whose executions are the named function's own; in recorded traces operators inside stand beside it.

    None where the name stands for less than half of the time: then there is nothing to count.
    """
    rows = list(candidate.functions)
    if not view.is_trace or candidate.kind not in ("python", "other"):
        return rows
    named = [row for row in rows if view.fleet.keys[row].name == candidate.focus.name]
    time_W = view.fleet.critical_us[rows].sum(axis=0)
    return named if 2 * view.fleet.critical_us[named].sum(axis=0).max(initial=0.0) >= time_W.max(initial=0.0) else []
