"""Measure operators against a reference: how often they run and how long each takes.

More executions are more work. Longer ones are a slower processor, larger tensors, or a thread without a core.

Array suffixes: F functions, W workers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.frames import HALF
from eroica.localize import Suspects
from eroica.localize.excess import median_of_others
from eroica.localize.fleet import Fleet

Floats = NDArray[np.float64]
Source = Literal["peers", "baseline"]
SOURCES: tuple[Source, ...] = ("peers", "baseline")
#: Parts of the iteration whose operators take longer with more data, and those that take what the parameters take.
_FORWARD, _BACKWARD, _WITHOUT_DATA = frozenset({"forward"}), frozenset({"backward"}), frozenset({"optimizer"})
#: An operator that others run in has less of its time for itself.
_OWN = 0.1
_NODE = re.compile(r"(?:Backward|Grad)\d+$|^AccumulateGrad$")
#: Forward takes longer by at least this share of what backward takes longer, if tensors are larger.
_LEAST_OF_BACKWARD = 0.15
#: With larger tensors the processor is busy for at least this share of the additional time.
_BUSY_FOR = 0.35
#: A process that is stopped or throttled for a smaller share of the time is not slow for that reason.
HELD = 0.05
#: What takes cores, and a longer wait for one, account for at least this share of a loss that they explain.
OF_LOSS = 0.3
#: A host on which this share of all cores is used has none left.
FULL = 0.85


class Speed(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Each worker's operators against a reference; NaN where there is none.

    Attributes:
        factor: By how much an execution takes longer: median over operators, weighted by time. float64 [W].
        more_work: Part of the operators' time that stems from more executions than the reference, 0-1. float64 [W].
        slower: Part of it that stems from longer executions, 0-1. float64 [W].
    """

    factor: Floats
    more_work: Floats
    slower: Floats


def operators(fleet: Fleet) -> list[int]:
    """List rows of the model's own computation: compute outside the loader's next.

    Without an accelerator those that only call others are left out: a node of the autograd graph that waits for a
    collective inside (FSDP) takes as long as that. So are the user's own functions of that graph where stacks were
    sampled: what they do by themselves is Python, and the operator keeps only what no sample has hit.
    """
    rows = [index for index, key in enumerate(fleet.keys) if key.kind == "compute" and key.phase != "input"]
    if fleet.has_accelerator:
        return rows
    if all(pattern.samples_used for pattern in fleet.patterns):
        rows = [row for row in rows if not _is_users_function(fleet.keys[row].name)]
    own_R, all_R = fleet.critical_us[rows].sum(axis=1), fleet.total_us[rows].sum(axis=1)
    return [row for row, own, all_ in zip(rows, own_R, all_R, strict=True) if own >= _OWN * all_]


def _is_users_function(name: str) -> bool:
    """True if an operator is a user's `autograd.Function`, named as its class; torch's own nodes are numbered.

    What torch.compile makes is named in the same way, and computes.
    """
    return "::" not in name and not name.startswith("CompiledFunction") and not _NODE.search(name)


def running_us(fleet: Fleet) -> Floats:
    """Return the time per iteration in which a processor is busy with operators; NaN where not sampled. float64 [W]."""
    rows = operators(fleet)
    busy_W = (fleet.total_us[rows] * np.nan_to_num(fleet.pattern[rows][:, :, 1])).sum(axis=0)
    return np.asarray(np.where(busy_W > 0, busy_W, np.nan))


def speed_against(suspects: Suspects, source: Source, phases: frozenset[str] | None = None) -> Speed:
    """Compare operators of some phases, or of all, with the median of the role's others or with the baseline window."""
    fleet = suspects.fleet
    rows = [row for row in operators(fleet) if phases is None or fleet.keys[row].phase in phases]
    count_FW, duration_FW = fleet.count[rows], _mean_duration(fleet.total_us[rows], fleet.count[rows])
    if source == "peers":
        like_FW, like_count_FW = median_of_others(duration_FW, fleet.roles), median_of_others(count_FW, fleet.roles)
    else:
        like_count_FW = suspects.rows_then(rows, lambda past, at: past.count[at])
        like_FW = _mean_duration(suspects.rows_then(rows, lambda past, at: past.total_us[at]), like_count_FW)
    known_FW = (like_FW > 0) & (like_count_FW > 0) & (duration_FW > 0)
    ratio_FW = np.divide(duration_FW, like_FW, out=np.ones(duration_FW.shape), where=known_FW)
    own_W = np.maximum((np.nan_to_num(duration_FW) * count_FW).sum(axis=0), 1e-9)
    price_FW = np.where(known_FW, like_FW, np.nan_to_num(duration_FW))
    has_reference_W = ~np.isnan(like_count_FW).all(axis=0) if like_count_FW.size else np.zeros(own_W.size, np.bool_)
    more_W = (price_FW * (count_FW - np.nan_to_num(like_count_FW))).sum(axis=0) / own_W
    longer_W = np.where(known_FW, count_FW * (duration_FW - like_FW), 0.0).sum(axis=0) / own_W
    return Speed(
        factor=_weighted_median(ratio_FW, np.where(known_FW, like_FW * like_count_FW, 0.0)),
        more_work=np.where(has_reference_W, more_W, np.nan),
        slower=np.where(has_reference_W, longer_W, np.nan),
    )


