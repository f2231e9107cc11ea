"""Cells: the kinds of time that a worker's iteration is made of, as groups of rows.

Rows of Python hold the time of their own lines, operators their own, so cells do not overlap. Python has a tree of
frames below it: the rows under a frame are a cell by themselves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from eroica.diagnosis.activities import activity_of
from eroica.diagnosis.block import Cell
from eroica.diagnosis.loaders import is_idle_stack
from eroica.diagnosis.operators import launching_rows, operators
from eroica.diagnosis.view import View
from eroica.model.pattern import BESIDE_INPUT, FunctionKey
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
    busy = {row for row in range(len(fleet.keys)) if fleet.critical_us[row].max() > 0}
    memory = [row for row, key in enumerate(fleet.keys) if _is_memory(key, view.fleet.has_accelerator)]
    found: dict[Cell, list[int]] = {
        "input": view.rows(kinds=_INPUT_KINDS, phases=frozenset({"input"})),
        "python": python_rows(view),
        "collections": [row for row, key in enumerate(fleet.keys) if key.kind == "gc"],
        "memory": memory,
        "operators": operators(fleet),
        "launches": [row for row in launching_rows(fleet) if fleet.keys[row].phase != "input"],
        "collectives": [row for row, key in enumerate(fleet.keys) if key.kind == "collective"],
    }
    return {cell: [row for row in rows if row in busy] for cell, rows in found.items()}


def _is_memory(key: FunctionKey, has_accelerator: bool) -> bool:
    if has_accelerator:
        return key.kind == "memory"
    return key.kind == "compute" and key.name in _COPIES and key.phase != "input"


def python_rows(view: View) -> list[int]:
    """List rows of Python outside the loader's next that are a worker's own work."""
    rows = view.rows(kinds=frozenset({"python"}), phases=frozenset(BESIDE_INPUT))
    return [row for row in rows if not enters_collective(view.fleet.keys[row].stack)]


def enters_collective(stack: Sequence[str]) -> bool:
    """Return True if a stack ends where a collective is entered, or where the autograd engine is waited for."""
    if not stack:
        return False
    enters = _COLLECTIVES in stack[-1] and not stack[-1].startswith(_PICKLING)
    return is_engine_frame(stack[-1]) or enters


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
