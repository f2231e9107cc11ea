"""The job's own threads and processes beside training, which take what a training thread lacks.

- Processes that loaders or the job itself started take the cores. What a thread without a core delays, all others wait
  for, so every function of everybody seems to take longer.
- A thread that computes in Python shares one interpreter lock with the training thread, which then takes longer for
  everything it does and uses little of a core, though it waits for none.

Array suffixes: W workers, I iterations, R rows. All times are microseconds per iteration.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.block import Block, Culprit, Facts
from eroica.diagnosis.frames import HALF, LARGE_PART, Focus, activity_of, find_focus
from eroica.diagnosis.links import CORROBORATION, LEAST_STRENGTH
from eroica.diagnosis.loaders import busy_in_threads
from eroica.diagnosis.operators import FULL, HELD, OF_LOSS, held_share, host_fact, queued_share
from eroica.diagnosis.outliers import find_outliers
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms, name_workers
from eroica.localize.excess import SURE
from eroica.localize.fleet import Fleet
from eroica.model.pattern import WorkerPattern
from eroica.model.shares import percent

Floats = NDArray[np.float64]
#: Share of the lost time that threads wait for a core, and of what these processes use that sampled stacks must show.
_LEAST_QUEUED, _LEAST_SAMPLED = 0.2, 0.2
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


class Cores(NamedTuple):
    """Cores that a job's workers on a host may use together, and the share of them in use, 0-1; NaN if unknown."""

    allowed: float
    busy: float


def cores_of_host(patterns: Iterable[WorkerPattern]) -> Cores:
    """Count the cores of one host that its workers may use: an affinity, a cpuset, or all.

    Where the workers may not use all, their cores are as busy as the job keeps them, or as the host if that is more.
    """
    here = list(patterns)
    facts, told = here[0].host_facts, [listed_cores(one.setup.get("affinity", "")) for one in here]
    total, busy = facts.get("cpu_count", np.nan), facts.get("host_busy", np.nan)
    bound = frozenset[int]().union(*told) if all(told) else frozenset()
    if not bound or not len(bound) < total:
        return Cores(total, busy)
    used = min(facts.get("cores_job", np.nan) / len(bound), 1.0)
    return Cores(float(len(bound)), float(np.fmax(used, busy)))


@lru_cache(maxsize=4096)
def listed_cores(listed: str) -> frozenset[int]:
    """Read the cores of a list like "0-3,8"; none where it cannot be read."""
    found: set[int] = set()
    for part in filter(None, listed.split(",")):
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or not (last or first).isdecimal() or len(part) > 16:
            return frozenset()
        found.update(range(int(first), min(int(last or first), int(first) + 4096) + 1))
    return frozenset(found)


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
    taken_W = kind.taken_us(fleet) - view.suspects.then(kind.taken_us)
    queued_W = _queued_us(fleet) - view.suspects.then(_queued_us)
    sampled_W = _sampled_us(fleet, kind) - np.nan_to_num(view.suspects.then(lambda one: _sampled_us(one, kind)))
    carried_us = 0.0
    if not fleet.has_accelerator:
        carried_us = max(float(fleet.wait_us.min(axis=0).mean() - past.wait_us.min(axis=0).mean()), 0.0)
    crowd, rise_W = list[int](), np.nan_to_num(queued_W)
    for here in view.homes.values():
        cores, busy = cores_of_host(fleet.patterns[at] for at in here)
        taken_us, queued_us = float(np.nansum(taken_W[here])), float(rise_W[here].mean())
        enough = busy >= FULL and taken_us >= OF_LOSS * lost_us * cores
        enough &= queued_us + carried_us >= _LEAST_QUEUED * lost_us
        enough &= float(sampled_W[here].sum()) >= _LEAST_SAMPLED * taken_us
        if enough:
            least_us = HALF * rise_W[here].max() if _are_bound_apart(fleet, here) else -np.inf
            crowd += [at for at in here if rise_W[at] >= least_us]
    return _block(view, kind, sorted(crowd), lost_us, taken_W, queued_W) if crowd else None


def _are_bound_apart(fleet: Fleet, here: Sequence[int]) -> bool:
    """Return True if each worker of a host may only run on cores that no other one may run on."""
    bound = [listed_cores(fleet.patterns[at].setup.get("affinity", "")) for at in here]
    return all(bound) and sum(map(len, bound)) == len(frozenset().union(*bound))


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
    cores = max(cores_of_host(fleet.patterns[at] for at in view.homes[host]).allowed for host in hosts)
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


# --- a thread with the interpreter lock ---


_OF_THREAD = frozenset({"python", "compute", "memory", "other"})
#: Beside a device operators only launch, and what they take is the device's.
_BESIDE_DEVICE = frozenset({"python", "other"})
#: The other thread uses this share of a core, and more than on peers or before by so much.
_BUSY, _BUSIER = 0.3, 0.25
#: Less is enough where the training thread waits longer by at most so many times what the other one computes: native
#: code that keeps the lock (pickling) does so until it is done.
_SOME, _SOME_MORE, _ABOUT = 0.15, 0.12, 1.5
#: What stacks show that waits for something else than the lock.
_WAITS = frozenset({"network", "file", "sync", "thread", "save", "log", "service", "program"})
#: Least excess relative to the reference: being starved of the lock is evidence of its own.
_LEAST_RATIO = 0.25
#: Where threads begin.
_STARTS = re.compile(r"\((?:threading|concurrent/futures/thread|multiprocessing/pool)\.py:")
_NEXT_STEP = (
    "Let another process do what this thread does (multiprocessing, with its result through a queue), let it work in "
    "native code that gives the lock back, or do it less often."
)


