"""Matched executions with their places in time, as the event graph and the passing on of blame want them.

Array suffixes: G groups of M members, K matched executions. All times are microseconds.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.intp]
Flags = NDArray[np.bool_]


class MeetingBlock(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Matched executions of one kind, equally many in each of some groups, with their places in time.

    Attributes:
        members: Indices of the workers. intp [G, M].
        group: Number of the process group: executions of one worker in one group queue behind each other. intp [G].
        team: Number of the set of workers that is in step after each of these executions. intp [G].
        duration_us: float64 [G, M, K].
        critical_us: Critical part of each. float64 [G, M, K].
        end_us: Ends on each member's own clock, from the start of its window. float64 [G, M, K].
        waits: Whether a member waits for the others; else it leaves once it is done itself. bool [G, M, K].
        is_one_way: Whether the first member alone is known to wait, for the second one.
        transfer_us: What the execution takes once all have come. float64 [G, K].
        wait_us: Critical waiting as it is judged. float64 [G, M, K].
        share: Each member's share of the blame. float64 [G, M, K].
        columns: Iteration that each member counts an execution in, -1 = none. intp [G, M, K].
    """

    members: Places
    group: Places
    team: Places
    duration_us: Floats
    critical_us: Floats
    end_us: Floats
    waits: Flags
    transfer_us: Floats
    is_one_way: bool = False
    wait_us: Floats = msgspec.field(default_factory=lambda: np.zeros((0, 0, 0)))
    share: Floats = msgspec.field(default_factory=lambda: np.zeros((0, 0, 0)))
    columns: Places = msgspec.field(default_factory=lambda: np.zeros((0, 0, 0), dtype=np.intp))

    @property
    def holds_leaders(self) -> bool:
        """True if a sender was seen to stand still, too."""
        return self.is_one_way and bool(self.waits[:, 1].any())

    def without_held_leaders(self) -> MeetingBlock:
        """Return the block with senders that wait for no receiver."""
        if not self.holds_leaders:
            return self
        waits_GMK = self.waits.copy()
        waits_GMK[:, 1] = False
        return msgspec.structs.replace(self, waits=waits_GMK)

    @property
    def meetings(self) -> Places:
        """Numbers of the executions, group by group. intp [G, 1, K]."""
        groups, _, count = self.end_us.shape
        return np.arange(groups * count).reshape(groups, 1, count)
