"""The job's own threads and processes beside training, which take what a training thread lacks.

- Processes that loaders or the job itself started take the cores. What a thread without a core delays, all others wait
  for, so every function of everybody seems to take longer.
- A thread that computes in Python shares one interpreter lock with the training thread, which then takes longer for
  everything it does and uses little of a core, though it waits for none.

Array suffixes: W workers, I iterations, R rows. All times are microseconds per iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.block import Block, Culprit, Facts
from eroica.diagnosis.frames import HALF, LARGE_PART, Focus, activity_of, find_focus
from eroica.diagnosis.links import CORROBORATION, LEAST_STRENGTH
from eroica.diagnosis.loaders import busy_in_threads
from eroica.diagnosis.operators import FULL, OF_LOSS, host_fact, queued_share, weighted_mean
from eroica.diagnosis.outliers import find_outliers
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms, name_workers
from eroica.localize.excess import SURE
from eroica.localize.fleet import Fleet
from eroica.model.pattern import WorkerPattern
from eroica.model.shares import percent

Floats = NDArray[np.float64]
#: Share of the lost time that threads wait for a core.
_LEAST_QUEUED = 0.2
#: Whose processes these are, and advice, by the role of the threads that are sampled in them.
_WHO = {
    "loader": (
        "The data loaders' own processes",
        "Use fewer loader processes (num_workers) than the host has cores for, or make each sample cheaper: do what "
        "this function does once and keep the result, or do it for whole batches.",
    ),
    "child": (
        "Processes that the job has started itself",
        "Leave cores for them (CPU affinity, fewer threads or loaders), give them a lower priority (os.nice), make "
        "what they do cheaper or less frequent, or do it on another host.",
    ),
}


def cores_of_host(patterns: Iterable[WorkerPattern]) -> tuple[float, float]:
    """Count the cores of one host that its workers may use together, and the share of them in use; NaN if unknown.

    Where affinities leave some to others, they are as busy as the job keeps them, or as the host if that is more.
    """
    here = list(patterns)
    told = {one.setup.get("affinity", ""): one.setup.get("affinity_cores", "") for one in here}
    total, busy, used = (here[0].host_facts.get(name, np.nan) for name in ("cpu_count", "host_busy", "cores_job"))
    allowed = sum(float(count) for count in told.values()) if all(map(str.isdecimal, told.values())) else total
    return (allowed, float(np.fmax(min(used / allowed, 1.0), busy))) if 0 < allowed < total else (total, busy)


def find_helpers(view: View) -> Iterator[Block]:
    """Yield the workers of hosts that the job's own helper processes fill."""
    before_us, past, fleet = view.baseline_us, view.suspects.baseline, view.fleet
    if past is None or not view.is_slow or not before_us or before_us >= view.iteration_us:
        return
    lost_us = view.iteration_us - before_us
    taken_W, queued_W = (
        measure(fleet) - view.suspects.then(measure)
        for measure in (_taken_us, lambda one: queued_share(one) * one.iteration_us.mean(axis=1))
    )
    carried_us = 0.0
    if not fleet.has_accelerator:
        carried_us = max(float(fleet.wait_us.min(axis=0).mean() - past.wait_us.min(axis=0).mean()), 0.0)
    crowd, rise_W = list[int](), np.nan_to_num(queued_W)
    for here in view.homes.values():
        cores, busy = cores_of_host(fleet.patterns[at] for at in here)
        queued_us = float(rise_W[here].mean())
        is_taken = busy >= FULL and float(np.nansum(taken_W[here])) >= OF_LOSS * lost_us * cores
        if is_taken and queued_us + carried_us >= _LEAST_QUEUED * lost_us:
            # a process that fills the cores of one worker alone makes no crowd of the others
            bound = {fleet.patterns[at].setup.get("affinity", "") for at in here}
            least_us = HALF * float(rise_W[here].max()) if len(bound) == len(here) else -np.inf
            crowd += [at for at in here if rise_W[at] >= least_us]
    rows = [row for row, key in enumerate(fleet.keys) if key.thread in _WHO]
    used_R = (fleet.total_us[rows] * np.nan_to_num(fleet.pattern[rows, :, 1]))[:, crowd].sum(axis=1)
    focus = find_focus(fleet.keys, rows, used_R, used_R)
    if focus is not None:
        yield _crowd(view, sorted(crowd), focus, lost_us, taken_W, queued_W)


