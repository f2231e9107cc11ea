"""Slow data loading: the whole of the loader's next is one group, the function is looked for inside it.

Where that function waits in a read of a file or a socket, the cause is slow storage (`reading`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.frames import Focus, find_focus, split_frame
from eroica.diagnosis.lateness import JOB_WIDE, Lateness, accuse, judge_group, late_as_all, measure
from eroica.diagnosis.loader_children import (
    IDLE_FILES,
    MOSTLY_BUSY,
    batch_us,
    busy_share,
    frame_in_children,
    where_it_runs,
)
from eroica.diagnosis.reading import describe, doing, library_frame, python_cause
from eroica.diagnosis.restarts import tell_restarts
from eroica.diagnosis.rows import reference_of_rows
from eroica.diagnosis.view import View
from eroica.model.pattern import ASIDE

Floats = NDArray[np.float64]
#: Without an accelerator and without a healthy past, input is too slow from this share of the iteration on: loading on
#: the training thread costs something in any such job.
_EXPECTED_ON_CPU = 0.25
#: A prefetching loader stalls in bursts, every few iterations, which makes its excess jumpy.
_LEAST_STRENGTH = 2.0
#: Loader processes that need this share of the slowest ones' time for a batch would soon set the pace themselves.
_AS_LONG = 0.85
#: For a loader that keeps a core busy: no storage is to blame.
_COMPUTE_LESS = (
    "Look at what this function computes per sample: do it once and keep the result, do it for whole batches, or "
    "give it more processes (num_workers, prefetch_factor, persistent_workers) on cores that are free."
)
_LOADER_FILE = "torch/utils/data/dataloader.py"
_FETCH = "torch/utils/data/_utils/fetch.py"


def find_slow_loading(view: View) -> list[Candidate]:
    """Accuse workers, or all, that wait for their next batch longer than their peers, than before or than expected."""
    rows = view.rows(kinds=frozenset({"python", "compute", "memory", "other"}), phases=frozenset({"input"}))
    expected = _expected_share(view)
    found = [_joined(view, rows, late, expected) for late in judge_group(view, rows, expected, _LEAST_STRENGTH)]
    once = {(late.workers, late.agreement is None): late for late in found}
    once |= {(late.workers, False): late for late in reversed(found) if late.agreement is not None}  # peers tell more
    return [_candidate(view, rows, late) for late in once.values()]


def _joined(view: View, rows: list[int], late: Lateness, expected_share: float | None) -> Lateness:
    """Add to the late workers those whose loader processes need about as long for a batch.

    The slowest loader sets the pace and lets the others fill their queues: of equally slow ones chance says whose
    worker waits, and to mend that one gains nothing.
    """
    members_W = np.isin(np.arange(view.workers), late.workers)
    batch_W = np.nan_to_num(batch_us(view.fleet))
    as_slow_W = (busy_share(view.fleet) >= MOSTLY_BUSY) & (batch_W >= _AS_LONG * batch_W[members_W].min())
    joined_W = members_W | as_slow_W
    if late.agreement is None or not as_slow_W[members_W].all() or not (as_slow_W & ~members_W).any():
        return late
    spent = measure(view, rows)
    if joined_W.mean() < JOB_WIDE:
        workers = tuple(int(worker) for worker in np.flatnonzero(joined_W))
        joined = msgspec.structs.replace(late, workers=workers, mean_us=float(spent.time_us[joined_W].mean()))
    else:
        joined = late_as_all(view, spent, joined_W, late.strength, expected_share)
    if joined.mean_us > joined.reference_us:
        return joined
    return msgspec.structs.replace(joined, mean_us=late.mean_us)  # of those that do wait


def _expected_share(view: View) -> float | None:
    if view.fleet.has_accelerator:
        return view.settings.expected_python
    past = view.suspects.baseline
    if past is None or view.context.window.purpose in ("expected", "early"):
        return _EXPECTED_ON_CPU
    # a baseline as slow as now says nothing about what loading may cost: the job may have been slow from the start
    got_slower = view.iteration_us >= past.mean_iteration_us * (1 + view.settings.min_gain)
    return None if got_slower else _EXPECTED_ON_CPU


def _candidate(view: View, rows: list[int], late: Lateness) -> Candidate:
    focus = find_loading_frame(view, rows, late)
    done = doing(view, focus.functions or rows, late.workers)
    cause = python_cause(done, is_input=True)
    beside = (*_child_evidence(view, focus), *_pace_evidence(view, late.workers))
    evidence = (*beside, *_leaf_evidence(view, focus), *describe(done))
    accused = accuse(late, cause, "python", focus, rows, view.settings.min_gain, evidence)
    told = msgspec.structs.replace(accused, next_step=_COMPUTE_LESS) if done.computes else accused
    return tell_restarts(view, told, late)


def _leaf_evidence(view: View, focus: Focus) -> tuple[str, ...]:
    leaf = library_frame(view, focus)
    return (f"Its heaviest stack ends in {leaf}.",) if leaf else ()


def find_loading_frame(view: View, rows: Sequence[int], late: Lateness) -> Focus:
    """Choose the frame to name: the user's own inside next, else inside the loader's children, else next itself."""
    members = list(late.workers)
    time_R = view.fleet.critical_us[list(rows)][:, members].mean(axis=1)
    excess_R = time_R - reference_of_rows(view, rows, late)
    inside = find_focus(view.fleet.keys, rows, excess_R, time_R)
    if inside is not None and inside.is_own and inside.is_specific and not _is_whole_loop(view, inside, rows):
        return inside
    below = _library_below_next(view, rows, excess_R, time_R)
    return frame_in_children(view, members, late.reference) or below or _next_itself(view, rows, inside)


def _library_below_next(view: View, rows: Sequence[int], excess_R: Floats, time_R: Floats) -> Focus | None:
    """Find a library's frame inside next that holds the excess and does something (pinning, collating), not a wait."""
    keys = [msgspec.structs.replace(view.fleet.keys[row], stack=_below(view.fleet.keys[row].stack)) for row in rows]
    found = find_focus(keys, range(len(rows)), excess_R, time_R)
    if found is None or not found.is_specific or not found.stack:
        return None
    functions = tuple(rows[at] for at in found.functions)
    if split_frame(found.stack[-1]).file in IDLE_FILES:
        return None
    return msgspec.structs.replace(found, functions=functions, stack=view.fleet.keys[functions[0]].stack)


