"""A thread beside the training thread that computes in Python: the two share one interpreter lock.

The training thread then takes longer for everything it does, and uses little of a core though it waits for none.

Array suffixes: W workers, I iterations, R rows.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.activities import activity_of
from eroica.diagnosis.block import Block, Culprit, Facts
from eroica.diagnosis.frames import HALF, Focus
from eroica.diagnosis.links import CORROBORATION, LEAST_STRENGTH
from eroica.diagnosis.loaders import busy_in_threads
from eroica.diagnosis.operators import HELD, held_share, queued_share
from eroica.diagnosis.outliers import Outliers, find_outliers
from eroica.diagnosis.view import View
from eroica.diagnosis.words import name_workers
from eroica.localize.fleet import Fleet
from eroica.model.shares import percent

Floats = NDArray[np.float64]
_KINDS = frozenset({"python", "compute", "memory", "other"})
#: Beside a device operators only launch, and what they take is the device's.
_KINDS_BESIDE_DEVICE = frozenset({"python", "other"})
#: The other thread uses this share of a core, and more than on peers or before by so much.
_BUSY, _BUSIER = 0.3, 0.25
#: Less is enough where the training thread waits longer by at most so many times what the other one computes: native
#: code that keeps the lock (pickling) does so until it is done.
_SOME, _SOME_MORE, _ABOUT = 0.15, 0.12, 1.5
#: What stacks show that waits for something else than the lock.
_WAITS = frozenset({"network", "file", "sync", "thread", "save", "log", "service", "program"})
#: Or it computes as long as elsewhere, and this share of what it takes longer it waits.
_WAITS_LONGER = 0.75
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
    busier_W = busy_W - np.fmin(view.fleet.usual(busy_W), view.then(_busy_beside))
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
            yield _block(view, rows, late, holder, busy_W)


def _block(view: View, rows: list[int], late: Outliers, holder: Focus, busy_W: Floats) -> Block:
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
    return Block(
        cell="python",
        rows=tuple(rows),
        focus=msgspec.structs.replace(holder, share=1.0),
        workers=late.workers,
        scope="some" if late.agreement is not None else "all",
        reference=late.reference,
        removed_us=late.removed_us,
        mean_us=late.mean_us,
        reference_us=late.reference_us,
        strength=float(np.hypot(late.strength, CORROBORATION)),
        agreement=late.agreement,
        facts=Facts(core=running),
        culprit=culprit,
    )


def _holder(view: View, late: Outliers) -> Focus | None:
    """Find the function that the other thread computes in: the user's, else a library's, as in a pool's threads."""
    ways = (busy_in_threads(view, late.workers, late.reference, {"background"}, way) for way in (False, True))
    return next((found for found in ways if found is not None), None)


def _only_waits_longer(view: View) -> NDArray[np.bool_]:
    """Mark workers whose training thread computes as long as on the peers, or as before, but runs later. bool [W]."""
    longer_W, idle_W = (_beyond_usual(view, measured) for measured in (_own_us, _idle_us))
    return np.asarray((longer_W > 0) & (idle_W >= _WAITS_LONGER * longer_W), dtype=np.bool_)


def _waits_about_as_long(view: View, busy_W: Floats) -> NDArray[np.bool_]:
    """Mark workers whose training thread waits longer by at most about what the other thread computes. bool [W]."""
    computes_W = busy_W * view.fleet.iteration_us.mean(axis=1)
    return np.asarray(_beyond_usual(view, _idle_us) <= _ABOUT * computes_W)


def _beyond_usual(view: View, measured: Callable[[Fleet], Floats]) -> Floats:
    """Measure the excess over the peers or over the baseline window, whichever of these is less. float64 [W]."""
    now_W = measured(view.fleet)
    return np.asarray(now_W - np.fmin(view.fleet.usual(now_W), view.then(measured)))


def _would_run(fleet: Fleet) -> list[int]:
    """List rows of the training thread in which it would run."""
    kinds = _KINDS_BESIDE_DEVICE if fleet.has_accelerator else _KINDS
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
    """Return the cores that Python of other threads uses, at most of those that run one function. float64 [W]."""
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
