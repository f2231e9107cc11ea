"""Computation: the same operators slower (hardware, quota, other processes), or more operators at the same speed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.frames import Focus
from eroica.diagnosis.lateness import (
    JOB_WIDE,
    LEAST_AGREEMENT,
    LEAST_STRENGTH,
    Lateness,
    accuse,
    agreement_with,
    is_hidden,
    late_roles,
    lateness_of,
    waited_for,
)
from eroica.diagnosis.limits import HELD, MOST, SAME_COUNT
from eroica.diagnosis.more_data import (
    has_more_data,
    has_more_data_since,
    in_backward_evidence,
    may_have_more_data,
    more_data_evidence,
)
from eroica.diagnosis.speed import (
    EXPLAINED_BY_QUEUE,
    Speed,
    held_share,
    host_fact,
    operators,
    queued_share,
    weighted_mean,
)
from eroica.diagnosis.stopped_or_throttled import find_held, with_holding
from eroica.diagnosis.view import View
from eroica.localize.excess import Excess, excess_over_baseline
from eroica.model.shares import percent

Floats = NDArray[np.float64]
#: Healthy workers on shared cores differ by 5-10 % in speed, now and then by 20 %; device kernels by less. A process
#: that was seen held (stopped, throttled) needs no such margin.
_SLOWER_CPU = 1.3
_SLOWER_HELD = 1.1
#: With more workers than cores, luck decides for seconds which worker gets a core.
_SLOWER_CROWDED = 2.0
_SLOWER_DEVICE = 1.08
#: Being seen held is evidence of its own: standard errors of the time lost need be fewer, and this much is one of them.
_STRENGTH_HELD = 1.5
_HELD_ERROR = 0.05
_MOST_CORROBORATION = 10.0
#: A device runs behind its host: of a window of a few iterations, kernels of one or two of them may fall outside, or
#: those of one or two before inside. Counts may differ by no more than this share for that reason.
_QUEUED_ITERATIONS = 1.5
_MOST_QUEUED = 0.15
#: Uneven work: so much of the operators' time stems from more executions, and so much of the excess.
_MORE_WORK = 0.10
_MOSTLY_WORK = 0.6
_UNLIKE_OTHERS = "Workers of other roles compute as fast as then, so it is not how the work was divided."
#: A device's clock is lower than the peers' from this share of theirs on.
_LOWER_CLOCK = 0.97
#: Share of the workers whose peers are no measure any more.
_MAJORITY = 0.51
#: Share of the time in operators, and executions in a window, that leave no room for chance on a device.
_NEARLY_ALL = 0.8
_MANY_EXECUTIONS = 200
_OFTEN_CAPPED = 0.1
#: Doubt where more data cannot be told from a low clock.
_UNKNOWN_CLOCK = 0.75
_MAY_BE_DATA = (
    "The optimizer's operators take no longer than elsewhere, and nobody read the device's clock (install "
    "nvidia-ml-py): longer sequences or larger batches on these workers would look the same."
)


def find_compute(view: View) -> list[Candidate]:
    """Accuse slow computation, CPU contention and uneven work."""
    rows = operators(view.fleet)
    if not rows:
        return []
    slow = [*_slow_workers(view, rows), *_slow_roles(view, rows), *_slow_job(view, rows)]
    more = [*_more_work(view, rows), *_more_work_of_roles(view, rows)]
    return [*slow, *find_held(view, slow), *more]


def _slow_workers(view: View, rows: list[int]) -> Iterator[Candidate]:
    """Accuse workers on which most operators take longer than on their peers, equally often."""
    fleet, speed = view.fleet, view.speed
    backward = view.speed_by_pass[1]
    slower_W = _is_slower(view, speed) | _is_slower(view, backward)
    time_WI = _of_like_workers(view, slower_W, lambda near: _affected(view, rows, near))
    excess = fleet.above_usual(time_WI)
    factor_W = np.fmax(np.fmax(speed.factor, backward.factor), 1.0)
    removed_W = np.minimum(excess.mean_us * (1 - 1 / factor_W), excess.excess_us)
    strong_W = (
        excess.strength >= np.where(held_share(view.fleet) > HELD, _STRENGTH_HELD, LEAST_STRENGTH) * view.strictness
    )
    agreement_W = agreement_with(view, removed_W, rows, slower_W & strong_W)
    late_W = slower_W & strong_W & (agreement_W >= LEAST_AGREEMENT)
    if not late_W.any():
        return
    reference_W = excess.mean_us - removed_W
    more_W = late_W & has_more_data(view)
    if more_W.any():
        members = np.flatnonzero(more_W)
        late = _lateness("peers", members, excess, reference_W, time_WI, agreement_W)
        yield _candidate(view, "load-imbalance", late, 1.0, more_data_evidence(view, members))
    late_W &= ~more_W
    for members, cause, evidence in _split_by_queue(view, np.flatnonzero(late_W), speed):
        late = _lateness("peers", members, excess, reference_W, time_WI, agreement_W)
        coverage = float(np.nanmean(speed.agreeing[members]))
        text = (*_speed_evidence(members, speed, f"on {_whose(members)} peers"), *in_backward_evidence(view, members))
        found = _candidate(view, cause, late, coverage, (*text, *evidence))
        is_unsure = cause == "compute-slow" and bool(may_have_more_data(view)[members].all())
        more = (*found.evidence, _MAY_BE_DATA) if is_unsure else found.evidence
        yield msgspec.structs.replace(found, evidence=more, doubt=_UNKNOWN_CLOCK if is_unsure else found.doubt)


def _of_like_workers(view: View, some_W: NDArray[np.bool_], read: Callable[[NDArray[np.intp]], Floats]) -> Floats:
    """Read times of some workers and of their roles' others; 0 for all others, whose series are not decoded.

    Args:
        view: The window.
        some_W: These workers.
        read: Times of workers (indices). float64 [A, I].

    Returns:
        float64 [W, I].
    """
    near = np.flatnonzero(np.isin(view.fleet.roles, view.fleet.roles[some_W]))
    time_WI = np.zeros(view.fleet.iteration_us.shape)
    time_WI[near] = read(near)
    return time_WI


def _affected(view: View, rows: list[int], workers: NDArray[np.intp]) -> Floats:
    """Return the time that a slow processor stretches: all busy time, or the operators' with an accelerator. [A, I]."""
    fleet = view.fleet
    return fleet.series(rows, workers) if fleet.has_accelerator else (fleet.busy_us - _input(view))[workers]


