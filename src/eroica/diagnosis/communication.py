"""Collectives: slower on everybody while nobody is late; and, as symptoms, those that only wait."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.frames import Focus
from eroica.diagnosis.lateness import LEAST_RATIO, LEAST_STRENGTH
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms, name_workers
from eroica.localize.excess import mean_error
from eroica.localize.roles import stage_of

Floats = NDArray[np.float64]
#: Least gain: the common part of waiting varies with everything else that a job does.
_LEAST_GAIN = 0.05
#: Collectives that take less than this share of the waiters' excess are not worth a line.
_LEAST_SHARE = 0.1
_MOST_SYMPTOMS = 3
#: With more workers than cores a transfer takes its turn on the cores too, and so varies this much.
_CROWDED_RATIO = 2.0
#: Doubt left where waiting for somebody without a trace cannot be excluded.
_UNTOLD = 0.6


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A collective that is long because somebody is late.

    Attributes:
        functions: Its rows (indices into the fleet's keys).
        name: Name of the collective.
        group: Its process group.
        workers: Who waits in it (indices).
        mean_us: Critical time per iteration on them.
        accused_us: The same on those they wait for; NaN where nobody is accused.
    """

    functions: tuple[int, ...]
    name: str
    group: str
    workers: tuple[int, ...]
    mean_us: float
    accused_us: float


def collectives(view: View) -> list[int]:
    """Rows of collectives with critical time."""
    return [
        at
        for at, key in enumerate(view.fleet.keys)
        if key.kind == "collective" and view.fleet.critical_us[at].max() > 0
    ]


def common_wait(wait_WI: Floats) -> Floats:
    """The part of an iteration's collective time that even the last to arrive spends. float64 [1, I]."""
    return np.asarray(wait_WI.min(axis=0)[None])


def find_slow_communication(view: View) -> list[Candidate]:
    """Collectives that take longer than before, or than expected, on the last to arrive too.

    Against the baseline it is claimed only when somebody finds the job slow; against the expectation only with an
    accelerator, for collectives on busy cores take what they take.
    """
    rows = collectives(view)
    if not rows or (view.workers < 2 and not view.is_trace) or _is_pipeline(view):
        return []
    now_I = common_wait(view.fleet.wait_us)
    past = view.suspects.baseline
    allowed = view.settings.expected_collective * view.iteration_us if view.fleet.has_accelerator else np.inf
    if past is not None and view.is_slow:
        ratio = _CROWDED_RATIO if view.is_crowded.any() and not view.fleet.has_accelerator else LEAST_RATIO
        allowed = min(allowed, float(common_wait(past.wait_us).mean()) * (1 + ratio))
    excess = float(now_I.mean()) - allowed
    strength = excess / max(float(mean_error(now_I)[0]), 1e-9)
    if not np.isfinite(excess) or strength < LEAST_STRENGTH * view.strictness:
        return []
    return [_candidate(view, rows, now_I, allowed, strength)]


def _is_pipeline(view: View) -> bool:
    """Whether recorded workers are stages of a pipeline: they wait while it fills and drains, however fast it is."""
    return view.is_trace and len({stage_of(pattern) for pattern in view.fleet.patterns} - {None}) > 1


def _candidate(view: View, rows: list[int], now_I: Floats, allowed: float, strength: float) -> Candidate:
    heaviest = max(rows, key=lambda at: float(view.fleet.critical_us[at].mean()))
    key = view.fleet.keys[heaviest]
    focus = Focus(name=key.name, place="", stack=(), functions=tuple(rows), share=1.0, is_own=False, is_specific=True)
    against_past = view.suspects.baseline is not None and view.is_slow
    return Candidate(
        cause="slow-collective-everywhere",
        scope="all",
        workers=tuple(range(view.workers)),
        functions=tuple(rows),
        focus=focus,
        kind="collective",
        removed_us=np.repeat(np.maximum(now_I - allowed, 0.0), view.workers, axis=0),
        mean_us=float(now_I.mean()),
        reference_us=allowed,
        reference="baseline" if against_past else "expectation",
        strength=strength,
        coverage=float(view.fleet.critical_us[heaviest].mean() / view.fleet.critical_us[rows].mean(axis=1).sum()),
        agreement=None,
        least_gain=max(_LEAST_GAIN, view.settings.min_gain),
        is_general=True,
        evidence=(_nobody_is_late(view),),
        sentence=_exposed(view, key.name, float(now_I.mean())) if _may_wait(view) else "",
        doubt=_UNTOLD if _may_wait(view) else 1.0,
    )


def _may_wait(view: View) -> bool:
    """Whether somebody without a trace may be the one that is waited for."""
    return view.is_trace and (view.workers == 1 or bool(view.context.missing))


def _nobody_is_late(view: View) -> str:
    if _may_wait(view):
        return (
            "Traces of some workers only: nobody can tell from them whether these wait for a late one or the transfer "
            "itself is slow; traces of all ranks would."
        )
    return "Even the worker that arrives last spends this long in collectives: nobody is waited for."


def _exposed(view: View, name: str, mean_us: float) -> str:
    who = name_workers(view.fleet.ranks, capital=True)
    ending = "s" if view.workers == 1 else ""
    return (
        f"{who} spend{ending} {format_ms(mean_us)} of each {format_ms(view.iteration_us)} iteration in {name} while "
        "nothing else runs; whether that is slow transfer or waiting for others cannot be told without their traces."
    )


def find_waiting(view: View, accused: Sequence[int], excess_us: float) -> list[Waiting]:
    """Collectives in which the others wait for the accused, longest first.

    Args:
        view: The window.
        accused: Who is late (indices); empty where that changes from iteration to iteration.
        excess_us: By how much they are late.
    """
    others = [worker for worker in range(view.workers) if worker not in set(accused)]
    if not others:
        return []
    found: dict[tuple[str, str], list[int]] = {}
    for row in collectives(view):
        key = view.fleet.keys[row]
        # groups of one kind wait alike in a recording of many; online each group is named
        found.setdefault((key.name, "" if view.is_trace else key.group), []).append(row)
    waits = [_waiting(view, name, rows, others, list(accused)) for name, rows in sorted(found.items())]
    worth = [wait for wait in waits if wait is not None and _extra(wait) >= _LEAST_SHARE * excess_us]
    return sorted(worth, key=lambda wait: -_extra(wait))[:_MOST_SYMPTOMS]


def _extra(wait: Waiting) -> float:
    return wait.mean_us - (0.0 if np.isnan(wait.accused_us) else wait.accused_us)


def _waiting(
    view: View, name: tuple[str, str], rows: list[int], others: list[int], accused: list[int]
) -> Waiting | None:
    time_W = view.fleet.critical_us[rows].sum(axis=0)
    least = view.settings.beta_gate * view.iteration_us
    usual = float(time_W[accused].mean()) if accused else float("nan")
    waiters = [worker for worker in others if time_W[worker] - np.nan_to_num(usual) >= least]
    if not waiters:
        return None
    return Waiting(
        functions=tuple(rows),
        name=name[0],
        group=name[1],
        workers=tuple(waiters),
        mean_us=float(time_W[waiters].mean()),
        accused_us=usual,
    )
