"""Cells: the kinds of time that a worker's iteration is made of, as groups of rows.

Rows of Python hold the time of their own lines, operators their own, so cells do not overlap. Python has a tree of
frames below it: the rows under a frame are a cell by themselves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.block import Block, Caller, Cell, Reference
from eroica.diagnosis.frames import MOST, activity_of, find_focus
from eroica.diagnosis.loaders import is_idle_stack
from eroica.diagnosis.operators import operators
from eroica.diagnosis.view import View
from eroica.localize.fleet import Fleet
from eroica.model.pattern import BESIDE_INPUT, LAUNCHING, FunctionKey
from eroica.summarize.phases import is_engine_frame

_INPUT_KINDS = frozenset({"python", "compute", "memory", "other"})
#: Operators that copy, fill or allocate, where no device tells kinds apart.
_COPIES = frozenset(
    {
        "aten::copy_", "aten::_to_copy", "aten::clone", "aten::contiguous", "aten::to", "aten::fill_", "aten::zero_",
        "aten::_foreach_copy_", "aten::_foreach_zero_", "aten::cat", "aten::_pin_memory", "aten::empty",
        "aten::empty_like", "aten::empty_strided", "aten::resize_", "aten::repeat", "aten::stack",
    }
)  # fmt: skip
_COLLECTIVES = "(torch/distributed/distributed_c10d.py:"
#: Functions of that file that compute: they pack and unpack objects.
_PICKLING = ("_object_to_tensor (", "_tensor_to_object (")


def list_cells(view: View) -> dict[Cell, list[int]]:
    """Return the rows with critical time of each cell (indices into the fleet's keys)."""
    fleet = view.fleet
    busy = fleet.critical_us.max(axis=1) > 0
    keys = [(row, key) for row, key in enumerate(fleet.keys) if busy[row]]
    return {
        "input": [row for row, key in keys if key.phase == "input" and key.kind in _INPUT_KINDS],
        "python": [
            row
            for row, key in keys
            if key.kind == "python" and key.phase in BESIDE_INPUT and not enters_collective(key.stack)
        ],
        "collections": [row for row, key in keys if key.kind == "gc"],
        "memory": [
            row
            for row, key in keys
            if (key.kind == "memory" if fleet.has_accelerator else key.name in _COPIES and key.phase != "input")
        ],
        "operators": [row for row in operators(fleet) if busy[row]],
        "launches": [row for row, key in keys if key.name == LAUNCHING],
        "collectives": [row for row, key in keys if key.kind == "collective"],
    }


def enters_collective(stack: Sequence[str]) -> bool:
    """Return True if a stack ends where a collective is entered, or where the autograd engine is waited for."""
    leaf = stack[-1] if stack else ""
    return is_engine_frame(leaf) or (_COLLECTIVES in leaf and not leaf.startswith(_PICKLING))


def rows_by_frame(keys: Sequence[FunctionKey], rows: Sequence[int]) -> dict[tuple[int, ...], str]:
    """Return the cells of the tree of frames: rows under each frame; of frames with the same rows, the deepest."""
    under: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        for frame in dict.fromkeys(keys[row].stack):
            under[frame].append(row)
    return {tuple(found): frame for frame, found in under.items()}


def reading_of(stack: tuple[str, ...]) -> tuple[str, bool, bool]:
    """Return all that diagnosis reads in a call stack as a whole: stacks of one reading can be counted together."""
    return activity_of(stack), is_idle_stack(stack), enters_collective(stack)


# --- the user's function under which operators, launches or collections take longer ---


Floats = NDArray[np.float64]
Measure = Callable[[Fleet, list[int]], Floats]


def host_us(fleet: Fleet, rows: list[int]) -> Floats:
    """Return the host's time in each row while an operator ran, or a device worked or was launched for. [R, W]."""
    return np.maximum(fleet.total_us[rows] - fleet.critical_us[rows], 0.0)


def inside_us(fleet: Fleet, rows: list[int]) -> Floats:
    """Return the time of each row while an operator ran; where a device runs it, the device's time. [R, W]."""
    if not fleet.knows_launchers:
        return host_us(fleet, rows)
    return fleet.device_us[list(rows)]


def find_caller(view: View, workers: Sequence[int], reference: Reference, measure: Measure) -> Caller | None:
    """Find the user's function with the largest excess in what it calls.

    Args:
        view: The window.
        workers: Workers (indices) whose excess it is.
        reference: What their time exceeds; a stated limit tells nothing of functions.
        measure: Time of rows that is compared.
    """
    fleet, rows, members = view.fleet, _rows(view.fleet), list(workers)
    if reference == "expectation":
        return None
    time_RW = measure(fleet, rows)
    time_R = time_RW[:, members].mean(axis=1)
    if reference == "peers":
        usual_R = time_R.copy()
        # rows below a thousandth of all decide nothing: there are hundreds, and peers cost much at 100,000 workers
        large = np.flatnonzero(time_R >= 0.001 * time_R.sum())
        usual_R[large] = np.nan_to_num(fleet.usual(time_RW[large]))[:, members].mean(axis=1)
    else:
        usual_R = np.nan_to_num(view.suspects.rows_then(rows, measure)[:, members].mean(axis=1), nan=np.inf)
    focus = find_focus(fleet.keys, rows, np.maximum(time_R - usual_R, 0.0), time_R)
    if focus is None or not focus.is_own or not focus.is_specific:
        return None
    entry = focus.entry
    under = np.asarray([entry in fleet.keys[row].stack for row in rows], dtype=np.bool_)

    def all_under(past: Fleet) -> Floats:
        """Return the time of whatever it called then. float64 [W]."""
        called = [row for row in _rows(past) if entry in past.keys[row].stack]
        return np.asarray(measure(past, called).sum(axis=0))

    then_us = float(view.suspects.then(all_under)[members].mean()) if reference == "baseline" else 0.0
    return Caller(focus=focus, own_us=float(time_R[under].sum()), usual_us=then_us or float(usual_R[under].sum()))


def _rows(fleet: Fleet) -> list[int]:
    """List Python rows of the training thread that may call something, wholly covered by operators or not."""
    return [
        row
        for row, key in enumerate(fleet.keys)
        if key.kind == "python"
        and key.thread == "training"
        and key.phase != "input"
        and not enters_collective(key.stack)
        and activity_of(key.stack) not in ("save", "log")
    ]


def with_caller(view: View, block: Block) -> Block:
    """Return a block of operators, launches, copies or collections with the function that calls them as a fact.

    Recorded traces do not tell, nor do kernels of a device whose launches are not linked to their stacks; but the host
    stands still while it copies from or to pageable memory.
    """
    if view.is_trace or not block.workers or block.cell in ("input", "python", "collectives", "process"):
        return block
    is_of_host = block.cell in ("launches", "collections")
    is_seen = is_of_host or "Pageable" in block.focus.name or view.fleet.knows_launchers
    if view.fleet.has_accelerator and not is_seen:
        return block
    caller = find_caller(view, block.workers, block.reference, host_us if is_of_host else inside_us)
    # stacks are sampled at a tenth of the operators' moments
    least = 0.2 if block.cell == "launches" or block.is_general else MOST
    if caller is None or caller.own_us - caller.usual_us < least * block.excess_us:
        return block
    return msgspec.structs.replace(block, facts=msgspec.structs.replace(block.facts, caller=caller))