def _input(view: View) -> Floats:
    rows = view.rows(kinds=frozenset({"python", "compute", "memory", "other", "gc"}), phases=frozenset({"input"}))
    rows += [at for at, key in enumerate(view.fleet.keys) if key.kind == "gc" and key.phase != "input"]
    return np.minimum(view.fleet.series(rows), view.fleet.busy_us)


def _is_slower(view: View, speed: Speed) -> NDArray[np.bool_]:
    least_W = np.full(view.workers, _SLOWER_DEVICE if view.fleet.has_accelerator else _SLOWER_CPU)
    if not view.fleet.has_accelerator:
        least_W[view.is_crowded] = _SLOWER_CROWDED
    least_W[held_share(view.fleet) > HELD] = _SLOWER_HELD
    queued = _queued(view) if speed is view.speed_change else 0.0  # all workers of a window queue alike
    same_work = np.abs(np.nan_to_num(speed.count_ratio, nan=1.0) - 1) <= SAME_COUNT + queued
    most = np.nan_to_num(speed.agreeing) >= MOST
    return np.asarray((np.nan_to_num(speed.factor) >= least_W) & same_work & most, dtype=np.bool_)


def _queued(view: View) -> float:
    """Return the share by which unfinished device work may change counts against the baseline window, 0-1."""
    past = view.suspects.baseline
    if past is None or not view.fleet.has_accelerator or view.is_trace:
        return 0.0
    fewest = min(view.iterations, past.columns.shape[1])
    return float(min(_QUEUED_ITERATIONS / max(fewest, 1), _MOST_QUEUED))


