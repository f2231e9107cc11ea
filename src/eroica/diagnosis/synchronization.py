"""Waits of the host for its device after which the device has no work: `.item()`, `.cpu()`, `nonzero`, synchronize().

Only with an accelerator: without one there is nothing to wait for.

Array suffixes: W workers, I iterations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate, FindingKind
from eroica.diagnosis.frames import NOTHING, Focus, is_own_frame, split_frame
from eroica.diagnosis.lateness import JOB_WIDE, LEAST_AGREEMENT, LEAST_STRENGTH, accuse, lateness_of, waited_for
from eroica.diagnosis.limits import LISTED
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms, name_workers, short_name
from eroica.localize.excess import Excess, mean_error
from eroica.localize.fleet import Fleet
from eroica.model.pattern import Synchronization, WorkerPattern
from eroica.model.series import decode_series
from eroica.model.shares import percent
from eroica.model.window import SLOWER

Floats = NDArray[np.float64]
#: Share of the iteration that the device may idle after waits: a loss that is read once, the end of an iteration.
_ALLOWED = 0.02
#: Share of what is lost in a recording of which the profiler may be the cause, for it slows launching.
_PROFILER = 0.5
_DOUBT = 0.8


def find_synchronization(view: View) -> list[Candidate]:
    """Accuse workers, or all, whose devices idle for longer than usual after waits of their host."""
    if not view.fleet.has_accelerator or view.suspects.arrivals.contradicted:
        return []
    lost_WI = _lost(view.fleet) * (_PROFILER if view.is_trace else 1.0)
    mean_W, allowed_W = lost_WI.mean(axis=1), _allowed(view)
    least_W = allowed_W + view.settings.min_gain * view.iteration_us
    strong_W = (mean_W - allowed_W) / np.maximum(mean_error(lost_WI), 1e-9) >= LEAST_STRENGTH * view.strictness
    late_W = np.asarray((mean_W >= least_W) & strong_W, dtype=np.bool_)
    if not late_W.any():
        return []
    return list(_candidates(view, lost_WI, late_W, allowed_W))


def _allowed(view: View) -> Floats:
    """Return the usual idle time; of a job that has got slower, that of its baseline window, if more. float64 [W]."""
    usual_W = np.full(view.workers, _ALLOWED * view.iteration_us)
    if view.context.window.purpose not in SLOWER or view.suspects.baseline is None:
        return usual_W
    return np.asarray(np.fmax(usual_W, view.then(lambda past: np.asarray(_lost(past).mean(axis=1)))))


def _lost(fleet: Fleet) -> Floats:
    """Return the idle time of each worker's device after waits. float64 [W, I]."""
    return np.stack([_series(pattern, fleet.columns[worker]) for worker, pattern in enumerate(fleet.patterns)])


def _series(pattern: WorkerPattern, columns: NDArray[np.intp]) -> Floats:
    total = np.zeros(columns.size)
    for one in pattern.syncs:
        series = decode_series(one.per_iteration_us, np.float32)
        if series.size > int(columns[-1]):
            total += series[columns]
        else:
            total += one.lost_s * 1e6 / max(pattern.last_iteration - pattern.first_iteration, 1)
    return total


def _candidates(view: View, lost_WI: Floats, late_W: NDArray[np.bool_], allowed_W: Floats) -> Iterator[Candidate]:
    mean_W = lost_WI.mean(axis=1)
    agreement_W: Floats | float | None = waited_for(late_W, mean_W - allowed_W, view.wait_us)
    if agreement_W is None and late_W.mean() < JOB_WIDE:
        agreement_W = view.deficit_us / np.maximum(mean_W - np.nan_to_num(view.fleet.usual(mean_W)), 1e-9)
        late_W = late_W & (agreement_W >= LEAST_AGREEMENT)
        if not late_W.any():
            return
    excess = Excess(mean_us=mean_W, reference_us=allowed_W, error_us=mean_error(lost_WI))
    late = lateness_of("expectation", excess, lost_WI, late_W, agreement_W)
    syncs = _together(view, late.workers)
    focus = _focus(view, syncs)
    kind: FindingKind = "python" if focus.stack else "other"
    evidence = tuple(_evidence(view, late.workers, syncs))
    yield msgspec.structs.replace(
        accuse(late, "host-device-sync", kind, focus, focus.functions, view.settings.min_gain, evidence),
        removed_us=np.minimum(late.removed_us, view.fleet.busy_us),
        strength=min(late.strength, 99.0),
        coverage=1.0,
        sentence=_sentence(view, late.workers, focus, syncs, late.mean_us),
        doubt=_DOUBT if view.is_trace else 1.0,
    )


