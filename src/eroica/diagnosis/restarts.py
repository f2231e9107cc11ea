"""Loader processes that are ended and started again all the time: epochs of a few steps, a new iterator for each batch.

Each new process costs a fork and what it does first, the old ones are waited for, and no batch is ready when the loop
asks for one. The frames of the loader that start and end processes tell; kept ones (`persistent_workers`) and loaders
without any have none of those.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.frames import Focus, is_own_frame, split_frame
from eroica.diagnosis.lateness import Lateness
from eroica.diagnosis.placement import name_accused
from eroica.diagnosis.rows import reference_of_rows
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms

_FILE = "torch/utils/data/dataloader.py"
_STARTS = ("__iter__", "__del__", "_shutdown_workers")
_PROCESSES = ("multiprocessing/process.py", "multiprocessing/popen_")
#: Starting and ending must take this share of what loading takes longer, and of the iteration; waiting for the first
#: batch of a new process comes on top.
_LEAST_OF_EXCESS = 0.15
_LEAST_OF_ITERATION = 0.02
#: And come in so many iterations of the window: the end of an epoch is no habit.
_AGAIN = 3
_NEXT_STEP = (
    "Keep the loader processes (persistent_workers=True), iterate over longer epochs or over one endless iterator, and "
    "move what each process does first (reading an index, opening files) out of it."
)


def tell_restarts(view: View, candidate: Candidate, late: Lateness) -> Candidate:
    """Add to slow loading that loader processes are started again and again, and the function that does it.

    Args:
        view: The window.
        candidate: Slow loading.
        late: Workers that wait for it, and their excess.
    """
    rows, members = _rows(view), list(late.workers)
    if not rows:
        return candidate
    time_R = view.fleet.critical_us[rows][:, members].mean(axis=1)
    more_R = time_R - reference_of_rows(view, rows, late)
    least_us = max(_LEAST_OF_EXCESS * candidate.excess_us, _LEAST_OF_ITERATION * view.iteration_us)
    times = int((view.fleet.series(rows)[members].mean(axis=0) >= _LEAST_OF_ITERATION * view.iteration_us).sum())
    if more_R.sum() < least_us or times < _AGAIN:
        return candidate
    text = (
        f"Starting and ending loader processes takes {format_ms(float(time_R.sum()))} of each iteration by itself, and "
        "new ones have no batch ready."
    )
    found = msgspec.structs.replace(candidate, next_step=_NEXT_STEP, evidence=(*candidate.evidence, text))
    focus = _who_iterates(view, rows[int(np.argmax(more_R))], candidate)
    if candidate.focus.is_own or candidate.is_elsewhere or focus is None:
        return found
    who, is_one = name_accused(view, late.workers, capital=True)
    if len(late.workers) == view.workers > 1:
        who, is_one = f"All {view.workers} workers", False
    start = "starts its" if is_one else "start their"
    return msgspec.structs.replace(found, focus=focus, subject=f"{who} {start} loader processes anew again and again")


def _rows(view: View) -> list[int]:
    """List the training thread's rows below the loader that start or end processes."""
    keys = view.fleet.keys
    return [
        at
        for at, key in enumerate(keys)
        if key.kind == "python" and key.thread == "training" and _handles_processes(key.stack)
    ]


def _handles_processes(stack: Sequence[str]) -> bool:
    at = _start(stack)
    below = (split_frame(entry) for entry in stack[at:]) if at is not None else ()
    return any(one.name.endswith("_shutdown_workers") or one.file.startswith(_PROCESSES) for one in below)


def _start(stack: Sequence[str]) -> int | None:
    """Find the place of the loader's frame in a stack."""
    frames = ((at, split_frame(entry)) for at, entry in enumerate(stack) if _FILE in entry)
    places = [at for at, frame in frames if frame.file == _FILE and frame.name.rpartition(".")[2] in _STARTS]
    return places[0] if places else None


def _who_iterates(view: View, row: int, loading: Candidate) -> Focus | None:
    """Find the user's function right above the loader, with what loading takes below it."""
    stack = view.fleet.keys[row].stack
    own = [entry for entry in stack[: _start(stack)] if is_own_frame(entry)]
    if not own:
        return None
    frame = split_frame(own[-1])
    below = tuple(at for at in loading.functions if own[-1] in view.fleet.keys[at].stack)
    time_us, whole_us = (view.fleet.critical_us[list(rows)].sum() for rows in (below, loading.functions))
    return Focus(
        name=frame.name,
        place=frame.place,
        stack=stack,
        functions=below,
        share=float(time_us / max(whole_us, 1e-9)),
        is_own=True,
    )