def _corroboration(view: View, workers: Sequence[int]) -> float:
    """Return the standard errors by which the accused were seen stopped or throttled beyond noise."""
    return min(float(np.median(held_share(view.fleet)[list(workers)])) / _HELD_ERROR, _MOST_CORROBORATION)


def _slow_roles(view: View, rows: list[int]) -> Iterator[Candidate]:
    """Accuse roles whose workers all compute more slowly than in the baseline window, while other roles' do not.

    A pipeline stage of one worker has no peers, and a stage whose host is throttled has none that are healthy.
    """
    if view.suspects.baseline is None or np.unique(view.fleet.roles).size < 2:
        return
    speed, time_WI = view.speed_change, view.fleet.series(rows)
    excess = excess_over_baseline(time_WI, view.before(rows))
    agreement_W = view.deficit_since_us / np.maximum(np.nan_to_num(excess.excess_us), 1e-9)
    slower_W = _is_slower(view, speed) & (excess.strength >= LEAST_STRENGTH * view.strictness)
    for late_W in late_roles(view, slower_W, agreement_W):
        members = np.flatnonzero(late_W)
        late = _lateness("baseline", members, excess, excess.reference_us, time_WI, agreement_W)
        cause, evidence = _why_slower(view, members, speed)
        text = (*_speed_evidence(members, speed, "in the baseline window"), *evidence, _UNLIKE_OTHERS)
        yield _candidate(view, cause, late, float(np.nanmean(speed.agreeing[members])), text)


def _slow_job(view: View, rows: list[int]) -> Iterator[Candidate]:
    """Accuse most workers of slower operators than in the baseline window, only when somebody finds the job slow.

    Windows opened by hand on a machine that is busier than before would else all end here.
    """
    speed = view.speed_change
    late_W = _is_slower(view, speed)
    if view.suspects.baseline is None or not view.is_slow or has_more_data_since(view).mean() >= JOB_WIDE:
        return
    time_WI = view.fleet.series(rows)
    excess = excess_over_baseline(time_WI, view.before(rows))
    members = np.flatnonzero(late_W & (excess.strength >= LEAST_STRENGTH))
    if members.size < _MAJORITY * view.workers:
        return
    yield _job_candidate(view, members, speed, time_WI, excess)


def _job_candidate(view: View, members: NDArray[np.intp], speed: Speed, time_WI: Floats, excess: Excess) -> Candidate:
    cause, evidence = _why_slower(view, members, speed)
    agreement = waited_for(np.isin(np.arange(view.workers), members), excess.excess_us, view.wait_rise_us)
    late = _lateness("baseline", members, excess, excess.reference_us, time_WI, agreement)
    return _candidate(
        view,
        cause,
        late,
        float(np.nanmean(speed.agreeing[members])),
        (*_speed_evidence(members, speed, "in the baseline window"), *evidence),
    )


def _why_slower(view: View, members: NDArray[np.intp], speed: Speed) -> tuple[str, tuple[str, ...]]:
    """Choose the cause by whether longer waits for a core than before explain it, with the sentence that says so."""
    queue_W = queued_share(view.fleet) - view.then(queued_share)
    explained = float(np.nan_to_num(np.nanmean(queue_W[members]) if not np.isnan(queue_W[members]).all() else 0.0))
    if explained < EXPLAINED_BY_QUEUE * (1 - 1 / float(np.median(speed.factor[members]))):
        return "compute-slow", ()
    return "cpu-contention", (f"Training threads wait {percent(explained)} more of their time for a core than before.",)


def _split_by_queue(
    view: View, members: NDArray[np.intp], speed: Speed
) -> Iterator[tuple[NDArray[np.intp], str, tuple[str, ...]]]:
    """Split slow workers into those whose threads wait for a core, and the others."""
    queue_W = queued_share(view.fleet)
    more_W = queue_W - np.nan_to_num(view.fleet.usual(queue_W))
    lost_W = 1 - 1 / np.fmax(speed.factor, 1.0)
    waiting_W = np.nan_to_num(more_W, nan=0.0) >= EXPLAINED_BY_QUEUE * np.maximum(lost_W, 1e-9)
    queued = members[waiting_W[members] & (held_share(view.fleet)[members] <= HELD)]
    slow = np.setdiff1d(members, queued)
    if queued.size:
        waits = percent(queue_W[queued].mean())
        text = f"Its training thread is ready but without a core {waits} of the time, peers less."
        yield queued, "cpu-contention", (text,)
    if slow.size:
        yield slow, "compute-slow", tuple(_host_evidence(view, slow))


