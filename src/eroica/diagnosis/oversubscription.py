"""Processes of the job itself, its loaders' or others that it has started, that take the cores from training threads.

What a thread without a core delays, all others wait for, so every function of everybody seems to take longer. Three
measurements tell what it is: these processes compute more in each iteration than in the baseline window, the training
threads, or transfers that the same cores carry, wait longer for a core, and the hosts are full. Without a healthy
window both must account for what an iteration takes beyond the one that is expected. Shares of time do not show it
where cores were short before, so all of this is compared as time of an iteration.

Array suffixes: W workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.communication import common_wait
from eroica.diagnosis.cores import Cores
from eroica.diagnosis.frames import Focus, find_focus
from eroica.diagnosis.lateness import growth_strength
from eroica.diagnosis.reading import INPUT_CAUSES
from eroica.diagnosis.setup_rules import number
from eroica.diagnosis.speed import host_fact, queued_share
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms
from eroica.localize.fleet import Fleet
from eroica.localize.simulate import simulated_gain

Floats = NDArray[np.float64]
CAUSE = "cpu-contention"
#: A host on which so much of all cores is used has none left.
_FULL = 0.85
#: Share of the lost core time that these processes must use, and of the lost time that threads wait for a core.
_LEAST_TAKEN = 0.3
_LEAST_QUEUED = 0.2
#: Stacks are sampled of some of them only: these must be seen to compute for this share of what was taken.
_LEAST_SAMPLED = 0.2
#: Without a baseline window training threads must wait for a core this share of the time outside collectives.
_OFTEN_QUEUED = 0.35
#: What accounts for so much of the lost time by either of the two accounts for all of it: so few cores are shared that
#: processes that take them turn by turn cost more than their own time.
_MOSTLY = 0.5
_TRAINING = frozenset({"training", "autograd"})
#: How a lack of cores looks to rules that do not know of it.
LOOKS_LIKE = frozenset({"compute-slow", CAUSE, "python-on-critical-path", "slow-collective-everywhere"})
#: The loaders of at most half of the workers hold this share of what all take.
_BY_FEW = 0.7


class _Kind(NamedTuple):
    """Processes beside the training ones: their rows, their core time per iteration [W], and words for them."""

    rows: Callable[[Fleet], list[int]]
    taken_us: Callable[[Fleet], Floats]
    are_loaders: bool
    which: str
    who: str
    next_step: str


class _Change(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Load that has come since the baseline window; without one, the load beyond the expected iteration.

    Attributes:
        reference: Baseline window or expectation.
        lost_us: By how much iterations are longer.
        taken_us: Core time per iteration that workers, or processes of theirs, use beside the training thread.
            float64 [W].
        sampled_us: The part of it in the processes whose stacks were sampled, which need not be all. float64 [W].
        queued_us: Time per iteration in which training threads have no core. float64 [W].
        carried_us: By how much longer all wait in collectives, where cores of the hosts carry them.
        strength: The longer iteration in standard errors.
    """

    reference: Literal["baseline", "expectation"]
    lost_us: float
    taken_us: Floats
    sampled_us: Floats
    queued_us: Floats
    carried_us: float
    strength: float

    def cost_us(self, members: Sequence[int], cores: float) -> float:
        """Return the time of an iteration that the loaders cost, microseconds."""
        taken_us = float(np.nansum(self.taken_us[list(members)])) / max(cores, 1.0)
        seen_us = max(float(np.nanmean(self.queued_us[list(members)])), taken_us)
        return self.lost_us if seen_us >= _MOSTLY * self.lost_us else seen_us


def find_oversubscription(view: View) -> list[Candidate]:
    """Accuse all workers of hosts that their own loader processes, or others that they have started, fill."""
    found = [*_find(view, _LOADERS), *_find(view, _STARTED)]
    return sorted(found, key=lambda one: one.gain or 0.0, reverse=True)


def _find(view: View, kind: _Kind) -> list[Candidate]:
    change = _change(view, kind)
    if change is None:
        return []
    crowded = sorted(at for host in view.homes if _is_crowded(view, kind, change, host) for at in view.homes[host])
    inside = _busiest_frame(view, kind, crowded) if crowded else None
    return [_candidate(view, kind, change, crowded, inside)] if inside is not None else []


