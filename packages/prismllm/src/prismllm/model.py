"""Records of a capture: what a rank did, call by call.

A rank's life is a row of *events*: it launches a communication call, or it waits for one that it has launched. Before
each event lies a *segment* of its own work. An iteration ends with the optimizer's step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from prismllm.errors import InputError

FORMAT = 1
PAIRWISE = ("send", "recv")
#: Begins the signature of an all-to-all with split sizes.
UNEVEN = "uneven "


class Call(msgspec.Struct, frozen=True):
    """One communication call, as one rank made it.

    Attributes:
        op: "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "barrier", "send", "recv", …
        group: Number of the group in order of creation; 0 holds all ranks.
        number: How many calls this rank had made before in this iteration on this group; of sends and receives, before
            with this peer and tag.
        signature: What must be the same on all members ("sum float32 [1024]").
        nbytes: Payload: all of it for `all_gather` and `reduce_scatter`, one rank's tensor for the others; of an uneven
            all-to-all the larger of what the rank sends and receives.
        peer: Global rank of the other side, or of the root; -1 if there is none.
        tag: Of sends and receives.
        site: Where the script made it, "train.py:31".
        source: Where this rank's result came from: "real" (carried out in the slice), "rule" (as if all ranks were
            like this rank), "recorded" (from another slice), "zeros", or "none" (nothing was to be received).
    """

    op: str
    group: int
    number: int
    signature: str
    nbytes: int
    peer: int
    tag: int
    site: str
    source: str

    @property
    def is_pairwise(self) -> bool:
        """A send or a receive."""
        return self.op in PAIRWISE

    def __str__(self) -> str:
        to = f" {'to' if self.op == 'send' else 'from'} rank {self.peer}" if self.is_pairwise else ""
        return f"{self.op}{to} of {self.signature or 'nothing'} ({self.nbytes:,} bytes) at {self.site}"

    @property
    def is_uneven(self) -> bool:
        """An all-to-all whose sizes may differ between ranks and iterations, as those of a mixture of experts."""
        return self.signature.startswith(UNEVEN)


class Step(msgspec.Struct, frozen=True):
    """One iteration of one rank, in order.

    Attributes:
        calls: Communication calls.
        events: i >= 0: call i is launched; -1 - i: call i is waited for.
        segments_ns: Own work before each event, and after the last one; nanoseconds, one more than `events`.
        work: Digest of the operators (name and shapes) in each segment; empty where they were not recorded.
        grown_bytes: Memory allocated less memory freed in each segment; empty where not recorded.
        peak_bytes: Most memory in use since the start of the process, at any time in each segment; likewise.
        busy_ns: Nanoseconds of each segment in which the rank used a core; the rest is sleep. Empty where not recorded.
    """

    calls: list[Call]
    events: list[int]
    segments_ns: list[int]
    work: list[str] = []
    grown_bytes: list[int] = []
    peak_bytes: list[int] = []
    busy_ns: list[int] = []

    def call_at(self, at: int) -> Call:
        """Return the call of an event, launched or waited for."""
        event = self.events[at]
        return self.calls[event if event >= 0 else -1 - event]


class Group(msgspec.Struct, frozen=True):
    """A process group.

    Attributes:
        ranks: Global ranks of its members, in order.
        description: Name that its maker gave ("mesh_dp").
        site: Where the script made it.
    """

    ranks: list[int]
    description: str
    site: str


class RankRecord(msgspec.Struct, frozen=True):
    """The calls, times and memory of one rank.

    Attributes:
        groups: All groups that it heard of, in order of creation.
        setup: What came before the iterations that repeat.
        step: The iteration that repeats, with digests and memory.
        samples_ns: Segments of further iterations, each a list like `Step.segments_ns`.
        peak_bytes: Most memory in use at any time up to the end of `step`; the real one of this rank in this world.
        grouped_ns: When the last group was made; monotonic clock of this machine.
        stepped_ns: When each iteration ended, those of `setup` included; likewise.
        sizes: Bytes of the uneven calls of each iteration in `samples_ns`, in order; int [samples, uneven calls].
    """

    rank: int
    world: int
    groups: list[Group]
    setup: list[Step]
    step: Step
    samples_ns: list[list[int]]
    peak_bytes: int
    grouped_ns: int = 0
    stepped_ns: list[int] = []
    sizes: list[list[int]] = []
    format: int = FORMAT


class RankTask(msgspec.Struct, frozen=True):
    """The task of one process.

    Attributes:
        members: Ranks that run at the same time.
        local_world: Ranks of a host, for LOCAL_RANK.
        out: Directory of the capture.
        warmup: Iterations before those that repeat.
        timed: Iterations of which segments are timed, without profiler.
        is_profiled: Operators and memory are recorded in the first iteration that repeats.
        meeting: File where the members of the slice meet.
        timeout_s: Seconds that the rank may take.
        assistant: Connection to the assistant, for an emulation.
        is_strict: In an emulation, control flow that reads an unsent value is an error.
    """

    rank: int
    world: int
    members: list[int]
    local_world: int
    script: list[str]
    out: Path
    warmup: int
    timed: int
    is_profiled: bool
    meeting: Path
    name: str
    timeout_s: float
    assistant: Any = None
    is_strict: bool = False

    @property
    def log(self) -> Path:
        """The file of what the script prints."""
        return self.out / "logs" / f"{self.name}.log"


Record = TypeVar("Record")


def write_record(path: Path, record: Any) -> None:
    """Write a record as JSON; the file appears whole or not at all."""
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(record))
    part.replace(path)


def read_record(path: Path, kind: type[Record]) -> Record:
    """Read a record from its file.

    Raises:
        InputError: The file is missing, damaged, or of another format.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise InputError(f"there is no {path}; make a capture first: prismllm capture --out {path.parent} …") from None
    except (msgspec.DecodeError, OSError) as error:
        raise InputError(f"{path} is no {kind.__name__} of this version ({error}); capture again") from None


def digest(parts: Sequence[object]) -> str:
    """Return a short fingerprint of values whose repr is the same if they are."""
    return hashlib.blake2b(repr(list(parts)).encode(), digest_size=8).hexdigest()