def find_lock_holders(view: View) -> Iterator[Block]:
    """Yield workers whose training thread takes longer for everything while another thread computes in Python."""
    busy_W = _busy_beside(view.fleet)
    if view.is_trace or not (busy_W >= _SOME).any():
        return
    rows = [row for row in _would_run(view.fleet) if view.fleet.critical_us[row].any()]
    busier_W = busy_W - np.fmin(view.fleet.usual(busy_W), view.suspects.then(_busy_beside))
    only_waits_W = _only_waits_longer(view)
    starved_W = (_running(view, rows) <= HALF) | only_waits_W
    starved_W &= (busy_W >= _BUSY) & (busier_W >= _BUSIER)
    starved_W |= (busy_W >= _SOME) & (busier_W >= _SOME_MORE) & only_waits_W & _waits_about_as_long(view, busy_W)
    starved_W &= held_share(view.fleet) <= HELD
    if not starved_W.any():
        return
    for late in find_outliers(view, rows, strength=LEAST_STRENGTH, ratio=_LEAST_RATIO):
        holder = _holder(view, late) if starved_W[list(late.workers)].all() else None
        if holder is not None:
            yield _lock_block(view, rows, late, holder, busy_W)


def _lock_block(view: View, rows: list[int], late: Block, holder: Focus, busy_W: Floats) -> Block:
    members = list(late.workers)
    busy, running = percent(float(busy_W[members].mean())), float(_running(view, rows)[members].mean())
    whose = name_workers([view.fleet.ranks[worker] for worker in late.workers])
    each = "each of " if len(members) > 1 else ""
    culprit = Culprit(
        kind="thread",
        subject=f"Another thread of {each}{whose} computes in {holder.label} and holds Python's interpreter lock",
        evidence=(
            f"Another thread computes in {holder.label} and uses {busy} of a core; it and the training thread share "
            "one interpreter lock.",
            f"The training thread runs for {percent(running)} of its own time, waits for a core taken off.",
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


def _holder(view: View, late: Block) -> Focus | None:
    """Find the function that the other thread computes in: the user's, else a library's, as in a pool's threads."""
    ways = (busy_in_threads(view, late.workers, late.reference, {"background"}, way) for way in (False, True))
    return next((found for found in ways if found is not None), None)


def _only_waits_longer(view: View) -> NDArray[np.bool_]:
    """Mark workers whose training thread computes as long as on the peers, or as before, but runs later. bool [W]."""
    longer_W, idle_W = (_beyond_usual(view, measured) for measured in (_own_us, _idle_us))
    return np.asarray((longer_W > 0) & (idle_W >= LARGE_PART * longer_W), dtype=np.bool_)


def _waits_about_as_long(view: View, busy_W: Floats) -> NDArray[np.bool_]:
    """Mark workers whose training thread waits longer by at most about what the other thread computes. bool [W]."""
    computes_W = busy_W * view.fleet.iteration_us.mean(axis=1)
    return np.asarray(_beyond_usual(view, _idle_us) <= _ABOUT * computes_W)


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
    used_W = (fleet.critical_us[rows] * np.nan_to_num(fleet.pattern[rows, :, 1], nan=1.0)).sum(axis=0)
    return np.asarray(_own_us(fleet) - used_W)


def _busy_beside(fleet: Fleet) -> Floats:
    """Return the cores that Python of other threads uses: the most of threads with one outermost function. [W]."""
    programs: dict[str, list[int]] = defaultdict(list)
    for at, key in enumerate(fleet.keys):
        if key.thread == "background" and key.kind == "python":
            programs[_program(key.stack)].append(at)
    used_PW = [
        (fleet.total_us[rows] * np.nan_to_num(fleet.pattern[rows, :, 1])).sum(axis=0) for rows in programs.values()
    ]
    whole_W = np.maximum(fleet.iteration_us.mean(axis=1), 1e-9)
    return np.asarray(np.max(used_PW, axis=0) / whole_W if used_PW else np.zeros(len(fleet.ranks)))


def _program(stack: Sequence[str]) -> str:
    """Name the outermost function of a thread that is not part of the library that started it."""
    own = (frame for frame in stack if not _STARTS.search(frame))
    return next(own, "").partition(":")[0]


def _running(view: View, rows: Sequence[int]) -> Floats:
    """Return the share of its own time, less the wait for a core, in which a training thread runs. float64 [W]."""
    mu_RW = view.fleet.pattern[list(rows), :, 1]
    time_RW = np.where(np.isnan(mu_RW), 0.0, view.fleet.critical_us[list(rows)])
    used_W = 1e-9 + (time_RW * np.nan_to_num(mu_RW)).sum(axis=0)  # of what nobody sampled nobody knows that it waits
    queued_W = np.nan_to_num(queued_share(view.fleet)) * view.fleet.iteration_us.mean(axis=1)
    return np.asarray(used_W / np.maximum(time_RW.sum(axis=0) - queued_W, used_W))