def _change(view: View, kind: _Kind) -> _Change | None:
    """Measure the added load; None where nobody finds the job slow, or nothing tells what it was before."""
    past, before_us = view.suspects.baseline, view.baseline_us
    if view.is_trace or not view.is_slow or not before_us or before_us >= view.iteration_us:
        return None
    taken_W, queued_W = kind.taken_us(view.fleet), _queued_us(view.fleet)
    sampled_W = _sampled_us(view.fleet, kind) - np.nan_to_num(view.then(lambda past: _sampled_us(past, kind)))
    carried_us = 0.0
    if past is not None:
        taken_W = taken_W - view.then(kind.taken_us)
        queued_W = queued_W - view.then(_queued_us)
        if not view.fleet.has_accelerator:
            carried_us = max(float(common_wait(view.fleet.wait_us).mean() - common_wait(past.wait_us).mean()), 0.0)
    return _Change(
        reference="expectation" if past is None else "baseline",
        lost_us=view.iteration_us - before_us,
        taken_us=taken_W,
        sampled_us=sampled_W,
        queued_us=queued_W,
        carried_us=carried_us,
        strength=growth_strength(view, before_us),
    )


def _is_crowded(view: View, kind: _Kind, change: _Change, host: str) -> bool:
    here, cores = view.homes[host], view.cores[host].allowed
    taken_us, queued_us = float(np.nansum(change.taken_us[here])), float(np.nan_to_num(change.queued_us[here]).mean())
    if not view.cores[host].busy >= _FULL or taken_us < _LEAST_TAKEN * change.lost_us * cores:
        return False
    sampled_us = float(change.sampled_us[here].sum())
    if queued_us + change.carried_us < _LEAST_QUEUED * change.lost_us or sampled_us < _LEAST_SAMPLED * taken_us:
        return False
    if change.reference == "baseline":
        return True
    short = taken_us >= _LEAST_TAKEN * view.iteration_us * cores
    queued = queued_us >= _OFTEN_QUEUED * float(view.fleet.busy_us[here].mean())
    return short and queued and (not kind.are_loaders or _loaders(view, here) > cores)


def _loaders(view: View, members: list[int]) -> float:
    """Count the loader processes that these workers are set up to have."""
    return sum(number(view.fleet.patterns[at].setup.get("loader_workers")) or 0.0 for at in members)


