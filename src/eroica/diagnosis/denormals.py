"""Matrix products of backward that take far longer than all of forward: numbers below the normal format's least.

Each product of forward has two of the same size in backward, so backward's take about twice as long. Processors work on
denormal numbers ten to a hundred times as slowly, and gradients of a model that fits its data, or that vanish, become
such numbers first. Devices do not mind. Array suffixes: W workers.

All operators of forward count, under whatever name they compute, and also those that no annotation calls forward.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.frames import whole_rows
from eroica.diagnosis.lateness import JOB_WIDE, LEAST_AGREEMENT, LEAST_STRENGTH, Lateness, accuse, agreement_with
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms, short_name
from eroica.localize.excess import standard_error
from eroica.localize.fleet import Fleet
from eroica.model.words import worker_list

Floats = NDArray[np.float64]
_PRODUCTS = frozenset(
    {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mkldnn_convolution", "aten::convolution_backward"}
)
_BEFORE = ("forward", "other", "input")
#: Time of backward's products as a multiple of all of forward: with forward run again it is three; from the second on
#: only the numbers in them explain it.
_USUAL, _FAR_BEYOND = 3.0, 8.0
#: More calls in backward for one of forward are other products.
_MOST_CALLS = 4.0
#: Against the healthy window the multiple must have grown by this factor; without one, the model may be such.
_GROWN, _UNCOMPARED = 2.0, 0.7
_NEXT_STEP = (
    "Gradients or weights have become denormal numbers. torch.set_flush_denormal(True) at the start makes them zero; "
    "then look why they vanish: a loss near zero, a learning rate or an epsilon that is too small."
)


def find_denormals(view: View) -> list[Candidate]:
    """Accuse matrix products of backward that take far longer than forward's let expect.

    On most workers, or on some that the others wait for or are as late as: gradients of own data come first.
    """
    if view.fleet.has_accelerator or view.iterations < 2:
        return []
    first_W, then_W, is_comparable_W = _times(view.fleet)
    far_W = is_comparable_W & (then_W >= _FAR_BEYOND * first_W) & _has_grown(view, first_W, then_W)
    if not far_W.any():
        return []
    backward = _products(view.fleet, ("backward",))
    usual_W, time_WI = _USUAL * first_W, view.fleet.series(backward)
    agreement_W = np.clip(agreement_with(view, then_W - usual_W, backward, far_W), 0.0, 1.0)
    is_job_wide = bool(far_W.mean() >= JOB_WIDE)
    if not is_job_wide:
        far_W &= agreement_W >= LEAST_AGREEMENT
    if not far_W.any():
        return []
    members_W = np.ones(view.workers, np.bool_) if is_job_wide else far_W
    strength = float(np.median(((then_W - usual_W) / np.maximum(standard_error(time_WI), 1e-9))[far_W]))
    if strength < LEAST_STRENGTH * view.strictness:
        return []
    late = Lateness(
        reference="expectation",
        workers=tuple(np.flatnonzero(members_W).tolist()),
        removed_us=np.where(members_W[:, None], np.maximum(time_WI - usual_W[:, None], 0.0), 0.0),
        mean_us=float(then_W[members_W].mean()),
        reference_us=float(usual_W[members_W].mean()),
        strength=strength,
        agreement=None if is_job_wide else float(agreement_W[members_W].min()),
        is_hidden=not is_job_wide and bool((view.deficit_us < LEAST_AGREEMENT * (then_W - usual_W))[members_W].all()),
    )
    found = _candidate(view, backward, late, float(first_W[members_W].mean()))
    return [msgspec.structs.replace(found, doubt=_UNCOMPARED if view.suspects.baseline is None else 1.0)]


def _times(fleet: Fleet) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Sum what runs before backward, and backward's products, on each worker; mark where they are comparable. [W]."""
    forward = [at for at, key in enumerate(fleet.keys) if key.kind == "compute" and key.phase in _BEFORE]
    calls_W, more_W = (fleet.count[_products(fleet, phases)].sum(axis=0) for phases in (_BEFORE, ("backward",)))
    first_W = fleet.critical_us[forward].sum(axis=0)
    then_W = fleet.critical_us[_products(fleet, ("backward",))].sum(axis=0)
    return first_W, then_W, (first_W > 0) & (more_W > 0) & (more_W <= _MOST_CALLS * calls_W)


def _products(fleet: Fleet, phases: Collection[str]) -> list[int]:
    return [at for at, key in enumerate(fleet.keys) if key.name in _PRODUCTS and key.phase in phases]


def _has_grown(view: View, first_W: Floats, then_W: Floats) -> NDArray[np.bool_]:
    """Mark workers on which the multiple is far larger than in the healthy window; all without one. bool [W]."""
    if view.suspects.baseline is None:
        return np.ones(view.workers, np.bool_)
    return np.asarray(then_W >= _GROWN * np.nan_to_num(view.then(_multiple)) * first_W)


def _multiple(fleet: Fleet) -> Floats:
    first_W, then_W, _ = _times(fleet)
    return then_W / np.maximum(first_W, 1e-9)


def _candidate(view: View, rows: list[int], late: Lateness, forward_us: float) -> Candidate:
    heaviest = max(rows, key=lambda row: float(view.fleet.critical_us[row].sum()))
    name = view.fleet.keys[heaviest].name
    ratio, backward = late.mean_us / max(forward_us, 1e-9), format_ms(late.mean_us)
    ranks = [view.fleet.ranks[worker] for worker in late.workers]
    where = "" if late.agreement is None else f" on {worker_list(ranks)}"
    found = accuse(late, "compute-slow", "compute", whole_rows(name, rows), rows, view.settings.min_gain)
    return msgspec.structs.replace(
        found,
        sentence=(
            f"Matrix products of backward ({short_name(name)}) take {ratio:.0f} times as long as all of forward"
            f"{where}, {backward} of each {format_ms(view.iteration_us)} iteration: so slowly processors work on "
            "denormal numbers."
        ),
        evidence=(
            f"Backward's products take {backward}, all operators of forward {format_ms(forward_us)}; backward's should "
            "take about twice as long as forward's, whose sizes they have.",
        ),
        next_step=_NEXT_STEP,
        stands_for=frozenset({"compute-slow", "load-imbalance"}),
    )
