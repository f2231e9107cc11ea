"""Slow data loading: the whole of the loader's next is one group, the function is looked for inside it.

Where that function waits in a read of a file or a socket, the cause is slow storage (`reading`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.activities import activity_of
from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.frames import Focus, find_focus, is_own_frame, split_frame
from eroica.diagnosis.lateness import Lateness, accuse, judge_group
from eroica.diagnosis.reading import describe, doing, library_frame, python_cause
from eroica.diagnosis.rows import reference_of_rows
from eroica.diagnosis.view import View
from eroica.localize.excess import median_of_others

Floats = NDArray[np.float64]
#: Without an accelerator and without a healthy past, input is too slow from this share of the iteration on: loading on
#: the training thread costs something in any such job.
_EXPECTED_ON_CPU = 0.25
#: A prefetching loader stalls in bursts, every few iterations, which makes its excess jumpy.
_LEAST_STRENGTH = 2.0
#: For a loader that keeps a core busy: no storage is to blame.
_COMPUTE_LESS = (
    "Look at what this function computes per sample: do it once and keep the result, do it for whole batches, or "
    "give it more processes (num_workers, prefetch_factor, persistent_workers) on cores that are free."
)
_LOADER_FILE = "torch/utils/data/dataloader.py"
_FETCH = "torch/utils/data/_utils/fetch.py"
_WORKER_LOOP = "torch/utils/data/_utils/worker.py"
#: Where a loader child waits for work or for room, with nothing to do with the data.
_IDLE_FILES = frozenset(
    {
        "multiprocessing/queues.py", "multiprocessing/connection.py", "multiprocessing/synchronize.py", "selectors.py",
        "threading.py", "queue.py", "torch/utils/data/_utils/worker.py", "multiprocessing/popen_fork.py",
    }
)  # fmt: skip


def find_slow_loading(view: View) -> list[Candidate]:
    """Workers, or all, that wait for their next batch longer than their peers, than before or than one may."""
    rows = view.rows(kinds=frozenset({"python", "compute", "memory", "other"}), phases=frozenset({"input"}))
    found = judge_group(view, rows, _expected_share(view), _LEAST_STRENGTH)
    return [_candidate(view, rows, late) for late in found]


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
    evidence = (*_child_evidence(view, focus), *_leaf_evidence(view, focus), *describe(done))
    accused = accuse(late, cause, "python", focus, rows, view.settings.min_gain, evidence)
    return msgspec.structs.replace(accused, next_step=_COMPUTE_LESS) if done.computes else accused


def _leaf_evidence(view: View, focus: Focus) -> tuple[str, ...]:
    leaf = library_frame(view, focus)
    return (f"Its heaviest stack ends in {leaf}.",) if leaf else ()


def find_loading_frame(view: View, rows: Sequence[int], late: Lateness) -> Focus:
    """The frame to name: the user's own inside next, else inside the loader's children, else next itself."""
    members = list(late.workers)
    time_R = view.fleet.critical_us[list(rows)][:, members].mean(axis=1)
    excess_R = time_R - reference_of_rows(view, rows, late)
    inside = find_focus(view.fleet.keys, rows, excess_R, time_R)
    if inside is not None and inside.is_own and inside.is_specific and not _is_whole_loop(view, inside, rows):
        return inside
    below = _library_below_next(view, rows, excess_R, time_R)
    return frame_in_children(view, members, late.reference) or below or _next_itself(view, rows, inside)


def _library_below_next(view: View, rows: Sequence[int], excess_R: Floats, time_R: Floats) -> Focus | None:
    """A library's frame inside next that holds the excess and does something (pinning, collating): no mere wait."""
    keys = [msgspec.structs.replace(view.fleet.keys[row], stack=_below(view.fleet.keys[row].stack)) for row in rows]
    found = find_focus(keys, range(len(rows)), excess_R, time_R)
    if found is None or not found.is_specific or not found.stack:
        return None
    functions = tuple(rows[at] for at in found.functions)
    if split_frame(found.stack[-1]).file in _IDLE_FILES:
        return None
    return msgspec.structs.replace(found, functions=functions, stack=view.fleet.keys[functions[0]].stack)


def _below(stack: Sequence[str]) -> tuple[str, ...]:
    """Frames below the loader's own."""
    files = [split_frame(entry).file for entry in stack]
    own = [at for at, file in enumerate(files) if file.endswith((_LOADER_FILE, _FETCH))]
    return tuple(stack[max(own) + 1 :]) if own else ()


