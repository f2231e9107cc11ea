"""Activations that the backward pass computes again: `torch.utils.checkpoint` trades time for memory.

Where it was switched on for more modules, inside each other, or on some workers only, everything that forward does
shows as more of it, and no function of it is to blame. The frames of the library that run forward again tell.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.arbiter import Cause
from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.frames import split_frame
from eroica.diagnosis.rows import reference_of_rows
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms
from eroica.localize.excess import median_of_others
from eroica.localize.fleet import Fleet
from eroica.model.pattern import FunctionKey

Floats = NDArray[np.float64]
_FILE = "torch/utils/checkpoint.py"
#: Its ways to run forward again: with a function of autograd, or when a saved tensor is asked for.
_AGAIN = frozenset({"backward", "recompute_fn", "unpack_hook"})
#: Share of a cause's excess that it must account for.
_MOSTLY = 0.6
_NEXT_TO_NOTHING_US = 10.0
_NEXT_STEP = (
    "Compare where activation checkpointing is switched on with what it was, or with the other workers: checkpoints "
    "inside each other run forward several times. "
)


def tell_recomputation(view: View, causes: Sequence[Cause]) -> list[Cause]:
    """Say of causes that are mostly forward run again that they are.

    Only where Python runs while the work is done: on a device the stacks are past it.
    """
    if not view.sees_callers:
        return list(causes)
    return [msgspec.structs.replace(cause, candidate=_told(view, cause.candidate)) for cause in causes]


def _told(view: View, found: Candidate) -> Candidate:
    members = list(found.workers)
    if not members or found.excess_us <= 0:
        return found
    again_W = _again_us(view.fleet)
    own_us, usual_us = float(again_W[members].mean()), _usual_us(view, found, again_W)
    if usual_us is None or not _accounts(view, found, own_us - usual_us):
        return found
    whom = "before" if found.reference == "baseline" else "on the peers"
    usual = format_ms(usual_us) if usual_us >= _NEXT_TO_NOTHING_US else "not at all"
    text = f"Backward runs forward again (torch.utils.checkpoint), {format_ms(own_us)} per iteration; {whom} {usual}."
    step = _NEXT_STEP + found.next_step
    return msgspec.structs.replace(found, evidence=(*found.evidence, text), next_step=step.strip())


def _accounts(view: View, found: Candidate, more_us: float) -> bool:
    """True if the work that runs again is most of a cause's excess: its own rows, or as much as its operators."""
    if found.kind in ("compute", "memory"):
        return _MOSTLY * found.excess_us <= more_us <= found.excess_us / _MOSTLY
    if found.kind != "python" or more_us < _MOSTLY * found.excess_us:
        return False
    rows = [at for at in found.functions if _runs_again(view.fleet.keys[at])]
    time_R = view.fleet.critical_us[rows][:, list(found.workers)].mean(axis=1)
    return float((time_R - reference_of_rows(view, rows, found)).sum()) >= _MOSTLY * found.excess_us


def _usual_us(view: View, found: Candidate, again_W: Floats) -> float | None:
    members = list(found.workers)
    if found.reference == "peers":
        usual_W = median_of_others(again_W, view.fleet.roles)
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
    frames = (split_frame(entry) for entry in key.stack if _FILE in entry)
    return any(frame.file == _FILE and frame.name.rpartition(".")[2] in _AGAIN for frame in frames)