def _taken_us(fleet: Fleet) -> Floats:
    """Return the core time of a job beside its training threads, shared evenly on a host. float64 [W]."""
    rows = [row for row, key in enumerate(fleet.keys) if key.thread in ("training", "autograd")]
    used_W = (fleet.critical_us[rows] * np.nan_to_num(fleet.pattern[rows, :, 1])).sum(axis=0)
    _, home_W = np.unique([pattern.worker.host for pattern in fleet.patterns], return_inverse=True)
    own_H = np.bincount(home_W, weights=host_fact(fleet, "cores_worker"))
    cores_W = np.fmax(host_fact(fleet, "cores_job"), own_H[home_W]) / np.bincount(home_W)[home_W]
    return np.asarray(cores_W * fleet.iteration_us.mean(axis=1) - used_W)


def _crowd(view: View, crowd: list[int], focus: Focus, lost_us: float, taken_W: Floats, queued_W: Floats) -> Block:
    hosts = sorted({view.fleet.patterns[at].worker.host for at in crowd})
    cores = max(cores_of_host(view.fleet.patterns[at] for at in view.homes[host])[0] for host in hosts)
    removed_WI = np.zeros_like(view.fleet.iteration_us)
    removed_WI[crowd] = lost_us
    who, next_step = _WHO[view.fleet.keys[focus.functions[0]].thread]
    where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"
    than = f" more than in the {view.past_window}"
    taken, queued = (format_ms(float(np.nanmean(some_W[crowd]))) for some_W in (taken_W, queued_W))
    culprit = Culprit(
        kind="helpers",
        subject=f"{who} take the cores of {where} from the training threads, most of all in {focus.label}",
        ending=f": iterations take {view.now_and_before}.",
        evidence=(
            f"{who} use {taken} of core time per iteration and worker{than}; {where} has {cores:.0f} cores for the "
            "job, and they are all busy.",
            f"Training threads wait {queued}{than} for a core in each iteration.",
        ),
        next_step=next_step,
    )
    return Block(
        cell="python",
        focus=focus,
        workers=tuple(crowd),
        scope="all" if len(crowd) == view.workers else "some",
        reference="baseline",
        removed_us=removed_WI,
        mean_us=view.iteration_us,
        reference_us=view.iteration_us - lost_us,
        strength=3 * SURE,
        culprit=culprit,
        gain=lost_us / max(view.iteration_us, 1e-9),
    )


# --- a thread with the interpreter lock ---


_OF_THREAD = frozenset({"python", "compute", "memory", "other"})
#: Beside a device operators only launch, and what they take is the device's.
_BESIDE_DEVICE = frozenset({"python", "other"})
#: The other thread uses this share of a core, and more than on peers or before by so much. The training thread waits
#: longer by at most so many times what the other one computes: native code that keeps the lock (pickling) does so until
#: it is done.
_BUSY, _BUSIER, _ABOUT = 0.15, 0.12, 1.5
#: What stacks show that waits for something else than the lock.
_WAITS = frozenset({"network", "file", "sync", "thread", "save", "log", "service", "program"})
#: Least excess relative to the reference: being starved of the lock is evidence of its own.
_LEAST_RATIO = 0.25
_NEXT_STEP = (
    "Let another process do what this thread does (multiprocessing, with its result through a queue), let it work in "
    "native code that gives the lock back, or do it less often."
)