def _mean_duration(total_FW: Floats, count_FW: Floats) -> Floats:
    missing = np.full(total_FW.shape, np.nan)
    return np.asarray(np.divide(total_FW, count_FW, out=missing, where=count_FW > 0))


def _weighted_median(values_FW: Floats, weight_FW: Floats) -> Floats:
    """Return the median of each column by weight; NaN for a column without any. float64 [W]."""
    if not values_FW.shape[0]:
        return np.full(values_FW.shape[1], np.nan)
    order = np.argsort(values_FW, axis=0, kind="stable")
    values = np.take_along_axis(values_FW, order, axis=0)
    share = np.cumsum(np.take_along_axis(weight_FW, order, axis=0), axis=0)
    middle = np.argmax(share >= share[-1] / 2, axis=0)
    found = np.take_along_axis(values, middle[None], axis=0)[0]
    return np.where(share[-1] > 0, found, np.nan)


def host_fact(fleet: Fleet, name: str) -> Floats:
    """Return one fact of the hosts, kept since many rules ask; NaN for workers that did not report it. float64 [W]."""
    known: dict[str, Floats] = fleet.__dict__.setdefault("_host_facts", {})
    if name not in known:
        facts = (pattern.host_facts.get(name, np.nan) for pattern in fleet.patterns)
        known[name] = np.fromiter(facts, dtype=np.float64, count=len(fleet.patterns))
        known[name].setflags(write=False)
    return known[name]


def queued_share(fleet: Fleet) -> Floats:
    """Return the share of time in which a training thread is ready but has no core; NaN where unknown. float64 [W]."""
    return host_fact(fleet, "run_queue_wait")


def held_share(fleet: Fleet) -> Floats:
    """Return the share of time in which a worker's process was stopped, or held back by its quota. float64 [W].

    The kernel adds the throttled time of all processors up, so several threads make it more than all of the time.
    """
    held_W = np.nan_to_num(host_fact(fleet, "stopped")) + np.nan_to_num(host_fact(fleet, "throttled"))
    return np.asarray(np.clip(held_W, 0.0, 1.0))


def weighted_mean(values: Sequence[float] | Floats, weights: Sequence[float] | Floats) -> float:
    """Return the mean by weight over values that are numbers; NaN if none is or all weights are 0."""
    value, weight = np.asarray(values, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    known = ~np.isnan(value) & (weight > 0)
    return float(np.average(value[known], weights=weight[known])) if known.any() else float("nan")


def larger_tensors(suspects: Suspects, own: Speed, source: Source) -> NDArray[np.bool_]:
    """Mark workers whose operators take longer as they do with larger batches or sequences. bool [W].

    Forward and backward take longer, the optimizer hardly does, and a processor is busy meanwhile.

    Args:
        suspects: The window.
        own: All operators against the same reference; what has none is not marked.
        source: "peers" or "baseline".
    """
    fleet = suspects.fleet
    known_W = ~np.isnan(own.factor)
    if not known_W.any():
        return known_W
    parts = (_FORWARD | _BACKWARD, _WITHOUT_DATA, _FORWARD, _BACKWARD)
    grows_W, fixed_W, forward_W, backward_W = (speed_against(suspects, source, phases).factor for phases in parts)
    more_W = known_W & (grows_W > 1) & ~(fixed_W - 1 > HALF * (grows_W - 1))
    more_W &= ~(forward_W - 1 < _LEAST_OF_BACKWARD * (backward_W - 1))
    then_W, queue_W, total_W = (
        fleet.usual(measure(fleet)) if source == "peers" else suspects.then(measure)
        for measure in (running_us, queued_share, lambda one: np.asarray(one.total_us[operators(one)].sum(axis=0)))
    )
    hardly_W = then_W < _BUSY_FOR * total_W  # operators that only wait keep no processor busy
    more_W &= hardly_W | ~(running_us(fleet) / then_W - 1 < _BUSY_FOR * (grows_W - 1))
    longer_W = queued_share(fleet) - queue_W * np.maximum(grows_W, 1.0)
    most_W = fleet.critical_us[operators(fleet)].sum(axis=0) * (1 - 1 / np.maximum(grows_W, 1.0))
    if not fleet.has_accelerator:
        more_W &= ~(longer_W * fleet.mean_iteration_us >= np.maximum(HALF * most_W, 1e-9))
    return np.asarray(more_W & (held_share(fleet) <= HELD), dtype=np.bool_)