def _together(view: View, workers: tuple[int, ...]) -> list[Synchronization]:
    """List the synchronizations of the accused, the costliest first; each as on the worker that loses most by it."""
    found: dict[str, Synchronization] = {}
    for worker in workers:
        for one in view.fleet.patterns[worker].syncs:
            if one.name not in found or one.lost_s > found[one.name].lost_s:
                found[one.name] = one
    return sorted(found.values(), key=lambda one: (-one.lost_s, one.name))


def _focus(view: View, syncs: list[Synchronization]) -> Focus:
    """Find the user's frame that waits, where Python was seen, else the operator or call that does."""
    if not syncs:
        return NOTHING
    first = syncs[0]
    rows = tuple(at for at, key in enumerate(view.fleet.keys) if key.name in (first.name, first.call))
    own = next((frame for frame in reversed(first.stack) if is_own_frame(frame)), "")
    entry = split_frame(own or (first.stack[-1] if first.stack else first.name))
    return Focus(name=entry.name, place=entry.place, stack=first.stack, functions=rows, is_own=bool(own))


class _PerIteration(NamedTuple):
    """Waits of one name in an iteration, mean over the accused."""

    times: float
    waited_us: float
    lost_us: float


def _per_iteration(view: View, workers: tuple[int, ...], name: str) -> _PerIteration:
    sums = np.zeros(3)
    for worker in workers:
        pattern = view.fleet.patterns[worker]
        iterations = max(pattern.last_iteration - pattern.first_iteration, 1)
        for one in pattern.syncs:
            if one.name == name:
                sums += np.array([one.count, one.waited_s * 1e6, one.lost_s * 1e6]) / iterations
    return _PerIteration(*(sums / len(workers)).tolist())


def _sentence(view: View, workers: tuple[int, ...], focus: Focus, syncs: list[Synchronization], mean_us: float) -> str:
    ranks = [view.fleet.ranks[worker] for worker in workers]
    whose = (
        "its device"
        if view.workers == 1
        else f"the device of {name_workers(ranks)}"
        if len(ranks) == 1
        else (f"the devices of {name_workers(ranks)}")
    )
    what = short_name(syncs[0].name)
    where = f" in {focus.label}" if focus.stack else ""
    ending = "s" if len(ranks) == 1 else ""
    times = _per_iteration(view, workers, syncs[0].name).times
    return (
        f"The host waits for {whose} in {what}{where}, {times:.1f} times per iteration, and "
        f"{'it then idles' if ending else 'they then idle'} {format_ms(mean_us)} of each "
        f"{format_ms(view.iteration_us)} iteration until the next kernel is launched."
    )


def _evidence(view: View, workers: tuple[int, ...], syncs: list[Synchronization]) -> Iterator[str]:
    for one in syncs[:LISTED]:
        inside = "" if one.call == one.name else f" ({one.call})"
        each = _per_iteration(view, workers, one.name)
        yield (
            f"{short_name(one.name)}{inside}: {each.times:.1f} times per iteration; the host waits "
            f"{format_ms(each.waited_us)} for the device, which then has no work for {format_ms(each.lost_us)}."
        )
    yield f"Up to {percent(_ALLOWED)} of the iteration is taken for normal."
    if view.is_trace:
        yield "Profiling itself slows launching: half of that idle time is taken for the profiler's."
