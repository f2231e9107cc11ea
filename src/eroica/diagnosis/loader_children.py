"""Read the data loader's processes: the frame that keeps them busy, and how long a batch takes them.

Threads that a loader of the user's own fetches in are read the same way. Array suffixes: R rows, W workers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.activities import activity_of
from eroica.diagnosis.frames import Focus, find_focus, is_own_frame, split_frame
from eroica.diagnosis.view import View
from eroica.localize.fleet import Fleet
from eroica.model.pattern import ThreadRole

Floats = NDArray[np.float64]
#: Who limits the job works most of the time in a window, too, in which there is more room to wait.
MOSTLY_BUSY = 0.75
#: Threads that share the training thread's interpreter lock, and all that it may wait for beside its loaders.
OWN_THREADS: frozenset[ThreadRole] = frozenset({"background"})
_OTHERS: frozenset[ThreadRole] = frozenset({"background", "child"})
_WORKER_LOOP = "torch/utils/data/_utils/worker.py"
#: Where a loader child waits for work or for room, with nothing to do with the data.
IDLE_FILES = frozenset(
    {
        "multiprocessing/queues.py", "multiprocessing/connection.py", "multiprocessing/synchronize.py", "selectors.py",
        "threading.py", "queue.py", "torch/utils/data/_utils/worker.py", "multiprocessing/popen_fork.py",
    }
)  # fmt: skip


def is_idle_stack(stack: Sequence[str]) -> bool:
    """True if a loader child with this stack waits for orders or for room: no work on data is in progress."""
    if not stack:
        return True
    files = [split_frame(entry).file for entry in stack]
    loop = max((at for at, file in enumerate(files) if file.endswith(_WORKER_LOOP)), default=-1)
    inner = files[loop + 1 :] if loop >= 0 else files[-1:]
    return not inner or inner[0] in IDLE_FILES


def busy_share(fleet: Fleet) -> Floats:
    """Return the share of time in which a worker's sampled loader processes work on data; NaN without any. [W]."""
    rows = [at for at, key in enumerate(fleet.keys) if key.thread == "loader" and key.phase == "input"]
    busy = [row for row in rows if not is_idle_stack(fleet.keys[row].stack)]
    all_W, busy_W = fleet.total_us[rows].sum(axis=0), fleet.total_us[busy].sum(axis=0)
    return np.asarray(np.divide(busy_W, all_W, out=np.full(all_W.shape, np.nan), where=all_W > 0))


def batch_us(fleet: Fleet) -> Floats:
    """Return the time that a worker's loader processes together need for a batch; NaN without any. float64 [W]."""
    return np.asarray(busy_share(fleet) * fleet.iteration_us.mean(axis=1))


def frame_in_children(view: View, members: Sequence[int], reference: str) -> Focus | None:
    """Find the frame that keeps the loader's children busy, more than the peers' where these are the reference.

    A loader of the user's own may fetch in a thread or in a process of its own instead.
    """
    keys = view.fleet.keys
    rows = [at for at, key in enumerate(keys) if key.thread == "loader" and not is_idle_stack(key.stack)]
    loops = [row for row in rows if keys[row].phase == "input"]  # beside threads that serve others
    return _in_rows(view, loops or rows, members, reference) or frame_in_threads(view, members, reference)


def frame_in_threads(
    view: View,
    members: Sequence[int],
    reference: str,
    roles: Collection[ThreadRole] = _OTHERS,
    libraries_too: bool = False,
) -> Focus | None:
    """Find the user's frame that other threads of these workers are busy in, for a training thread that waits for one.

    Threads of processes that they have started count, too, unless `roles` says otherwise.

    Threads that only wait themselves explain nothing; nor do, unless `libraries_too`, those that show no code of the
    user's.
    """
    rows = [
        at
        for at, key in enumerate(view.fleet.keys)
        if key.thread in roles
        and activity_of(key.stack) != "thread"
        and (libraries_too or any(map(is_own_frame, key.stack)))
    ]
    found = _in_rows(view, rows, members, reference)
    least = view.settings.min_gain * view.iteration_us
    if found is None or view.fleet.total_us[list(found.functions)][:, list(members)].sum(axis=0).mean() < least:
        return None
    return found


def where_it_runs(view: View, rows: Sequence[int]) -> str:
    """Say where functions run that are not the training thread's."""
    threads = {view.fleet.keys[row].thread for row in rows}
    if "loader" in threads:
        return "a loader process"
    return "a process that the worker has started" if "child" in threads else "another thread"


def _in_rows(view: View, rows: list[int], members: Sequence[int], reference: str) -> Focus | None:
    keys = view.fleet.keys
    if not rows:
        return None
    total_RW = view.fleet.total_us[rows]
    time_R = total_RW[:, list(members)].mean(axis=1)
    usual_R = np.zeros(len(rows))
    if reference == "peers":
        usual_R = np.nan_to_num(view.fleet.usual(total_RW)[:, list(members)]).mean(axis=1)
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
