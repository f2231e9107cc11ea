"""What two runs must have in common to be compared function by function."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from eroica.model.pattern import WorkerPattern
from eroica.model.rows import RowTable
from eroica.model.trace import NO_KERNELS

#: With stacks this time has other names than without: annotations and operators of the host stand for it then.
_HOST_KINDS = ("python", "other")


def without_unlike(
    before: Sequence[WorkerPattern], after: Sequence[WorkerPattern]
) -> tuple[Sequence[WorkerPattern], Sequence[WorkerPattern], str]:
    """Both runs without what only one of them could show, and a note that says so ("" where nothing is left out).

    If one run was recorded with Python stacks and the other without, the same code has other names in each.
    """
    shown = _has_stacks(before), _has_stacks(after)
    if shown[0] == shown[1]:
        return before, after, ""
    which = "first" if shown[0] else "second"
    note = f"only the {which} run has Python stacks: Python and the host's own time are not compared"
    return _without_host(before), _without_host(after), note


def _has_stacks(patterns: Sequence[WorkerPattern]) -> bool:
    every = (RowTable.of(pattern.functions).keys for pattern in patterns)
    return any(key.kind == "python" and key.stack for keys in every for key in keys)


def unseen_device(before: Sequence[WorkerPattern], after: Sequence[WorkerPattern]) -> str:
    """Why functions cannot be compared where only one run shows what devices did, though both used them; else ""."""
    lacks = [all(NO_KERNELS in pattern.notes for pattern in patterns) for patterns in (before, after)]
    if lacks[0] == lacks[1]:
        return ""
    which = "first" if lacks[0] else "second"
    return (
        f"the {which} run used an accelerator and its recording holds no kernels of it; record it with the device's "
        "activities"
    )


def _without_host(patterns: Sequence[WorkerPattern]) -> list[WorkerPattern]:
    return [
        msgspec.structs.replace(
            pattern, functions=tuple(row for row in pattern.functions if row.key.kind not in _HOST_KINDS)
        )
        for pattern in patterns
    ]