def blame_loading(view: View, crowd: Candidate, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Blame slow loading of some workers, if their loaders alone take the cores of the whole crowd.

    That loading is the cause then, and costs what the crowd costs; a worker that is slow beside it only looks like one.

    Returns:
        Nothing where the loaders of all take the cores.
    """
    change = _change(view, _LOADERS)
    by_loaders = crowd.cause == CAUSE and any(view.fleet.keys[row].thread == "loader" for row in crowd.focus.functions)
    if change is None or not by_loaders:
        return []
    taken_W = np.nan_to_num(change.taken_us).clip(0.0)
    most_us = _BY_FEW * float(taken_W[list(crowd.workers)].sum())
    for one in candidates:
        few = one.scope == "some" and 2 * len(one.workers) <= len(crowd.workers)
        if one.cause not in INPUT_CAUSES or not few or float(taken_W[list(one.workers)].sum()) < most_us:
            continue
        gain = max(simulated_gain(view.fleet, one.removed_us), crowd.gain or 0.0)
        culprit = msgspec.structs.replace(one, gain=gain, evidence=(*one.evidence, *crowd.evidence))
        return [culprit, *(other for other in candidates if other is not one and not _lacks_cores(other, crowd))]
    return []


def _lacks_cores(candidate: Candidate, crowd: Candidate) -> bool:
    """True if a candidate is how a lack of cores looks on workers of a crowd, or on all in turn."""
    within = bool(candidate.workers) and set(candidate.workers) <= set(crowd.workers)
    alike = candidate.cause in ("compute-slow", CAUSE)
    return alike and (within or (not candidate.workers and crowd.scope == "all"))


def _beside_training_us(fleet: Fleet) -> Floats:
    """Return core time per iteration of a worker and its loaders beside its training thread; NaN: unknown. float64 [W].

    Counted by the kernel for all processes, where stacks are only sampled of some.
    """
    rows = [at for at, key in enumerate(fleet.keys) if key.thread in _TRAINING]
    used_W = (fleet.critical_us[rows] * np.nan_to_num(fleet.pattern[rows, :, 1])).sum(axis=0)
    return np.asarray(host_fact(fleet, "cores_worker") * fleet.iteration_us.mean(axis=1) - used_W)


def _started_us(fleet: Fleet) -> Floats:
    """Return core time per iteration of a job's processes that are no worker's own, shared evenly on a host. [W]."""
    _, home_W = np.unique([pattern.worker.host for pattern in fleet.patterns], return_inverse=True)
    job_W, worker_W = host_fact(fleet, "cores_job"), host_fact(fleet, "cores_worker")
    workers_H, own_H = np.bincount(home_W), np.bincount(home_W, weights=worker_W)  # unknown where one worker's are
    return np.asarray(np.maximum(job_W - own_H[home_W], 0.0) / workers_H[home_W] * fleet.iteration_us.mean(axis=1))


def _loader_rows(fleet: Fleet) -> list[int]:
    return [at for at, key in enumerate(fleet.keys) if key.thread == "loader"]


def _child_rows(fleet: Fleet) -> list[int]:
    """List rows of Python in processes that workers have started and that load no data."""
    return [at for at, key in enumerate(fleet.keys) if key.thread == "child"]


_LOADERS = _Kind(
    rows=_loader_rows,
    taken_us=_beside_training_us,
    are_loaders=True,
    which="The loader processes",
    who="The data loaders' own processes",
    next_step=(
        "Use fewer loader processes (num_workers) than the host has cores for, or make each sample cheaper: do what "
        "this function does once and keep the result, or do it for whole batches."
    ),
)
_STARTED = _Kind(
    rows=_child_rows,
    taken_us=_started_us,
    are_loaders=False,
    which="Processes that the workers have started",
    who="Processes that the job has started itself",
    next_step=(
        "Leave cores for them (CPU affinity, fewer threads or loaders), give them a lower priority (os.nice), make "
        "what they do cheaper or less frequent, or do it on another host."
    ),
)


def _sampled_us(fleet: Fleet, kind: _Kind) -> Floats:
    """Return the core time per iteration of the processes that were sampled. float64 [W]."""
    rows = kind.rows(fleet)
    return np.asarray((fleet.total_us[rows] * np.nan_to_num(fleet.pattern[rows, :, 1])).sum(axis=0))


def _busiest_frame(view: View, kind: _Kind, members: Sequence[int]) -> Focus | None:
    """Find the frame in which these processes compute most; most of their threads only wait."""
    fleet = view.fleet
    rows = kind.rows(fleet)
    used_R = (fleet.total_us[rows] * np.nan_to_num(fleet.pattern[rows, :, 1]))[:, list(members)].mean(axis=1)
    return find_focus(fleet.keys, rows, used_R, used_R)


def _queued_us(fleet: Fleet) -> Floats:
    """Return time per iteration in which training threads are ready without a core; NaN where unknown. float64 [W]."""
    return np.asarray(queued_share(fleet) * fleet.iteration_us.mean(axis=1))


def _of_cores(cores: Cores) -> str:
    return f"{cores.allowed:.0f} {'of its ' if cores.allowed < cores.total else ''}cores for the job"


def _candidate(view: View, kind: _Kind, change: _Change, crowd: list[int], inside: Focus) -> Candidate:
    fleet = view.fleet
    hosts = sorted({fleet.patterns[at].worker.host for at in crowd})
    largest = max((view.cores[host] for host in hosts), key=lambda one: one.allowed)
    cores = largest.allowed
    cost_us = change.cost_us(crowd, cores)
    removed_WI = np.zeros_like(fleet.iteration_us)
    removed_WI[crowd] = cost_us
    where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"
    more, queue = (format_ms(float(np.nanmean(each[crowd]))) for each in (change.taken_us, change.queued_us))
    now, before = format_ms(view.iteration_us), format_ms(view.iteration_us - cost_us)
    than = f" more than in the {view.past_window}" if change.reference == "baseline" else ""
    carried = f", and everybody {format_ms(change.carried_us)} for transfers that the same cores carry"
    carried = carried if change.carried_us >= _LEAST_QUEUED * change.lost_us else ""
    return Candidate(
        cause=CAUSE,
        scope="all" if len(crowd) == view.workers else "some",
        workers=tuple(crowd),
        focus=inside,
        kind="python",
        removed_us=removed_WI,
        mean_us=view.iteration_us,
        reference_us=view.iteration_us - cost_us,
        reference=change.reference,
        strength=change.strength,
        coverage=inside.share,
        least_gain=view.settings.min_gain,
        evidence=(
            f"{kind.which} use {more} of core time per iteration and worker{than}, most of it in "
            f"{inside.label}; {where} has {_of_cores(largest)}, and they are all busy.",
            f"Training threads wait {queue}{than} for a core in each iteration{carried}.",
        ),
        gain=cost_us / max(view.iteration_us, 1e-9),
        sentence=(
            f"{kind.who} take the cores of {where} from the training threads, most of all in "
            f"{inside.label}: iterations take {now} instead of {before}."
        ),
        next_step=kind.next_step,
        stands_for=LOOKS_LIKE,
    )