def _host_evidence(view: View, members: NDArray[np.intp]) -> Iterator[str]:
    yield from _clock_evidence(view, members)
    wording = {
        "stopped": "The process was stopped (state T) {} of the time; peers {}.",
        "throttled": "Its CPU quota held it back {} of the time; peers {}.",
        "run_queue_wait": "Its training thread waited for a core {} of the time; peers {}.",
        "gpu_slowed": "Heat, a power brake or the device itself held its clock back {} of the time; peers {}.",
    }
    others = np.setdiff1d(np.arange(view.workers), members)
    for name, text in wording.items():
        fact_W = host_fact(view.fleet, name)
        own = weighted_mean(fact_W[members], np.ones(members.size))
        peers = weighted_mean(fact_W[others], np.ones(others.size))
        if own > 0.02:
            yield text.format(percent(own), percent(0.0 if np.isnan(peers) else peers))


def _clock_evidence(view: View, members: NDArray[np.intp]) -> Iterator[str]:
    """Describe a device that runs at a lower clock than the peers', and the reason by its driver's word."""
    clock_W = host_fact(view.fleet, "gpu_sm_clock")
    others_W = np.delete(clock_W, members)
    if np.isnan(clock_W[members]).all() or np.isnan(others_W).all():
        return
    own, peers = float(np.nanmean(clock_W[members])), float(np.nanmedian(others_W))
    if own <= _LOWER_CLOCK * peers:
        capped = float(np.nan_to_num(host_fact(view.fleet, "gpu_power_capped")[members]).mean())
        why = f"; the power limit held it back {percent(capped)} of the time" if capped >= _OFTEN_CAPPED else ""
        yield f"Its device ran at {percent(own)} of its highest clock; the peers' at {percent(peers)}{why}."


def _whose(members: NDArray[np.intp]) -> str:
    return "its" if members.size == 1 else "their"


def _speed_evidence(members: NDArray[np.intp], speed: Speed, whom: str) -> tuple[str, ...]:
    at = list(members)
    return (
        f"An operator takes {np.median(speed.factor[at]):.2f} times as long as {whom}.",
        f"{percent(float(np.nanmean(speed.agreeing[at])))} of the operators' time shows it, and they run equally "
        f"often (ratio {np.nanmean(speed.count_ratio[at]):.2f}).",
    )


def _additional_work(speed: Speed) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the share of additional work in operators' time, 0-1, and whether it is most of what is longer. [W]."""
    more_W = np.nan_to_num(speed.more_work)
    longer_W = more_W + np.maximum(np.nan_to_num(speed.slower), 0.0)
    return more_W, np.asarray((more_W >= _MOSTLY_WORK * longer_W) & (more_W >= _MORE_WORK), dtype=np.bool_)


def _more_work(view: View, rows: list[int]) -> Iterator[Candidate]:
    """Accuse workers whose operators run more often than their peers', each at normal speed."""
    fleet, speed = view.fleet, view.speed
    more_W, mostly_W = _additional_work(speed)
    time_WI = _of_like_workers(view, mostly_W, lambda near: fleet.series(rows, near))
    excess = fleet.above_usual(time_WI)
    removed_W = np.minimum(more_W * excess.mean_us, np.nan_to_num(excess.excess_us))
    over_W = mostly_W & (excess.strength >= LEAST_STRENGTH * view.strictness)
    agreement_W = agreement_with(view, removed_W, rows, over_W)
    late_W = over_W & (agreement_W >= LEAST_AGREEMENT)
    members = np.flatnonzero(late_W & (removed_W > 0))
    if not members.size:
        return
    reference_W = excess.mean_us - removed_W
    count = fleet.count[rows].sum(axis=0)
    usual = fleet.usual(count)
    late = _lateness("peers", members, excess, reference_W, time_WI, agreement_W)
    work, longer = more_W[members], np.maximum(np.nan_to_num(speed.slower[members]), 0.0)
    evidence = (
        f"{count[members].mean():.0f} operators per iteration against {np.nanmean(usual[members]):.0f} on "
        f"{_whose(members)} peers; {percent(work.mean())} of their time is the additional work, at normal speed."
    )
    yield _candidate(view, "load-imbalance", late, float((work / np.maximum(work + longer, 1e-9)).mean()), (evidence,))