def _below(stack: Sequence[str]) -> tuple[str, ...]:
    """Return the frames below the loader's own."""
    files = [split_frame(entry).file for entry in stack]
    own = [at for at, file in enumerate(files) if file.endswith((_LOADER_FILE, _FETCH))]
    return tuple(stack[max(own) + 1 :]) if own else ()


def _is_whole_loop(view: View, focus: Focus, rows: Sequence[int]) -> bool:
    """True if a frame lies around next (the training loop), and so says no more than next itself."""
    stacks = [view.fleet.keys[row].stack for row in focus.functions]
    return any(_above_next(stack, focus.name) for stack in stacks if stack) and len(focus.functions) > 0 < len(rows)


def _above_next(stack: Sequence[str], name: str) -> bool:
    """True if a stack enters the loader's next, and `name` is no frame from there on."""
    files = [split_frame(entry) for entry in stack]
    entry = next((at for at, frame in enumerate(files) if frame.file.endswith(_LOADER_FILE)), len(files))
    return entry < len(files) and all(frame.name != name for frame in files[entry:])


def _next_itself(view: View, rows: Sequence[int], found: Focus | None) -> Focus:
    """Return the loader's next as a whole."""
    heaviest = max(rows, key=lambda row: float(view.fleet.critical_us[row].mean()))
    key = view.fleet.keys[heaviest]
    entry = next((frame for frame in key.stack if split_frame(frame).file.endswith(_LOADER_FILE)), None)
    frame = split_frame(entry) if entry else None
    name = frame.name if frame else (found.name if found else key.name)
    place = frame.place if frame else (found.place if found else "")
    return Focus(
        name=name, place=place, stack=key.stack, functions=tuple(rows), share=1.0, is_own=False, is_specific=True
    )


def _child_evidence(view: View, focus: Focus) -> tuple[str, ...]:
    keys = view.fleet.keys
    if not focus.functions or keys[focus.functions[0]].thread not in ASIDE:
        return ()
    where = where_it_runs(view, focus.functions)
    busy = view.fleet.total_us[list(focus.functions)].sum(axis=0)
    each = ", ".join(f"{busy[at] / 1e3:.1f}" for at in np.argsort(-busy)[:8])
    return (f"It runs inside {where}: {each} ms per iteration on the workers, longest first.",)


def _pace_evidence(view: View, workers: Sequence[int]) -> tuple[str, ...]:
    """State how long loader processes that never rest need for a batch: not all of several such workers wait."""
    members = list(workers)
    if len(members) < 2 or not (busy_share(view.fleet)[members] >= MOSTLY_BUSY).all():
        return ()
    each = ", ".join(f"{us / 1e3:.0f}" for us in batch_us(view.fleet)[members[:8]])
    return (f"Their loader processes need {each} ms for a batch and hardly rest: a little decides who waits.",)
