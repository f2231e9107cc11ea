"""Break an iteration down into its parts, and find the functions that take most of it.

A job that is as slow at its start as at its end has no reference, so nothing here is a fault. Array suffix: W workers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.frames import is_own_frame, split_frame
from eroica.diagnosis.operators import launching_rows
from eroica.diagnosis.view import View
from eroica.diagnosis.words import FEW
from eroica.model.pattern import ASIDE, FunctionKey, WorkerPattern
from eroica.model.verdict import Breakdown, BreakdownItem, FindingFunction
from eroica.summarize.collectives import collective_kind

Floats = NDArray[np.float64]
#: Parts of an iteration, in the order in which they are told.
PARTS = ("input", "forward", "backward", "optimizer", "communication", "waiting for peers", "idle device", "other")
#: Names of calls of collectives, the longer ones first; Python waits in them beside the span that is recorded.
_CALLS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "barrier", "gather", "scatter")
#: The smallest share of an iteration that is told.
_LEAST = 0.02


def break_down(view: View) -> Breakdown | None:
    """Return the parts of an iteration and its largest functions; None for a recording, and without iterations."""
    iteration_W = np.asarray([_iteration_us(one.duration_s, one) for one in view.fleet.patterns])
    if view.is_trace or not view.iterations or iteration_W.min() <= 0:
        return None
    shares_W = _parts(view, iteration_W)
    items = sorted(_items(view, iteration_W), key=lambda one: -one.most_gain)
    return Breakdown(
        iteration_ms=round(float(iteration_W.mean()) / 1e3, 3),
        shares={part: round(float(share_W.mean()), 4) for part, share_W in shares_W.items()},
        items=tuple(one for one in items[:FEW] if one.most_gain >= _LEAST),
    )


def _parts(view: View, iteration_W: Floats) -> dict[str, Floats]:
    """Return the share of each part on each worker; what no function is known for is "other". float64 [W] each."""
    fleet, spent = view.fleet, defaultdict[str, Floats](lambda: np.zeros(view.workers))
    launches = frozenset(launching_rows(fleet))
    for row, key in enumerate(fleet.keys):
        part = "communication" if _collective(key) else "idle device" if row in launches else str(key.phase)
        if key.thread not in ASIDE:
            spent[part] = spent[part] + fleet.critical_us[row] / iteration_W
    waited_W = view.suspects.arrivals.waited_us.mean(axis=1) / iteration_W
    spent["waiting for peers"] = np.minimum(waited_W, spent["communication"])
    spent["communication"] = spent["communication"] - spent["waiting for peers"]
    if fleet.has_accelerator:
        idle_us = [_iteration_us(pattern.idle_s, pattern) for pattern in fleet.patterns]
        spent["idle device"] = spent["idle device"] + np.asarray(idle_us) / iteration_W
    named = {part: spent[part] for part in PARTS if spent[part].any()}
    named["other"] = np.maximum(1 - sum((share_W for part, share_W in named.items() if part != "other"), 0.0), 0.0)
    return named


def _iteration_us(seconds: float, pattern: WorkerPattern) -> float:
    return 1e6 * seconds / max(pattern.last_iteration - pattern.first_iteration, 1)


def _collective(key: FunctionKey) -> str:
    """Return the kind of collective that a row is, or waits in as Python of torch's; "" for others."""
    if key.kind == "collective":
        return collective_kind(key.name) or key.name
    leaf = split_frame(key.stack[-1]) if key.kind == "python" and key.stack else None
    return next((call for call in _CALLS if leaf and leaf.file.startswith("torch/") and call in leaf.name), "")


def _items(view: View, iteration_W: Floats) -> Iterator[BreakdownItem]:
    """Yield functions with the bound of what their removal gains: no more than the worker that it takes longest.

    The wait in a collective moves elsewhere without it: then no more than the worker that it takes shortest.
    """
    fleet, groups = view.fleet, defaultdict[tuple[str, str, str], list[int]](list)
    for row, key in enumerate(fleet.keys):
        if key.thread not in ASIDE and fleet.critical_us[row].any():
            own = next((frame for frame in reversed(key.stack) if is_own_frame(frame)), key.name)
            call = _collective(key)
            groups[("collective", call, "") if call else (key.kind, own, "" if key.stack else key.phase)].append(row)
    for (kind, name, _), rows in groups.items():
        time_W = fleet.critical_us[rows].sum(axis=0)
        has_W = time_W >= time_W.max() / 2
        share_W = (time_W / iteration_W)[time_W > 0]
        rows.sort(key=lambda row: (bool(fleet.keys[row].stack), float(fleet.critical_us[row].sum())), reverse=True)
        first = fleet.keys[rows[0]]
        called = [frame for frame in first.stack if is_own_frame(frame)] if kind == "collective" else []
        yield BreakdownItem(
            function=FindingFunction(
                name=split_frame(name).name,
                kind="collective" if kind == "collective" else "other" if first.kind == "gc" else first.kind,
                stack=first.stack,
            ),
            workers=tuple(rank for rank, has in zip(fleet.ranks, has_W, strict=True) if has),
            phase=first.phase,
            caller=called[-1] if called else "",
            per_iteration_ms=round(float(time_W[has_W].mean()) / 1e3, 3),
            most_gain=round(min(float(share_W.min() if kind == "collective" else share_W.max()), 1.0), 4),
        )
