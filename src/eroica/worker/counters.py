"""Read torch's counters of collectives, only while nobody changes the tables that they stand in.

torch walks two tables without the lock under which it extends them (`FlightRecorder::dump_json`, torch 2.10 to 2.13).
One grows while a process group is made, the other when a group is used for the first time. Both can be seen coming.

- A thread that makes a group stands in torch's Python functions for that until the group is made.
- A group that is used counts its collective first, then takes the interpreter lock to note its Python stack, and only
  then extends the table. So a count that was 0 at the reading before is a table that may be growing.

Then nothing is read, and the next question comes 0.3 s later. Asking a group for its count lets go of the interpreter
lock, so a group may come into use right after it was asked. But the look at all stacks takes longer than the table does
to grow. Not seen are the first message of a group of NCCL, and the first use of a group's second backend.
"""

from __future__ import annotations

import json
import sys
from types import FrameType
from typing import Any

from eroica.worker.surroundings import counts_of, torch_distributed

_MOST_GROUPS = 128
_MAKERS = ("_new_process_group_helper", "split_group", "shrink_group")
#: Frames between the call of a maker and the topmost one: none for torch's own backends, a few for one in Python.
_MOST_FRAMES = 8
_DUMPS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")


class Counters:
    """Reads how far the collectives of this process are; remembers which groups have been used."""

    def __init__(self) -> None:
        self._used: set[tuple[int, str]] = set()

    def read(self) -> dict[str, tuple[int, int]] | None:
        """Return the numbers of the last collective entered and completed, by torch's number of the group.

        Returns:
            Empty where torch has no such counters; None while a group is made or first used. No entries are read.
        """
        if torch_distributed() is None or not getattr(sys, "_is_gil_enabled", lambda: True)():
            return {}
        if self._is_growing():
            return None
        module = sys.modules.get("torch._C._distributed_c10d")
        record: dict[str, Any] = {}
        for name in _DUMPS:
            dump = getattr(module, name, None)
            if dump is not None and not record.get("pg_status"):
                record = json.loads(dump(includeCollectives=False, onlyActive=True) or b"{}")
        entered = counts_of(record, "last_enqueued_collective")
        completed = counts_of(record, "last_completed_collective")
        return {group: (entered[group], completed[group]) for group in list(entered)[:_MOST_GROUPS]}

    def _is_growing(self) -> bool:
        """Return whether a group is used for the first time, or is being made; the threads are looked at last."""
        module = sys.modules["torch.distributed.distributed_c10d"]
        groups = {(id(group), str(name)): group for group, name in list(module._world.pg_names.items())}
        used = {one for one, group in groups.items() if one in self._used or _entered(group) > 0}
        is_first = not used <= self._used
        self._used = used
        return is_first or _is_making(module)


def _entered(group: Any) -> int:
    try:
        return int(group._get_sequence_number_for_group())
    except (AttributeError, RuntimeError, ValueError):  # a backend that counts nothing, or is not set up yet
        return 0


def _is_making(module: Any) -> bool:
    makers = {getattr(getattr(module, name, None), "__code__", None) for name in _MAKERS}
    for topmost in sys._current_frames().values():
        frame: FrameType | None = topmost
        for _ in range(_MOST_FRAMES):
            if frame is None:
                break
            if frame.f_code in makers:
                return True
            frame = frame.f_back
    return False
