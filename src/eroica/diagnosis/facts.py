"""Measure the facts of a block: what its function does, what its operators did, and what its workers lacked."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.block import Block, Growth
from eroica.diagnosis.frames import MOST, Activity, activity_of
from eroica.diagnosis.operators import Source, held_share, host_fact, queued_share, weighted_mean
from eroica.diagnosis.outliers import FEWEST_SAMPLES
from eroica.diagnosis.view import View
from eroica.model.pattern import ASIDE

Floats = NDArray[np.float64]
#: Quantities that the training sets (fields of `Workload`), and the parts of the iteration that take longer with them.
_PARAMETERS, _AFTER_FORWARD = ("parameters", "gradients"), frozenset({"backward", "optimizer", "other"})
_DATA, _WITH_DATA = (
    ("batches", "passes", "samples", "elements", "tensors"),
    frozenset({"input", "forward", "backward", "other"}),
)
#: Where functions run that are not the training thread's.
_WHERE = {"loader": "a loader process", "child": "a process that the worker has started"}
#: A quantity has grown from this factor on. What it explains may have grown by so many times as much.
_LEAST_GROWTH, _BEYOND = 1.1, 1.5


def with_facts(view: View, block: Block) -> Block:
    """Return the block with all that labels, gate and sentences read of it."""
    workers = list(block.workers) or list(range(view.workers))
    measured = dict[str, object](
        held=float(held_share(view.fleet)[workers].mean()),
        stopped=float(np.nan_to_num(host_fact(view.fleet, "stopped"))[workers].mean()),
        queued=_queued(view, block, workers),
        planned=_planned(view, block),
    )
    if block.cell in ("input", "python"):
        measured |= _of_python(view, block, workers)
    if block.scope == "rotating" and block.cell == "operators":
        return block
    if block.cell in ("operators", "memory"):
        measured |= _of_operators(view, block, workers)
    return msgspec.structs.replace(block, facts=msgspec.structs.replace(block.facts, **measured))


def _planned(view: View, block: Block) -> tuple[Growth, ...]:
    """Return what the training itself does more of than in the baseline window, if that explains the block's time.

    It does if most of the excess lies in parts of the iteration that take longer with it, and these have grown by no
    more than they may. Backward takes longer with each parameter that gets a gradient, attention by the square of a
    length.
    """
    if block.reference != "baseline" or block.scope != "all" or not block.rows:
        return ()
    known = {one.what: one for one in (*view.growths, *(_tensors(view) if block.cell == "python" else ()))}
    times = {name: known[name].times if name in known else 1.0 for name in (*_PARAMETERS, *_DATA)}
    if times["gradients"] != 1 and times["gradients"] * times["passes"] < _LEAST_GROWTH:
        # optimizers step in turn: other gradients are there when the window opens, and as many are computed in it
        times |= dict.fromkeys((*_PARAMETERS, "passes"), 1.0)
    parameters = max(times["parameters"], times["gradients"])
    longer = max(times["elements"], times["tensors"])
    data = max(times["batches"], times["passes"]) * times["samples"] * max(longer, longer**2)
    plans = (
        (_PARAMETERS, _AFTER_FORWARD, parameters),
        (_DATA, _WITH_DATA, data),
        ((*_PARAMETERS, *_DATA), _AFTER_FORWARD | _WITH_DATA, parameters * data),
    )
    for names, phases, most in plans:
        if most >= _LEAST_GROWTH and _explains(view, block, phases, most):
            return tuple(known[name] for name in names if times[name] >= _LEAST_GROWTH)
    return ()


def _tensors(view: View) -> tuple[Growth, ...]:
    """Return the growth of tensors that operators of half of the workers show, where no loader tells batch sizes.

    It explains a function of the user's. Whether operators themselves compute more, or more slowly, is not known.
    """
    if any(one.what == "samples" for one in view.growths) or 2 * view.larger["baseline"].sum() < view.workers:
        return ()
    return (Growth(what="tensors", before=1.0, now=float(np.nanmedian(view.speeds["baseline"].factor))),)


def _explains(view: View, block: Block, phases: frozenset[str], most: float) -> bool:
    """Return True if the block's growth lies in these phases, and is not clearly more than `most` times."""
    if block.cell == "collectives":
        most = next((one.times for one in view.growths if one.what == "sent"), most)
        rows = list(block.rows)
    else:
        rows = [row for row in block.rows if view.fleet.keys[row].phase in phases]
    is_new = block.cell == "python" and block.focus.is_own and "forward" not in phases
    if is_new:  # a function of the user knows of parameters where autograd calls it, and is not called without them
        rows = [row for row in rows if view.fleet.keys[row].phase == "backward"]
    now_us = float(view.fleet.critical_us[rows].sum(axis=0).mean())
    before_us = float(np.nan_to_num(view.suspects.before_us[rows]).sum(axis=0).mean())
    most_us = _BEYOND * (view.baseline_us or 0.0) if is_new else (1 + _BEYOND * (most - 1)) * before_us
    return now_us - before_us >= MOST * block.excess_us and now_us <= most_us


