"""A stretch of a job's communication: own work of each worker, and what each host sends to each, added up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from eroica.communication.ledger import Cell, CellSum, Second
from eroica.model.communication import KernelTime
from eroica.trace.inspector import last_to_arrive

_LEAST_BYTES_PER_S = 20_000.0


@dataclass(frozen=True)
class CellReading:
    """One host to another.

    Attributes:
        delay_s: Mean time that a byte waits.
        bytes_per_s: Sent.
        busy: Share of time with data under way on the busiest connection, what the receiver held back left out.
        held: Share of time in which the receiver held it back.
        arriving: Share of time in which data was just arriving, as the receiver sees it.
        unsent: Share of the waiting bytes that the sender has not sent yet.
    """

    delay_s: float
    bytes_per_s: float
    busy: float
    held: float
    arriving: float = 0.0
    unsent: float = 0.0


@dataclass(frozen=True)
class Stretch:
    """What some seconds say.

    Attributes:
        seconds: How long it is, of the host that told least.
        iteration_s: Mean iteration, None where none ended.
        outside: Global rank -> share of moments in no collective.
        moments: Global rank -> moments.
        cells: (sender, receiver) -> reading; only cells with traffic that counts.
        operations_per_s: Collectives of the busiest worker.
        last: NCCL's communicator -> who mostly comes last in it, and for how long the others wait, seconds.
        trouble: (host, RDMA port) -> counter -> by how much it grew; only ports with trouble.
    """

    seconds: float
    iteration_s: float | None
    outside: Mapping[int, float]
    moments: Mapping[int, int]
    cells: Mapping[Cell, CellReading] = field(default_factory=dict)
    operations_per_s: float = 0.0
    trouble: Mapping[tuple[str, str], Mapping[str, int]] = field(default_factory=dict)
    last: Mapping[str, tuple[int, float]] = field(default_factory=dict)

    def work_s(self, worker: int) -> float | None:
        """Own work of a worker in each iteration; None where that is not known."""
        share = self.outside.get(worker)
        return None if share is None or self.iteration_s is None else share * self.iteration_s


def stretch_of(seconds: Iterable[Second]) -> Stretch:
    """Add records up.

    Args:
        seconds: Of one stretch, in the order in which they came.
    """
    answered: dict[int, int] = {}
    inside: dict[int, int] = {}
    counted: dict[int, list[tuple[float, int]]] = {}
    iterations: dict[int, list[tuple[float, int]]] = {}
    cells: dict[Cell, CellSum] = {}
    lengths: dict[str, float] = {}
    trouble: dict[tuple[str, str], Counter[str]] = {}
    kernels: list[KernelTime] = []
    for second in seconds:
        lengths[second.host] = lengths.get(second.host, 0.0) + second.interval_s
        for one in second.operations:
            answered[one.worker] = answered.get(one.worker, 0) + one.answered
            inside[one.worker] = inside.get(one.worker, 0) + one.inside
            if one.answered:
                entered = sum(max(count.entered, 0) for count in one.counts)
                counted.setdefault(one.worker, []).append((second.at, entered))
        for worker, iteration in second.iterations.items():
            iterations.setdefault(worker, []).append((second.at, iteration))
        kernels += second.kernels
        for port in second.ports:
            if port.trouble:
                trouble.setdefault((second.host, port.device), Counter()).update(port.trouble)
        for cell, moved in second.cells.items():
            cells.setdefault(cell, CellSum()).add(moved)
    return Stretch(
        seconds=min(lengths.values(), default=0.0),
        iteration_s=_iteration_s(iterations),
        outside={worker: 1 - inside[worker] / count for worker, count in answered.items() if count},
        moments={worker: count for worker, count in answered.items() if count},
        cells={
            cell: _reading(moved, lengths[cell[0]]) for cell, moved in cells.items() if _counts(moved, lengths, cell)
        },
        operations_per_s=max((_rate(points) for points in counted.values()), default=0.0),
        trouble=trouble,
        last=last_to_arrive(kernels),
    )


def _counts(moved: CellSum, lengths: Mapping[str, float], cell: Cell) -> bool:
    return lengths.get(cell[0], 0.0) > 0 and moved.sent_bytes >= _LEAST_BYTES_PER_S * lengths[cell[0]]


def _reading(moved: CellSum, seconds: float) -> CellReading:
    return CellReading(
        delay_s=moved.waiting_byte_s / moved.sent_bytes,
        bytes_per_s=moved.sent_bytes / seconds,
        busy=min(1.0, max(0.0, moved.busy_s - moved.held_s) / seconds),
        held=min(1.0, moved.held_s / seconds),
        arriving=min(1.0, moved.arriving_s / seconds),
        unsent=min(1.0, moved.unsent_byte_s / moved.waiting_byte_s) if moved.waiting_byte_s > 0 else 0.0,
    )


def _rate(points: list[tuple[float, int]]) -> float:
    (first_at, first), (last_at, last) = points[0], points[-1]
    return max(0.0, (last - first) / (last_at - first_at)) if last_at > first_at else 0.0


def _iteration_s(iterations: Mapping[int, list[tuple[float, int]]]) -> float | None:
    """Of the middle worker: all of a job that keeps step take the same."""
    rates = [rate for points in iterations.values() if (rate := _rate(points)) > 0]
    return 1 / median(rates) if rates else None
