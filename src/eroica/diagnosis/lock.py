"""A thread beside the training thread that computes in Python: the two share one interpreter lock.

The training thread then takes longer for everything it does, whatever that is, and uses little of a core meanwhile
though it is not waiting for one. Rules that look at single functions see a bit of it in each.

Array suffixes: W workers, I iterations, R rows.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.activities import activity_of
from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.frames import Focus
from eroica.diagnosis.lateness import Lateness, accuse, late_against_baseline, late_against_peers, measure
from eroica.diagnosis.limits import HELD
from eroica.diagnosis.loader_children import OWN_THREADS, frame_in_threads
from eroica.diagnosis.speed import held_share, queued_share
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms, name_workers
from eroica.localize.fleet import Fleet
from eroica.model.shares import percent
from eroica.model.verdict import ResourceUse

Floats = NDArray[np.float64]
CAUSE = "python-on-critical-path"
_KINDS = frozenset({"python", "compute", "memory", "other"})
#: Beside a device operators only launch, and what they take is the device's.
_KINDS_BESIDE_DEVICE = frozenset({"python", "other"})
#: A thread that keeps so much of a core busy leaves the lock only when it is made to, every few milliseconds.
_BUSY = 0.3
#: And it must be so much busier than on the peers or than before: one that was always there has no news.
_BUSIER = 0.25
#: Less is enough where the training thread waits longer by about what the other one computes: native code that keeps
#: the lock (pickling) does so until it is done.
_SOME, _SOME_MORE = 0.15, 0.12
_ABOUT = 1.5
#: If one row holds more of the excess it is that function, not the lock; unless threads only wait longer than before
#: while another one keeps a core busy.
_MOST_IN_ONE = 0.5
#: What stacks show that waits for something else than the lock.
_WAITS = frozenset({"network", "file", "sync", "thread", "save", "log", "service", "program"})
#: The training thread runs for at most this share of its own time (what waits for a core taken off), where it would
#: compute for more.
_STARVED = 0.5
#: Or it computes as long as elsewhere, and this share of what it takes longer it waits, for the lock or for a core.
_WAITS_LONGER = 0.75
#: Being starved of the lock is evidence of its own: standard errors of the time lost need be fewer, and count for more.
_LEAST_STRENGTH = 1.5
_LEAST_RATIO = 0.25
_CORROBORATION = 4.0
#: What rules for single functions make of it.
_SLOWER_TOO = frozenset({"compute-slow", "python-on-critical-path", "slow-data-loading"})
#: Where threads begin.
_STARTS = re.compile(r"\((?:threading|concurrent/futures/thread|multiprocessing/pool)\.py:")
_NEXT_STEP = (
    "Let another process do what this thread does (multiprocessing, with its result through a queue), let it work in "
    "native code that gives the lock back, or do it less often."
)


def find_lock_contention(view: View) -> list[Candidate]:
    """Accuse workers, or all, whose training thread takes longer for everything while another computes in Python."""
    busy_W = _busy_beside(view.fleet)
    if not (busy_W >= _SOME).any():
        return []
    rows = _own_rows(view)
    busier_W = busy_W - _usual(view, busy_W)
    only_waits_W = _only_waits_longer(view)
    starved_W = (_running(view, rows) <= _STARVED) | only_waits_W
    starved_W &= (busy_W >= _BUSY) & (busier_W >= _BUSIER)
    starved_W |= (busy_W >= _SOME) & (busier_W >= _SOME_MORE) & only_waits_W & _waits_about_as_long(view, busy_W)
    starved_W &= held_share(view.fleet) <= HELD
    if not starved_W.any():
        return []
    spent = measure(view, rows)
    found = [
        *late_against_peers(view, spent, _LEAST_STRENGTH, excused=False, least_ratio=_LEAST_RATIO),
        *late_against_baseline(view, spent, _LEAST_STRENGTH, excused=False, least_ratio=_LEAST_RATIO),
    ]
    return [
        candidate
        for late in found
        if starved_W[list(late.workers)].all() and (candidate := _candidate(view, rows, late, busy_W)) is not None
    ]


def _own_rows(view: View) -> list[int]:
    """List rows with critical time in which the training thread would run, not those in which it is known to wait."""
    return [row for row in _would_run(view.fleet) if view.fleet.critical_us[row].any()]


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


def _usual(view: View, busy_W: Floats) -> Floats:
    """Return the core use of such a thread on the peers or in the baseline window, whichever is less. float64 [W]."""
    peers_W = view.fleet.usual(busy_W)
    return np.asarray(np.fmin(peers_W, view.then(_busy_beside)))


def _is_spread(view: View, rows: list[int], late: Lateness) -> bool:
    """True if no single row holds most of the excess: a thread that shares the lock is slower at everything."""
    source = view.suspects.peers_us if late.reference == "peers" else view.suspects.before_us
    excess_R = np.nan_to_num(view.fleet.critical_us[rows] - np.nan_to_num(source[rows]))[:, list(late.workers)].mean(
        axis=1
    )
    above_R = np.maximum(excess_R, 0.0)
    return bool(above_R.max() <= _MOST_IN_ONE * max(float(above_R.sum()), 1e-9))


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


def _candidate(view: View, rows: list[int], late: Lateness, busy_W: Floats) -> Candidate | None:
    inside, members = _inside(view, late), list(late.workers)
    if inside is None:
        return None
    waits = bool(_only_waits_longer(view)[members].all() and (busy_W[members] >= _BUSY).all())
    if not waits and not _is_spread(view, rows, late):
        return None
    running_W = _running(view, rows)
    running, busy = float(running_W[members].mean()), percent(float(busy_W[members].mean()))
    evidence = (
        f"Another thread computes in {inside.label} and uses {busy} of a core; it and the training thread share one "
        "interpreter lock.",
        f"The training thread runs for {percent(running)} of its own time, waits for a core taken off.",
    )
    whole = msgspec.structs.replace(inside, share=1.0)
    found = accuse(late, CAUSE, "python", whole, rows, view.settings.min_gain, evidence)
    return msgspec.structs.replace(
        found,
        sentence=_sentence(view, late, inside),
        next_step=_NEXT_STEP,
        corroboration=_CORROBORATION,
        stands_for=_SLOWER_TOO,
        resource=ResourceUse(name="interpreter lock", mean=round(running, 4)),
    )


def _inside(view: View, late: Lateness) -> Focus | None:
    """Find the frame that the other thread computes in: the user's code, else a library's, as in a pool's threads."""
    ways = (frame_in_threads(view, late.workers, late.reference, OWN_THREADS, way) for way in (False, True))
    return next((found for found in ways if found is not None), None)


def _sentence(view: View, late: Lateness, inside: Focus) -> str:
    whose = name_workers([view.fleet.ranks[worker] for worker in late.workers])
    each = "each of " if len(late.workers) > 1 else ""
    now, usual, iteration = map(format_ms, (late.mean_us, late.reference_us, view.iteration_us))
    compared = f"took {usual} before" if late.reference == "baseline" else f"takes {usual} elsewhere"
    return (
        f"Another thread of {each}{whose} computes in {inside.label} and holds Python's interpreter lock: what "
        f"{compared} takes the training thread {now} of each {iteration} iteration."
    )
