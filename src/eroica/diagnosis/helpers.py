"""Processes of the job itself, its loaders' or others that it started, that take the cores from training threads.

What a thread without a core delays, all others wait for, so every function of everybody seems to take longer. Three
measurements tell: these processes compute more than in the baseline window, the training threads wait longer for a
core, or transfers on the same cores take longer, and the hosts are full.

Array suffixes: W workers. All times are microseconds per iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.block import Block, Culprit
from eroica.diagnosis.frames import HALF, find_focus
from eroica.diagnosis.operators import FULL, host_fact, queued_share
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms
from eroica.localize.excess import SURE
from eroica.localize.fleet import Fleet

Floats = NDArray[np.float64]
#: Share of the lost time that these processes must use in cores, that threads wait for a core, and of what they use
#: that must be seen in sampled stacks.
_LEAST_TAKEN, _LEAST_QUEUED, _LEAST_SAMPLED = 0.3, 0.2, 0.2
_TRAINING = frozenset({"training", "autograd"})


class _Kind(NamedTuple):
    """Processes beside the training ones: their thread role, their core time [W], and words for them."""

    thread: str
    taken_us: Callable[[Fleet], Floats]
    who: str
    next_step: str


def _beside_training_us(fleet: Fleet) -> Floats:
    """Return the core time of a worker and its loaders beside its training thread; NaN where unknown. float64 [W]."""
    rows = [row for row, key in enumerate(fleet.keys) if key.thread in _TRAINING]
    used_W = (fleet.critical_us[rows] * np.nan_to_num(fleet.pattern[rows, :, 1])).sum(axis=0)
    return np.asarray(host_fact(fleet, "cores_worker") * fleet.iteration_us.mean(axis=1) - used_W)


def _started_us(fleet: Fleet) -> Floats:
    """Return the core time of a job's processes that are no worker's own, shared evenly on a host. float64 [W]."""
    _, home_W = np.unique([pattern.worker.host for pattern in fleet.patterns], return_inverse=True)
    own_H = np.bincount(home_W, weights=host_fact(fleet, "cores_worker"))
    beside_W = np.maximum(host_fact(fleet, "cores_job") - own_H[home_W], 0.0)
    return np.asarray(beside_W / np.bincount(home_W)[home_W] * fleet.iteration_us.mean(axis=1))


_KINDS = (
    _Kind(
        "loader",
        _beside_training_us,
        "The data loaders' own processes",
        "Use fewer loader processes (num_workers) than the host has cores for, or make each sample cheaper: do what "
        "this function does once and keep the result, or do it for whole batches.",
    ),
    _Kind(
        "child",
        _started_us,
        "Processes that the job has started itself",
        "Leave cores for them (CPU affinity, fewer threads or loaders), give them a lower priority (os.nice), make "
        "what they do cheaper or less frequent, or do it on another host.",
    ),
)


def find_helpers(view: View) -> Iterator[Block]:
    """Yield the workers of hosts that the job's own helper processes fill."""
    before_us, past = view.baseline_us, view.suspects.baseline
    if past is None or not view.is_slow or not before_us or before_us >= view.iteration_us:
        return
    for kind in _KINDS:
        if (block := _crowd(view, past, kind, view.iteration_us - before_us)) is not None:
            yield block


def _crowd(view: View, past: Fleet, kind: _Kind, lost_us: float) -> Block | None:
    """Return the block of one kind of processes; None if they do not account for the lost time."""
    fleet = view.fleet
    taken_W = kind.taken_us(fleet) - view.then(kind.taken_us)
    queued_W = _queued_us(fleet) - view.then(_queued_us)
    sampled_W = _sampled_us(fleet, kind) - np.nan_to_num(view.then(lambda one: _sampled_us(one, kind)))
    carried_us = 0.0
    if not fleet.has_accelerator:
        carried_us = max(float(fleet.wait_us.min(axis=0).mean() - past.wait_us.min(axis=0).mean()), 0.0)
    crowd: list[int] = []
    for host, here in view.homes.items():
        cores = view.cores[host].allowed
        taken_us, queued_us = float(np.nansum(taken_W[here])), float(np.nan_to_num(queued_W[here]).mean())
        enough = view.cores[host].busy >= FULL and taken_us >= _LEAST_TAKEN * lost_us * cores
        enough &= queued_us + carried_us >= _LEAST_QUEUED * lost_us
        enough &= float(sampled_W[here].sum()) >= _LEAST_SAMPLED * taken_us
        if enough:
            crowd += here
    return _block(view, kind, sorted(crowd), lost_us, taken_W, queued_W) if crowd else None


def _rows(fleet: Fleet, kind: _Kind) -> list[int]:
    return [row for row, key in enumerate(fleet.keys) if key.thread == kind.thread]


def _sampled_us(fleet: Fleet, kind: _Kind) -> Floats:
    """Return the core time of the processes whose stacks were sampled. float64 [W]."""
    rows = _rows(fleet, kind)
    return np.asarray((fleet.total_us[rows] * np.nan_to_num(fleet.pattern[rows, :, 1])).sum(axis=0))


def _queued_us(fleet: Fleet) -> Floats:
    """Return the time in which training threads are ready without a core; NaN where unknown. float64 [W]."""
    return np.asarray(queued_share(fleet) * fleet.iteration_us.mean(axis=1))


def _block(
    view: View, kind: _Kind, crowd: list[int], lost_us: float, taken_W: Floats, queued_W: Floats
) -> Block | None:
    fleet, rows = view.fleet, _rows(view.fleet, kind)
    used_R = (fleet.total_us[rows] * np.nan_to_num(fleet.pattern[rows, :, 1]))[:, crowd].mean(axis=1)
    focus = find_focus(fleet.keys, rows, used_R, used_R)
    if focus is None:
        return None
    hosts = sorted({fleet.patterns[at].worker.host for at in crowd})
    cores = max(view.cores[host].allowed for host in hosts)
    taken_us, queued_us = float(np.nansum(taken_W[crowd])), float(np.nanmean(queued_W[crowd]))
    seen_us = max(queued_us, taken_us / max(cores, 1.0))
    cost_us = lost_us if seen_us >= HALF * lost_us else seen_us
    removed_WI = np.zeros_like(fleet.iteration_us)
    removed_WI[crowd] = cost_us
    where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"
    than = f" more than in the {view.past_window}"
    culprit = Culprit(
        kind="helpers",
        subject=f"{kind.who} take the cores of {where} from the training threads, most of all in {focus.label}",
        evidence=(
            f"{kind.who} use {format_ms(float(np.nanmean(taken_W[crowd])))} of core time per iteration and worker"
            f"{than}; {where} has {cores:.0f} cores for the job, and they are all busy.",
            f"Training threads wait {format_ms(queued_us)}{than} for a core in each iteration.",
        ),
        next_step=kind.next_step,
    )
    return Block(
        cell="python",
        rows=(),
        focus=focus,
        workers=tuple(crowd),
        scope="all" if len(crowd) == view.workers else "some",
        reference="baseline",
        removed_us=removed_WI,
        mean_us=view.iteration_us,
        reference_us=view.iteration_us - cost_us,
        strength=3 * SURE,
        culprit=culprit,
        gain=cost_us / max(view.iteration_us, 1e-9),
    )