def _queued(view: View, block: Block, workers: list[int]) -> float:
    """Return the share of the excess that is a longer wait for a core than usual."""
    now_W = queued_share(view.fleet)
    usual_W = view.suspects.then(queued_share) if block.reference == "baseline" else view.fleet.usual(now_W)
    lost = 1 - block.reference_us / max(block.mean_us, 1e-9)
    more = float(np.nan_to_num(now_W - usual_W)[workers].mean())
    return float(np.clip(more / max(lost, 1e-9), 0.0, 1.0))


def _of_python(view: View, block: Block, workers: list[int]) -> dict[str, object]:
    rows = list(block.focus.functions or block.rows)
    is_aside = bool(rows) and view.fleet.keys[rows[0]].thread in ASIDE
    time_RW = (view.fleet.total_us if is_aside else view.fleet.critical_us)[rows][:, workers]
    time_W = time_RW.sum(axis=0)
    activity = block.facts.activity or _activity(view, rows, time_RW.sum(axis=1))
    is_seen = float(view.fleet.samples[rows][:, workers].sum()) >= FEWEST_SAMPLES
    core = weighted_mean(view.fleet.pattern[rows][:, workers, 1].ravel(), time_RW.ravel()) if is_seen else np.nan
    is_timed = time_W > 0
    disk_W = np.nan_to_num(host_fact(view.fleet, "loader_disk_wait" if is_aside else "disk_wait")[workers])
    on_disk = disk_W[is_timed] * view.iteration_us / time_W[is_timed]
    queued = 0.0 if is_aside else weighted_mean(np.nan_to_num(queued_share(view.fleet)[workers]), time_W)
    return {
        "activity": activity,
        "core": core,
        "allowed": float(np.clip(1.0 - np.nan_to_num(queued), 0.0, 1.0)),
        "on_disk": min(float(on_disk.mean()), 1.0) if on_disk.size else 0.0,
        "elsewhere": _WHERE.get(view.fleet.keys[rows[0]].thread, "another thread") if block.is_elsewhere else "",
    }


def _activity(view: View, rows: Sequence[int], time_R: Floats) -> Activity:
    """Return the activity that holds most of the time by frames; reads of files and sockets count together."""
    held: dict[Activity, float] = {}
    for row, time in zip(rows, time_R, strict=True):
        activity = activity_of(view.fleet.keys[row].stack)
        held[activity] = held.get(activity, 0.0) + float(time)
    least, network, file = MOST * sum(held.values()), held.get("network", 0.0), held.get("file", 0.0)
    if 0 < network + file >= least:
        return "network" if network >= file else "file"
    return next((activity for activity, time in held.items() if time > 0 and time >= least), "")


def _of_operators(view: View, block: Block, workers: list[int]) -> dict[str, object]:
    """Compare the workers' operators with the block's reference."""
    source: Source = "peers" if block.reference == "peers" else "baseline"
    speed = view.speeds[source]

    def mean(value_W: Floats) -> float:
        return float(np.nan_to_num(value_W[workers]).mean())

    return {
        "factor": float(np.nan_to_num(speed.factor[workers], nan=1.0).min()),
        "more_work": mean(speed.more_work),
        "slower": max(mean(np.maximum(np.nan_to_num(speed.slower), 0.0)), 0.0),
        "has_more_data": bool(view.larger[source][workers].all()),
        "operator": _operator(view, block, workers),
    }


def _operator(view: View, block: Block, workers: list[int]) -> str:
    """Return the name of the operator that holds most of the block; "" where several share it."""
    source = view.suspects.before_us if block.reference == "baseline" else view.suspects.peers_us
    rows = list(block.rows)
    more_R = (view.fleet.critical_us[rows] - np.nan_to_num(source[rows]))[:, workers].mean(axis=1)
    held: dict[str, float] = {}
    for row, more in zip(rows, more_R.tolist(), strict=True):
        held[view.fleet.keys[row].name] = held.get(view.fleet.keys[row].name, 0.0) + max(more, 0.0)
    return next((name for name, more in held.items() if more >= MOST * sum(held.values()) > 0), "")
