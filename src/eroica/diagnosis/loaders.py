"""Data loading: the function to name, and loaders that are equally slow.

Array suffixes: R rows, W workers. All times are microseconds per iteration.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.block import Block
from eroica.diagnosis.frames import LARGE_PART, MOST, Focus, activity_of, find_focus, is_own_frame, split_frame
from eroica.diagnosis.view import View
from eroica.localize.fleet import Fleet
from eroica.model.pattern import ThreadRole

Floats = NDArray[np.float64]
OTHER_THREADS: frozenset[ThreadRole] = frozenset({"background", "child"})
_LOADER_FILE = "torch/utils/data/dataloader.py"
_FETCH = "torch/utils/data/_utils/fetch.py"
_WORKER_LOOP = "torch/utils/data/_utils/worker.py"
#: Files in which a loader process waits for work or for room.
_IDLE_FILES = frozenset(
    {
        "multiprocessing/queues.py", "multiprocessing/connection.py", "multiprocessing/synchronize.py", "selectors.py",
        "threading.py", "queue.py", _WORKER_LOOP, "multiprocessing/popen_fork.py",
    }
)  # fmt: skip


def is_idle_stack(stack: Sequence[str]) -> bool:
    """Return True if a loader process with this stack waits for orders or for room."""
    files = [split_frame(entry).file for entry in stack]
    loop = max((at for at, file in enumerate(files) if file.endswith(_WORKER_LOOP)), default=-1)
    inner = files[loop + 1 :] if loop >= 0 else files[-1:]
    return not inner or inner[0] in _IDLE_FILES


def busy_share(fleet: Fleet) -> Floats:
    """Return the share of time in which a worker's sampled loader processes work on data; NaN without any. [W]."""
    rows = [row for row, key in enumerate(fleet.keys) if key.thread == "loader" and key.phase == "input"]
    busy = [row for row in rows if not is_idle_stack(fleet.keys[row].stack)]
    all_W, busy_W = fleet.total_us[rows].sum(axis=0), fleet.total_us[busy].sum(axis=0)
    return np.asarray(np.divide(busy_W, all_W, out=np.full(all_W.shape, np.nan), where=all_W > 0))


def find_loading_function(
    view: View, rows: Sequence[int], late: Block, inside: Focus | None, excess_R: Floats, time_R: Floats
) -> Focus:
    """Return the function to name for a longer wait of some workers in the loader's next.

    The user's own function `inside` next comes first, then what keeps the loader's processes or another thread busy,
    then a library's function below next, at last next itself.
    """
    if inside is not None and inside.is_own and inside.is_specific and not _is_around_next(view, inside):
        return inside
    below = _library_below_next(view, rows, excess_R, time_R)
    return busy_in_loaders(view, late) or below or _next_itself(view, rows, inside)


def reference_of_rows(view: View, rows: Sequence[int], late: Block) -> Floats:
    """Return the reference of each row, mean over the workers; 0 for a stated limit. float64 [R]."""
    source = {"peers": view.suspects.peers_us, "baseline": view.suspects.before_us}.get(late.reference)
    if source is None:
        return np.zeros(len(rows))
    return np.asarray(np.nan_to_num(source[list(rows)][:, list(late.workers)]).mean(axis=1))


def _library_below_next(view: View, rows: Sequence[int], excess_R: Floats, time_R: Floats) -> Focus | None:
    """Find a library's function inside next that holds the excess and does something (pinning, collating)."""
    keys = [msgspec.structs.replace(view.fleet.keys[row], stack=_below(view.fleet.keys[row].stack)) for row in rows]
    found = find_focus(keys, range(len(rows)), excess_R, time_R)
    if found is None or not found.is_specific or not found.stack or split_frame(found.stack[-1]).file in _IDLE_FILES:
        return None
    functions = tuple(rows[at] for at in found.functions)
    return msgspec.structs.replace(found, functions=functions, stack=view.fleet.keys[functions[0]].stack)


