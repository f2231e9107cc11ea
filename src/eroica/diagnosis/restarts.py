"""Loader processes that are ended and started again all the time: epochs of a few steps, a new iterator for each batch.

Each new process costs a fork and what it does first, the old ones are waited for, and no batch is ready when the loop
asks for one. The frames of the loader that begin and end an iteration over it tell.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.frames import Focus, is_own_frame, split_frame
from eroica.diagnosis.lateness import Lateness
from eroica.diagnosis.rows import reference_of_rows
from eroica.diagnosis.view import View
from eroica.diagnosis.whereabouts import name_accused
from eroica.diagnosis.words import format_ms

_FILE = "torch/utils/data/dataloader.py"
_STARTS = ("__iter__", "__del__", "_shutdown_workers")
#: Starting and ending must take this share of what loading takes longer, and of the iteration; waiting for the first
#: batch of a new process comes on top.
_LEAST_OF_EXCESS = 0.15
_LEAST_OF_ITERATION = 0.02
_NEXT_STEP = (
    "Keep the loader processes (persistent_workers=True), iterate over longer epochs or over one endless iterator, and "
    "move what each process does first (reading an index, opening files) out of it."
)


def tell_restarts(view: View, candidate: Candidate, late: Lateness) -> Candidate:
    """The candidate; where loader processes are started again and again, with that and the function that does it.

    Args:
        view: The window.
        candidate: Slow loading.
        late: Who waits for it, and how much.
    """
    rows, members = _rows(view), list(late.workers)
    if not rows:
        return candidate
    time_R = view.fleet.critical_us[rows][:, members].mean(axis=1)
    more_R = time_R - reference_of_rows(view, rows, late)
    least_us = max(_LEAST_OF_EXCESS * candidate.excess_us, _LEAST_OF_ITERATION * view.iteration_us)
    if more_R.sum() < least_us:
        return candidate
    text = (
        f"Starting and ending loader processes takes {format_ms(float(time_R.sum()))} of each iteration by itself, and "
        "new ones have no batch ready."
    )
    found = msgspec.structs.replace(candidate, next_step=_NEXT_STEP, evidence=(*candidate.evidence, text))
    focus = _who_iterates(view, rows[int(np.argmax(more_R))], candidate.focus)
    if candidate.focus.is_own or focus is None:
        return found
    who, is_one = name_accused(view, late.workers, capital=True)
    if late.agreement is None:
        who, is_one = (f"All {view.workers} workers", False) if view.workers > 1 else ("The worker", True)
    start = "starts its" if is_one else "start their"
    return msgspec.structs.replace(found, focus=focus, subject=f"{who} {start} loader processes anew again and again")


def _rows(view: View) -> list[int]:
    """The training thread's rows below a beginning or an end of an iteration over a loader."""
    keys = view.fleet.keys
    return [
        at
        for at, key in enumerate(keys)
        if key.kind == "python" and key.thread == "training" and _start(key.stack) is not None
    ]


def _start(stack: Sequence[str]) -> int | None:
    """Where in a stack the loader's frame lies."""
    frames = ((at, split_frame(entry)) for at, entry in enumerate(stack) if _FILE in entry)
    places = [at for at, frame in frames if frame.file == _FILE and frame.name.rpartition(".")[2] in _STARTS]
    return places[0] if places else None


def _who_iterates(view: View, row: int, loading: Focus) -> Focus | None:
    """The user's function right above the loader."""
    stack = view.fleet.keys[row].stack
    own = [entry for entry in stack[: _start(stack)] if is_own_frame(entry)]
    if not own:
        return None
    frame = split_frame(own[-1])
    return msgspec.structs.replace(loading, name=frame.name, place=frame.place, stack=stack, is_own=True)