def find_lock_holders(view: View) -> Iterator[Block]:
    """Yield workers whose training thread takes longer for everything while another thread computes in Python."""
    busy_W = _busy_beside(view.fleet)
    if view.is_trace or not (busy_W >= _BUSY).any():
        return
    rows = [row for row in _would_run(view.fleet) if view.fleet.critical_us[row].any()]
    busier_W, longer_W, idle_W = (_beyond_usual(view, measured) for measured in (_busy_beside, _own_us, _idle_us))
    only_waits_W = (longer_W > 0) & (idle_W >= LARGE_PART * longer_W)  # it computes as long as usual, but runs later
    about_W = idle_W <= _ABOUT * busy_W * view.fleet.iteration_us.mean(axis=1)
    starved_W = (busy_W >= _BUSY) & (busier_W >= _BUSIER) & only_waits_W & about_W
    if not starved_W.any():
        return
    for late in find_outliers(view, rows, strength=LEAST_STRENGTH, ratio=_LEAST_RATIO):
        holder = busy_in_threads(view, late, {"background"})
        if holder is not None and starved_W[list(late.workers)].all():
            yield _lock_block(view, rows, late, holder, busy_W)


def _lock_block(view: View, rows: list[int], late: Block, holder: Focus, busy_W: Floats) -> Block:
    members = list(late.workers)
    fleet, busy = view.fleet, percent(float(busy_W[members].mean()))
    running = weighted_mean(fleet.pattern[rows][:, members, 1].ravel(), fleet.critical_us[rows][:, members].ravel())
    whose = name_workers([view.fleet.ranks[worker] for worker in late.workers])
    each = "each of " if len(members) > 1 else ""
    now, usual = format_ms(late.mean_us), format_ms(late.reference_us)
    compared = f"took {usual} before" if late.reference == "baseline" else f"takes {usual} elsewhere"
    culprit = Culprit(
        kind="thread",
        subject=f"Another thread of {each}{whose} computes in {holder.label} and holds Python's interpreter lock",
        ending=f": what {compared} takes the training thread {now} of each {view.now_text} iteration.",
        evidence=(
            f"Another thread computes in {holder.label} and uses {busy} of a core; it and the training thread share "
            "one interpreter lock.",
            f"The training thread uses {percent(running)} of a core in its own time.",
        ),
        next_step=_NEXT_STEP,
    )
    return msgspec.structs.replace(
        late,
        rows=tuple(rows),
        focus=msgspec.structs.replace(holder, share=1.0),
        strength=float(np.hypot(late.strength, CORROBORATION)),
        facts=Facts(core=running),
        culprit=culprit,
    )


def _beyond_usual(view: View, measured: Callable[[Fleet], Floats]) -> Floats:
    """Measure the excess over the peers or over the baseline window, whichever of these is less. float64 [W]."""
    now_W = measured(view.fleet)
    return np.asarray(now_W - np.fmin(view.fleet.usual(now_W), view.suspects.then(measured)))


def _would_run(fleet: Fleet) -> list[int]:
    """List rows of the training thread in which it would run."""
    kinds = _BESIDE_DEVICE if fleet.has_accelerator else _OF_THREAD
    return [
        at
        for at, key in enumerate(fleet.keys)
        if key.thread in ("training", "autograd") and key.kind in kinds and activity_of(key.stack) not in _WAITS
    ]


def _own_us(fleet: Fleet) -> Floats:
    """Return the time per iteration in which the training thread would run. float64 [W]."""
    return np.asarray(fleet.critical_us[_would_run(fleet)].sum(axis=0))


def _idle_us(fleet: Fleet) -> Floats:
    """Return the part of the training thread's own time in which it does not run. float64 [W]."""
    rows = _would_run(fleet)
    idle_RW = 1 - np.nan_to_num(fleet.pattern[rows, :, 1], nan=1.0)
    return np.asarray((fleet.critical_us[rows] * idle_RW).sum(axis=0))


def _busy_beside(fleet: Fleet) -> Floats:
    """Return the cores that Python of other threads uses. float64 [W]."""
    rows = [at for at, key in enumerate(fleet.keys) if key.thread == "background"]
    used_W = (fleet.total_us[rows] * np.nan_to_num(fleet.pattern[rows, :, 1])).sum(axis=0)
    return np.asarray(used_W / np.maximum(fleet.iteration_us.mean(axis=1), 1e-9))