def _below(stack: Sequence[str]) -> tuple[str, ...]:
    """Return the frames below the loader's own."""
    files = [split_frame(entry).file for entry in stack]
    own = [at for at, file in enumerate(files) if file.endswith((_LOADER_FILE, _FETCH))]
    return tuple(stack[max(own) + 1 :]) if own else ()


def _is_around_next(view: View, focus: Focus) -> bool:
    """Return True if a frame lies around next (the training loop), and so says no more than next itself."""
    for row in focus.functions:
        frames = [split_frame(entry) for entry in view.fleet.keys[row].stack]
        at = next((at for at, frame in enumerate(frames) if frame.file.endswith(_LOADER_FILE)), len(frames))
        if at < len(frames) and all(frame.name != focus.name for frame in frames[at:]):
            return True
    return False


def _next_itself(view: View, rows: Sequence[int], found: Focus | None) -> Focus:
    """Return the loader's next as a whole."""
    key = view.fleet.keys[max(rows, key=lambda row: float(view.fleet.critical_us[row].mean()))]
    entry = next((frame for frame in key.stack if split_frame(frame).file.endswith(_LOADER_FILE)), None)
    told = split_frame(entry) if entry else found
    name, place = (told.name, told.place) if told is not None else (key.name, "")
    return Focus(name=name, place=place, stack=key.stack, functions=tuple(rows))


def busy_in_loaders(view: View, late: Block) -> Focus | None:
    """Find the function that keeps the loader's processes busy; else one of threads or other processes of the job."""
    keys = view.fleet.keys
    rows = [row for row, key in enumerate(keys) if key.thread == "loader" and not is_idle_stack(key.stack)]
    loops = [row for row in rows if keys[row].phase == "input"]
    return _busiest(view, loops or rows, late) or busy_in_threads(view, late)


def busy_in_threads(view: View, late: Block, roles: Collection[ThreadRole] = OTHER_THREADS) -> Focus | None:
    """Find the user's function that other threads of a block's workers are busy in.

    Args:
        view: The window.
        late: The block.
        roles: Threads that count.
    """
    rows = [
        row
        for row, key in enumerate(view.fleet.keys)
        if key.thread in roles and activity_of(key.stack) != "thread" and any(map(is_own_frame, key.stack))
    ]
    found, members = _busiest(view, rows, late), list(late.workers)
    least = view.settings.min_gain * view.iteration_us
    if found is None or view.fleet.total_us[list(found.functions)][:, members].sum(axis=0).mean() < least:
        return None
    return found


def _busiest(view: View, rows: list[int], late: Block) -> Focus | None:
    """Find the frame that holds most of what a block's workers spend in some rows beyond its reference; else of all."""
    members, total_RW, keys = list(late.workers), view.fleet.total_us[rows], view.fleet.keys
    usual_RW = np.zeros(total_RW.shape)
    if late.reference == "peers":
        usual_RW = view.fleet.usual(total_RW)
    elif late.reference == "baseline":
        usual_RW = view.suspects.rows_then(rows, lambda past, at: past.total_us[at])
    time_R = total_RW[:, members].mean(axis=1)
    excess_R = time_R - np.nan_to_num(usual_RW[:, members]).mean(axis=1)
    return find_focus(keys, rows, excess_R, time_R) or find_focus(keys, rows, time_R, time_R)


def join_equally_slow(view: View, late: Block) -> Block:
    """Take all workers for late that wait for data where nobody's loader processes rest.

    The slowest loader sets the pace and lets the others fill their queues. Of equally slow ones, chance decides which
    worker waits, and to mend that one gains nothing.
    """
    slow_W = busy_share(view.fleet) >= LARGE_PART
    if late.agreement is None or slow_W.mean() < MOST or not slow_W[list(late.workers)].all():
        return late
    members = sorted({*late.workers, *np.flatnonzero(slow_W).tolist()})
    return msgspec.structs.replace(late, workers=tuple(members), scope="all", agreement=None)