def _more_work_of_roles(view: View, rows: list[int]) -> Iterator[Candidate]:
    """Accuse roles whose workers all run more operators than in the baseline window, while other roles' do not.

    A pipeline stage of one worker has no peers; what it runs more since is its own.
    """
    if view.suspects.baseline is None or np.unique(view.fleet.roles).size < 2:
        return
    fleet = view.fleet
    more_W, over_W = _additional_work(view.speed_change)
    if not over_W.any():
        return
    time_WI = fleet.series(rows)
    excess = excess_over_baseline(time_WI, view.before(rows))
    agreement_W = view.deficit_since_us / np.maximum(np.nan_to_num(excess.excess_us), 1e-9)
    over_W &= excess.strength >= LEAST_STRENGTH * view.strictness
    count, before = fleet.count[rows].sum(axis=0), view.then(lambda past: past.count[operators(past)].sum(axis=0))
    for late_W in late_roles(view, over_W, agreement_W):
        members = np.flatnonzero(late_W)
        reference_W = np.maximum(excess.mean_us * (1 - more_W), np.nan_to_num(excess.reference_us))
        late = _lateness("baseline", members, excess, reference_W, time_WI, agreement_W)
        share = float(np.clip(more_W[members].mean(), 0, 1))
        evidence = (
            f"{count[members].mean():.0f} operators per iteration against {np.nanmean(before[members]):.0f} in the "
            f"baseline window; {percent(share)} of their time is the additional work, at normal speed."
        )
        yield _candidate(view, "load-imbalance", late, share, (evidence,))


def _lateness(
    reference: Literal["peers", "baseline"],
    members: NDArray[np.intp],
    excess: Excess,
    reference_W: Floats,
    time_WI: Floats,
    agreement_W: Floats | float | None,
) -> Lateness:
    """Build the lateness of workers above the reference, like that of any other group."""
    late_W = np.isin(np.arange(time_WI.shape[0]), members)
    return lateness_of(reference, excess, time_WI, late_W, agreement_W, reference_W)


def _candidate(view: View, cause: str, late: Lateness, coverage: float, evidence: tuple[str, ...]) -> Candidate:
    rows = operators(view.fleet)
    source = view.suspects.peers_us if late.reference == "peers" else view.suspects.before_us
    excess_R = np.nan_to_num(view.fleet.critical_us[rows] - source[rows])[:, list(late.workers)].mean(axis=1)
    focus = Focus(name=view.fleet.keys[rows[int(np.argmax(excess_R))]].name, functions=tuple(rows), share=coverage)
    candidate = accuse(late, cause, "compute", focus, rows, view.settings.min_gain, evidence)
    sure = _corroboration(view, late.workers)
    if cause == "compute-slow" and not may_have_more_data(view)[list(late.workers)].any():
        sure = max(sure, _by_executions(view, late.workers, rows, coverage))
    hidden = late.reference == "peers" and is_hidden(view, late)
    found = msgspec.structs.replace(candidate, corroboration=sure, is_hidden=hidden, is_general=late.agreement is None)
    return found if view.fleet.has_accelerator or cause != "compute-slow" else with_holding(view, found)


def _by_executions(view: View, workers: Sequence[int], rows: list[int], agreeing: float) -> float:
    """Return the strength of an excess that nearly all of a device's many operators share, however few iterations."""
    executions = float(view.fleet.count[rows][:, list(workers)].sum(axis=0).min()) * view.iterations
    is_sure = view.fleet.has_accelerator and agreeing >= _NEARLY_ALL and executions >= _MANY_EXECUTIONS
    return LEAST_STRENGTH if is_sure else 0.0
