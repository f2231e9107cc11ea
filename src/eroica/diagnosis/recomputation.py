"""Activations that the backward pass computes again: `torch.utils.checkpoint` trades time for memory.

Where it was switched on for more modules, inside each other, or on some workers only, everything that forward does
shows as more of it, and no function of it is to blame. The frames of the library that run forward again tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.arbiter import Cause
from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.frames import Focus, find_focus, split_frame
from eroica.diagnosis.lateness import LEAST_RATIO, LEAST_STRENGTH, Lateness
from eroica.diagnosis.limits import MOST
from eroica.diagnosis.python_code import accuse_python
from eroica.diagnosis.rows import reference_of_rows
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms
from eroica.localize.fleet import Fleet
from eroica.model.pattern import FunctionKey

Floats = NDArray[np.float64]
_FILE = "torch/utils/checkpoint.py"
#: Its ways to run forward again: with a function of autograd, or when a saved tensor is asked for.
_AGAIN = frozenset({"backward", "recompute_fn", "unpack_hook"})
_NEXT_TO_NOTHING_US = 10.0
_FORWARD_AGAIN = "Backward runs forward again (torch.utils.checkpoint)"
#: As what the same shows: all that calls it, and operators that run more often.
_SAME = frozenset({"python-on-critical-path", "compute-slow", "load-imbalance", "memory-operation-storm"})
_NEXT_STEP = (
    "Compare where activation checkpointing is switched on with what it was, or with the other workers: checkpoints "
    "inside each other run forward several times. "
)


def find_recomputation(view: View) -> Iterator[Candidate]:
    """Accuse forward that all workers run again in backward, and did not when the job was healthy.

    Its operators count; of these only the sum over the window is known. Where one function of the user's is most of
    what runs again, that is told, and by other rules.
    """
    past = view.suspects.baseline
    if not view.sees_callers or past is None or view.iteration_us < past.mean_iteration_us:
        return
    rows = [at for at, key in enumerate(view.fleet.keys) if _runs_again(key)]
    slower_W = np.maximum(
        np.nan_to_num(view.speed_change.factor, nan=1.0), 1.0
    )  # what ran again already is slower, too
    again_W, then_W = _again_us(view.fleet), np.nan_to_num(view.then(_again_us)) * slower_W
    more_W, critical_W = again_W - then_W, view.fleet.critical_us[rows].sum(axis=0)
    least_W = np.maximum(view.settings.min_gain * view.iteration_us, LEAST_RATIO * then_W)
    if not rows or (more_W < least_W).any() or not critical_W.all() or _is_of_one(view, rows):
        return
    error_W = np.sqrt((view.fleet.error_us[rows] ** 2).sum(axis=0)) * again_W / np.maximum(critical_W, 1e-9)
    late = Lateness(
        reference="baseline",
        workers=tuple(range(view.workers)),
        removed_us=np.repeat(more_W[:, None], view.iterations, axis=1),
        mean_us=float(again_W.mean()),
        reference_us=float(then_W.mean()),
        strength=float(np.median(more_W / np.maximum(error_W, 1e-9))),
    )
    if late.strength < LEAST_STRENGTH:
        return
    found = accuse_python(view, tuple(rows), _focus(view, rows), late, with_operators=True)
    found = msgspec.structs.replace(found, stands_for=_SAME)
    yield _with_text(found, late.mean_us, late.reference_us)


def _is_of_one(view: View, rows: Sequence[int]) -> bool:
    """True if one function of the user's, below the frames that run forward again, holds most of that."""
    keys = [msgspec.structs.replace(key, stack=_below(key.stack)) for key in (view.fleet.keys[row] for row in rows)]
    time_R = view.fleet.total_us[list(rows)].mean(axis=1)
    focus = find_focus(keys, range(len(rows)), time_R, time_R)
    return focus is not None and focus.is_own


def _below(stack: tuple[str, ...]) -> tuple[str, ...]:
    return stack[next(at for at, entry in enumerate(stack) if _is_again(entry)) + 1 :]


def _focus(view: View, rows: Sequence[int]) -> Focus:
    """Name the frame that runs forward again, where it takes most."""
    heaviest = max(rows, key=lambda row: float(view.fleet.total_us[row].sum()))
    stack = view.fleet.keys[heaviest].stack
    stack = stack[: len(stack) - len(_below(stack))]
    frame = split_frame(stack[-1])
    return Focus(name=frame.name, place=frame.place, stack=stack, functions=tuple(rows))


def tell_recomputation(view: View, causes: Sequence[Cause]) -> list[Cause]:
    """Say of causes that are mostly forward run again that they are.

    Only where Python runs while the work is done: on a device the stacks are past it.
    """
    if not view.sees_callers:
        return list(causes)
    return [msgspec.structs.replace(cause, candidate=_told(view, cause.candidate)) for cause in causes]


def _told(view: View, found: Candidate) -> Candidate:
    members = list(found.workers)
    if not members or found.excess_us <= 0 or any(_FORWARD_AGAIN in text for text in found.evidence):
        return found
    again_W = _again_us(view.fleet)
    own_us, usual_us = float(again_W[members].mean()), _usual_us(view, found, again_W)
    if usual_us is None or not _accounts(view, found, own_us - usual_us):
        return found
    return _with_text(found, own_us, usual_us)


def _with_text(found: Candidate, own_us: float, usual_us: float) -> Candidate:
    whom = "before" if found.reference == "baseline" else "on the peers"
    usual = format_ms(usual_us) if usual_us >= _NEXT_TO_NOTHING_US else "not at all"
    text = f"{_FORWARD_AGAIN}, {format_ms(own_us)} per iteration; {whom} {usual}."
    step = _NEXT_STEP + found.next_step
    return msgspec.structs.replace(found, evidence=(*found.evidence, text), next_step=step.strip())


def _accounts(view: View, found: Candidate, more_us: float) -> bool:
    """True if the work that runs again is most of a cause's excess: its own rows, or as much as its operators."""
    if found.kind in ("compute", "memory"):
        return MOST * found.excess_us <= more_us <= found.excess_us / MOST
    if found.kind != "python" or more_us < MOST * found.excess_us:
        return False
    rows = [at for at in found.functions if _runs_again(view.fleet.keys[at])]
    time_R = view.fleet.critical_us[rows][:, list(found.workers)].mean(axis=1)
    return float((time_R - reference_of_rows(view, rows, found)).sum()) >= MOST * found.excess_us


def _usual_us(view: View, found: Candidate, again_W: Floats) -> float | None:
    members = list(found.workers)
    if found.reference == "peers":
        usual_W = view.fleet.usual(again_W)
    elif found.reference == "baseline":
        usual_W = view.then(_again_us)
    else:
        return None
    return None if np.isnan(usual_W[members]).all() else float(np.nanmean(usual_W[members]))


def _again_us(fleet: Fleet) -> Floats:
    """Return the training thread's time below a frame that runs forward again, operators included. float64 [W]."""
    rows = [at for at, key in enumerate(fleet.keys) if _runs_again(key)]
    return np.asarray(fleet.total_us[rows].sum(axis=0))


def _runs_again(key: FunctionKey) -> bool:
    if key.kind != "python" or key.thread != "training":
        return False
    return any(map(_is_again, key.stack))


def _is_again(entry: str) -> bool:
    frame = split_frame(entry) if _FILE in entry else None
    return frame is not None and frame.file == _FILE and frame.name.rpartition(".")[2] in _AGAIN
