"""One worker's traced events as NumPy columns with a string table. E events; times are wall clock, int64 ns."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from eroica.model.worker import ProcessGroup
from eroica.trace.schema import is_collective_kernel


@dataclass(frozen=True)
class CollectiveArguments:
    """What a collective kernel says about itself, or the call of a send or receive.

    Attributes:
        name: As the library calls it: "allreduce", "_allgather_base", ...
        group: Name of the process group.
        sequence: Sequence number in the group, -1 where the trace has none.
        elements: Elements of the first input, 0 if unknown.
        group_size: Members of the group, 0 if unknown.
        ranks: Global ranks of the members, empty if unknown or abbreviated.
        peer: Global rank of the other side of a send or receive, -1 if unknown.
        peer_in_group: The same as a rank of the group, which is all that calls say; -1 if unknown.
    """

    name: str
    group: str = ""
    sequence: int = -1
    elements: int = 0
    group_size: int = 0
    ranks: tuple[int, ...] = ()
    peer: int = -1
    peer_in_group: int = -1


@dataclass(frozen=True)
class TraceHeader:
    """What a trace says about its worker and itself; each may be missing.

    Attributes:
        rank: Global rank, -1 if the trace does not say.
        world_size: Workers of the job, 0 if unknown.
        backend: "nccl", "gloo", ...
        host: Host name.
        process_id: Process whose operators these are, -1 if unknown.
        groups: Process groups as "pg_config" lists them; those of the worker and, in some versions, of others too.
        job: Name or id of the job, as far as some launcher wrote one into the trace.
        device: Name of the accelerator.
        versions: What the trace says about software beside it: "torch", "cuda driver", ... -> version.
        writer: Tool that wrote the file, where that is not PyTorch's profiler.
        has_wall_clock: Times are times of day; a file that is cut short may have lost what its times count from.
    """

    rank: int = -1
    world_size: int = 0
    backend: str = ""
    host: str = ""
    process_id: int = -1
    groups: tuple[ProcessGroup, ...] = ()
    job: str = ""
    device: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    writer: str = ""
    has_wall_clock: bool = True


@dataclass(frozen=True, eq=False)
class EventTable:
    """Complete events of one worker in order of start, the longer first where starts are equal.

    Attributes:
        strings: Names; `name` indexes them.
        name: int32 [E].
        category: `Category` of each event. int8 [E].
        thread: Kernel thread id of host events, stream of device events, -1 where it is no number; streams of a second
            device in one trace are counted from 2**40 on, of a third from 2 * 2**40. int64 [E].
        start_ns: int64 [E].
        end_ns: Never before `start_ns`; an event still open at the stop ends with the trace. int64 [E].
        link: The number that work of a device shares with the call of its driver that launched it, -1 for what has
            none. int64 [E], or empty where that was not read.
        collectives: Row number -> arguments, for collective kernels that carry any, and for calls of send and receive
            whose inputs were recorded.
        unknown: A sentence about device events of an unknown kind, "" if there are none.
        open_events: Events that had no end of their own.
        header: What the trace says about itself.
        losses: One sentence each about what could not be read and was left out.
        damage: Those of them after which nobody knows what the file held: it is cut, or much of it is left out.
    """

    strings: tuple[str, ...]
    name: NDArray[np.int32]
    category: NDArray[np.int8]
    thread: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    link: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    collectives: dict[int, CollectiveArguments] = field(default_factory=dict)
    unknown: str = ""
    open_events: int = 0
    header: TraceHeader = TraceHeader()
    losses: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.name)

    def names_where(self, wanted: list[bool]) -> NDArray[np.bool_]:
        """Which events have a name chosen by `wanted`, one flag a string of the table. bool [E]."""
        return np.array(wanted, dtype=np.bool_)[self.name] if wanted else np.zeros(len(self), dtype=np.bool_)

    def communication(self) -> NDArray[np.bool_]:
        """Which names are those of kernels that are communication, one flag a string of the table. bool [S]."""
        return np.array([is_collective_kernel(name) for name in self.strings], dtype=np.bool_)

    def name_of(self, row: int) -> str:
        """Name of one event."""
        return self.strings[int(self.name[row])]


NO_EVENTS = EventTable(
    strings=(),
    name=np.empty(0, dtype=np.int32),
    category=np.empty(0, dtype=np.int8),
    thread=np.empty(0, dtype=np.int64),
    start_ns=np.empty(0, dtype=np.int64),
    end_ns=np.empty(0, dtype=np.int64),
)