def _is_whole_loop(view: View, focus: Focus, rows: Sequence[int]) -> bool:
    """A frame around next (the training loop) says no more than next itself."""
    stacks = [view.fleet.keys[row].stack for row in focus.functions]
    return any(_above_next(stack, focus.name) for stack in stacks if stack) and len(focus.functions) > 0 < len(rows)


def _above_next(stack: Sequence[str], name: str) -> bool:
    """Whether `name` occurs in a stack only outside the loader's next."""
    files = [split_frame(entry) for entry in stack]
    entry = next((at for at, frame in enumerate(files) if frame.file.endswith(_LOADER_FILE)), len(files))
    return entry < len(files) and all(frame.name != name for frame in files[entry:])


def frame_in_children(view: View, members: Sequence[int], reference: str) -> Focus | None:
    """The frame that keeps the loader's children busy, more than the peers' where it is compared with peers.

    A loader of the user's own may fetch in a thread instead.
    """
    keys = view.fleet.keys
    rows = [at for at, key in enumerate(keys) if key.thread == "loader" and not is_idle_stack(key.stack)]
    loops = [row for row in rows if keys[row].phase == "input"]  # beside threads that serve others
    return _in_rows(view, loops or rows, members, reference) or frame_in_threads(view, members, reference)


def frame_in_threads(view: View, members: Sequence[int], reference: str) -> Focus | None:
    """The user's own frame that other threads of these workers are busy in, for a training thread that waits for one.

    Threads that only wait themselves, or that show no code of the user's, explain nothing.
    """
    rows = [
        at
        for at, key in enumerate(view.fleet.keys)
        if key.thread == "background" and activity_of(key.stack) != "thread" and any(map(is_own_frame, key.stack))
    ]
    found = _in_rows(view, rows, members, reference)
    least = view.settings.min_gain * view.iteration_us
    if found is None or view.fleet.total_us[list(found.functions)][:, list(members)].sum(axis=0).mean() < least:
        return None
    return found


def _in_rows(view: View, rows: list[int], members: Sequence[int], reference: str) -> Focus | None:
    keys = view.fleet.keys
    if not rows:
        return None
    total_RW = view.fleet.total_us[rows]
    time_R = total_RW[:, list(members)].mean(axis=1)
    usual_R = np.zeros(len(rows))
    if reference == "peers":
        usual_R = np.nan_to_num(median_of_others(total_RW, view.fleet.roles)[:, list(members)]).mean(axis=1)
    elif reference == "baseline" and view.suspects.baseline is not None:
        usual_R = _before_in_children(view, rows, members)
    found = find_focus(keys, rows, time_R - usual_R, time_R)
    return found or find_focus(keys, rows, time_R, time_R)


def _before_in_children(view: View, rows: Sequence[int], members: Sequence[int]) -> Floats:
    past = view.suspects.baseline
    assert past is not None
    places = {key: place for place, key in enumerate(past.keys)}
    ranks = {view.fleet.ranks[worker] for worker in members}
    columns = [column for column, rank in enumerate(past.ranks) if rank in ranks]
    return np.asarray(
        [
            past.total_us[places[view.fleet.keys[row]], columns].mean() if view.fleet.keys[row] in places else 0.0
            for row in rows
        ]
    )


def is_idle_stack(stack: Sequence[str]) -> bool:
    """Whether a loader child with this stack waits for orders or for room: no work on data is in progress."""
    if not stack:
        return True
    files = [split_frame(entry).file for entry in stack]
    loop = max((at for at, file in enumerate(files) if file.endswith(_WORKER_LOOP)), default=-1)
    inner = files[loop + 1 :] if loop >= 0 else files[-1:]
    return not inner or inner[0] in _IDLE_FILES


def _next_itself(view: View, rows: Sequence[int], found: Focus | None) -> Focus:
    """The loader's next as a whole."""
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
    if not focus.functions or keys[focus.functions[0]].thread not in ("loader", "background"):
        return ()
    where = "the data loader's processes" if keys[focus.functions[0]].thread == "loader" else "another thread"
    busy = view.fleet.total_us[list(focus.functions)].sum(axis=0)
    each = ", ".join(f"{busy[at] / 1e3:.1f}" for at in np.argsort(-busy)[:8])
    return (f"It runs inside {where}: {each} ms per iteration on the workers, longest first.",)
