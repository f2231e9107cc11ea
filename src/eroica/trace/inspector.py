"""Records of NCCL's Inspector, a profiler plugin that comes with NCCL: one JSON object for each collective.

The fields are those of `ext-profiler/inspector/README.md` in NVIDIA/nccl (output formats v4.x). Durations are those of
the kernel, so a member that comes last has the shortest one: the others' contain their waiting for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import median

import msgspec

from eroica.errors import InputError
from eroica.model.communication import KernelTime

_MOST_RECORDS = 1_000_000
_MOST_TEXT = 200
#: Shortest executions are told from the others' by so much of the median, and so often.
_SHORTER, _MOSTLY = 0.8, 0.7


class Operation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One collective on one rank.

    Attributes:
        communicator: NCCL's hash of it.
        pid: Process.
        name: "AllReduce", ...
        sequence: Number inside communicator and kind.
        exec_s: How long it took on this rank.
    """

    communicator: str
    pid: int
    name: str
    sequence: int
    exec_s: float


class _Header(msgspec.Struct):
    id: str


class _Metadata(msgspec.Struct):
    pid: int = 0


class _Performance(msgspec.Struct):
    coll: str
    coll_sn: int
    coll_exec_time_us: float


class _Record(msgspec.Struct):
    header: _Header
    coll_perf: _Performance
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


_RECORD = msgspec.json.Decoder(_Record)


def read_inspector(text: str) -> tuple[list[Operation], int]:
    """Read what one process wrote.

    Args:
        text: Objects one after the other, on lines of their own or not; the last one may be cut short.

    Returns:
        Its collectives, and how many objects make no sense.

    Raises:
        InputError: There is text, and no collective in it.
    """
    found: list[Operation] = []
    unread = 0
    for piece in _objects(text):
        try:
            found.append(_operation(_RECORD.decode(piece)))
        except (msgspec.DecodeError, msgspec.ValidationError, RecursionError):
            unread += 1
        if len(found) >= _MOST_RECORDS:
            break
    if text.strip() and not found:
        raise InputError("no collective of NCCL's Inspector is in it: it wants NCCL_INSPECTOR_PROM_DUMP=0")
    return found, unread


def _objects(text: str) -> Iterator[str]:
    """Top-level objects: braces are counted outside of strings."""
    depth = start = 0
    quoted = escaped = False
    for at, letter in enumerate(text):
        if quoted:
            quoted, escaped = escaped or letter != '"', letter == "\\" and not escaped
        elif letter == '"':
            quoted = True
        elif letter == "{":
            start = at if depth == 0 else start
            depth += 1
        elif letter == "}" and depth:
            depth -= 1
            if depth == 0:
                yield text[start : at + 1]


def _operation(record: _Record) -> Operation:
    return Operation(
        communicator=record.header.id[:_MOST_TEXT],
        pid=record.metadata.pid,
        name=record.coll_perf.coll[:_MOST_TEXT],
        sequence=record.coll_perf.coll_sn,
        exec_s=record.coll_perf.coll_exec_time_us * 1e-6,
    )


def last_to_arrive(kernels: Iterable[KernelTime]) -> Mapping[str, tuple[int, float]]:
    """Of each communicator the worker that mostly comes last, and for how long the others wait for it.

    Args:
        kernels: Of all workers.

    Returns:
        Communicator -> (global rank, median of how much longer the others' executions take, seconds); only where one
        worker's is clearly shorter than the median in most of them. No clocks are compared.
    """
    together: dict[tuple[str, str, int], dict[int, float]] = {}
    for one in kernels:
        together.setdefault((one.communicator, one.name, one.sequence), {})[one.worker] = one.exec_s
    shortest: dict[str, list[tuple[int, float]]] = {}
    for (communicator, _, _), times in together.items():
        if len(times) >= 3:
            rank = min(times, key=lambda each: times[each])
            usual = median(times.values())
            shorter = times[rank] < _SHORTER * usual
            shortest.setdefault(communicator, []).append((rank if shorter else -1, usual - times[rank]))
    found = {}
    for communicator, ranks in shortest.items():
        names = [rank for rank, _ in ranks]
        most = max(set(names), key=names.count)
        if most >= 0 and names.count(most) >= _MOSTLY * len(names):
            found[communicator] = most, median(more for rank, more in ranks if rank == most)
    return found
