"""Tell whether loading data waits for a read (file, socket, object store) or computes (decodes, augments, collates).

Three kinds of evidence: frames of libraries that read, the use of a core meanwhile, and the kernel's own word, that the
thread was in the uninterruptible wait for a disk. Without the second, only frames that read a socket count. A thread
that stands in the run queue uses little of a core too, so its use is held against the time it was allowed to run.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.activities import Activity, activity_of
from eroica.diagnosis.frames import Focus
from eroica.diagnosis.speed import weighted_mean
from eroica.diagnosis.view import View
from eroica.model.pattern import ASIDE
from eroica.model.shares import percent

Floats = NDArray[np.float64]
#: What waiting for the next batch may be called.
INPUT_CAUSES = frozenset({"slow-data-loading", "slow-storage-read"})
#: Below this use of a core most of the time is waiting.
WAITS = 0.5
#: From this use on it computes, and the reader is told so.
_COMPUTES = 0.7
#: Share of a group's time that must show one activity.
MOSTLY = 0.6
#: Share of the named function's time that its thread must have been in the wait for a disk, to say so without frames.
_LEAST_ON_DISK = 0.4
#: Fewer samples than this on all accused together are too few to say how much of a resource they use.
FEWEST_SAMPLES = 5
#: A thread always gets some time: what is measured of the queue is a mean of the window.
_LEAST_ALLOWED = 0.05


class Doing(msgspec.Struct, frozen=True, kw_only=True):
    """Activity of the named function's rows, and their use of a core.

    Attributes:
        activity: Activity that takes most of their time, by frames; "" where no library tells.
        busy: Use of a core meanwhile, 0-1; NaN if nobody looked often enough to say.
        allowed: Share of their time in which their thread did not stand in the run queue without a core, 0-1.
        on_disk: Share of their time that their threads were in the uninterruptible wait for a disk, 0-1.
    """

    activity: Activity
    busy: float
    on_disk: float
    allowed: float = 1.0

    @property
    def busy_when_allowed(self) -> float:
        """Use of a core in the time that it could have one, 0-1; NaN if nobody looked."""
        return min(self.busy / max(self.allowed, _LEAST_ALLOWED), 1.0) if not np.isnan(self.busy) else self.busy

    @property
    def waits_for_read(self) -> bool:
        """True if the rows wait for storage or a network."""
        if np.isnan(self.busy):
            return self.activity in ("network", "service")
        known = self.activity in ("network", "service", "file") or self.on_disk >= _LEAST_ON_DISK
        return known and self.busy_when_allowed < WAITS

    @property
    def computes(self) -> bool:
        """True if the rows keep a core busy, or would if they got one."""
        return self.busy_when_allowed > _COMPUTES

    @property
    def source(self) -> str:
        """Name of what the read waits for."""
        return "the network" if self.activity in ("network", "service") else "storage"


def doing(view: View, functions: Sequence[int], workers: Sequence[int], *, with_operators: bool = False) -> Doing:
    """Read the activity of some rows on some workers, and their use of a core.

    Args:
        view: The window.
        functions: The rows (indices into the fleet's keys).
        workers: Indices.
        with_operators: Rows count with the operators that run in them, not only where nothing else runs.
    """
    rows = list(functions)
    in_other = bool(rows) and view.fleet.keys[rows[0]].thread in ASIDE
    in_full = in_other or with_operators
    time_RW = (view.fleet.total_us if in_full else view.fleet.critical_us)[rows][:, list(workers)]
    time_R = time_RW.sum(axis=1)
    use = view.fleet.pattern[rows][:, list(workers), 1]
    seen = float(view.fleet.samples[rows][:, list(workers)].sum()) >= FEWEST_SAMPLES
    return Doing(
        activity=_mostly(view, rows, time_R),
        busy=weighted_mean(use.ravel(), time_RW.ravel()) if seen else np.nan,
        on_disk=_on_disk(view, workers, time_RW.sum(axis=0), "loader_disk_wait" if in_other else "disk_wait"),
        allowed=1.0 if in_other else _allowed(view, workers, time_RW.sum(axis=0)),
    )


def _allowed(view: View, workers: Sequence[int], time_W: Floats) -> float:
    """Return the share of the window in which training threads did not lack a core, by the function's time; 0-1."""
    queued_W = [view.fleet.patterns[worker].host_facts.get("run_queue_wait", 0.0) for worker in workers]
    queued = weighted_mean(queued_W, time_W)
    return 1.0 if np.isnan(queued) else float(np.clip(1.0 - queued, 0.0, 1.0))


def python_cause(done: Doing, is_input: bool) -> str:
    """Choose the cause of slow Python: a read that waits, loading data, or Python that runs.

    Args:
        done: Activity and use of a core.
        is_input: True in the loader's next. Elsewhere frames alone tell a read, and a message to a service is none.
    """
    if done.waits_for_read and (is_input or done.activity not in ("", "service")):
        return "slow-storage-read"
    return "slow-data-loading" if is_input else "python-on-critical-path"


def _mostly(view: View, rows: Sequence[int], time_R: Floats) -> Activity:
    by_activity: dict[Activity, float] = {}
    for row, time in zip(rows, time_R, strict=True):
        activity = activity_of(view.fleet.keys[row].stack)
        by_activity[activity] = by_activity.get(activity, 0.0) + float(time)
    reads = by_activity.get("network", 0.0) + by_activity.get("file", 0.0)
    if reads > 0 and reads >= MOSTLY * sum(by_activity.values()):
        return "network" if by_activity.get("network", 0.0) >= reads / 2 else "file"
    least = MOSTLY * sum(by_activity.values())
    return next((activity for activity, time in by_activity.items() if time > 0 and time >= least), "")


def _on_disk(view: View, workers: Sequence[int], time_W: Floats, fact: str) -> float:
    """Return the time in the wait for a disk over the function's own time; 0 where nobody looked."""
    waits = [
        view.fleet.patterns[worker].host_facts.get(fact, 0.0) * view.iteration_us / max(float(time), 1e-9)
        for worker, time in zip(workers, time_W, strict=True)
        if time > 0
    ]
    return min(float(np.mean(waits)), 1.0) if waits else 0.0


def describe(found: Doing) -> tuple[str, ...]:
    """List evidence on whether a function waits or computes."""
    sentences = []
    if found.activity in ("network", "service", "file") and found.waits_for_read:
        how = "its use of a core was not measured" if np.isnan(found.busy) else f"on {percent(found.busy)} of a core"
        where = "a file" if found.activity == "file" else "a socket"
        sentences.append(f"Its stacks end in library code that reads {where}, {how}.")
    if found.on_disk >= 0.1:
        sentences.append(
            f"The kernel had its thread in the uninterruptible wait (state D: a disk or a network file system) for "
            f"{percent(found.on_disk)} of that time."
        )
    if found.computes:
        sentences.append(
            f"It computes: it keeps {percent(found.busy)} of a core busy{_queued(found)}, so faster storage would not "
            "help."
        )
    return tuple(sentences)


def _queued(found: Doing) -> str:
    if found.busy > _COMPUTES:
        return ""
    return f" and its thread is ready but without one {percent(1 - found.allowed)} of the time"


def library_frame(view: View, focus: Focus) -> str:
    """Name the innermost frame below the named one; "" where the named one is the innermost."""
    if not focus.stack:
        return ""
    leaf = focus.stack[-1]
    return "" if leaf.startswith(f"{focus.name} (") else leaf
