"""A stretch of a job's communication: own work of each worker, and what each host sends to each, added up.

Pauses between iterations (a checkpoint, an evaluation, a host that was suspended) are taken out first: one pause makes
no iteration slower, and who works in it works on something else.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median, median_low

from eroica.communication.ledger import Cell, CellSum, Second
from eroica.model.communication import KernelTime
from eroica.trace.inspector import last_to_arrive

_LEAST_BYTES_PER_S = 20_000.0
#: A pause is at least so many times as long as iterations usually are apart in the same stretch, and so long, seconds.
_PAUSE, _LEAST_PAUSE_S = 3.0, 1.5


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
        iteration_s: Mean iteration; None where none ended, or where those that did cannot tell a pause from long ones.
        iterations: How many ended; infinite where that is not known.
        busiest: Global rank -> name of the group in which it entered most collectives, of those that others are in.
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
    iterations: float = math.inf
    busiest: Mapping[int, str] = field(default_factory=dict)

    @property
    def least_iteration_s(self) -> float | None:
        """What an iteration takes at least, seconds: another one may have been as good as over. None as above."""
        if self.iteration_s is None or math.isinf(self.iterations):
            return self.iteration_s
        return self.iteration_s * self.iterations / (self.iterations + 1)

    def work_s(self, worker: int) -> float | None:
        """Own work of a worker in each iteration; None where that is not known."""
        share = self.outside.get(worker)
        return None if share is None or self.iteration_s is None else share * self.iteration_s


def stretch_of(seconds: Iterable[Second]) -> Stretch:
    """Add records up, pauses left out.

    Args:
        seconds: Of one stretch, in the order in which they came.
    """
    records = tuple(seconds)
    pauses = _Pauses(records)
    answered: dict[int, int] = {}
    inside: dict[int, int] = {}
    counted: dict[int, list[tuple[float, int]]] = {}
    iterations: dict[int, list[tuple[float, int]]] = {}
    groups: dict[int, dict[str, tuple[int, int]]] = {}
    cells: dict[Cell, CellSum] = {}
    lengths: dict[str, float] = {}
    trouble: dict[tuple[str, str], Counter[str]] = {}
    kernels: list[KernelTime] = []
    for second in records:
        at = pauses.without(second.at)
        for one in second.operations:
            if one.answered:
                entered = sum(max(count.entered, 0) for count in one.counts)
                counted.setdefault(one.worker, []).append((at, entered))
                known = groups.setdefault(one.worker, {})
                for count in one.counts:
                    known[count.group] = known.get(count.group, (count.entered, 0))[0], count.entered
        for worker, iteration in second.iterations.items():
            iterations.setdefault(worker, []).append((at, iteration))
        kernels += second.kernels
        for port in second.ports:
            if port.trouble:
                trouble.setdefault((second.host, port.device), Counter()).update(port.trouble)
        if pauses.cover(second):
            continue
        lengths[second.host] = lengths.get(second.host, 0.0) + second.interval_s
        for one in second.operations:
            answered[one.worker] = answered.get(one.worker, 0) + one.answered
            inside[one.worker] = inside.get(one.worker, 0) + one.inside
        for cell, moved in second.cells.items():
            cells.setdefault(cell, CellSum()).add(moved)
    return Stretch(
        seconds=min(lengths.values(), default=0.0),
        iteration_s=None if pauses.is_unsure else _iteration_s(iterations),
        iterations=median(points[-1][1] - points[0][1] for points in iterations.values()) if iterations else 0.0,
        outside={worker: 1 - inside[worker] / count for worker, count in answered.items() if count},
        moments={worker: count for worker, count in answered.items() if count},
        cells={
            cell: _reading(moved, lengths[cell[0]]) for cell, moved in cells.items() if _counts(moved, lengths, cell)
        },
        operations_per_s=max((_rate(points) for points in counted.values()), default=0.0),
        trouble=trouble,
        last=last_to_arrive(kernels),
        busiest=_busiest(groups),
    )


def _busiest(groups: Mapping[int, Mapping[str, tuple[int, int]]]) -> dict[int, str]:
    """Of each worker's groups, with the first and last number seen, that in which most happened; those alone left out.

    A group that its worker has not named yet ("#" and a number) is that worker's own.
    """
    members = Counter(name for known in groups.values() for name in known if not name.startswith("#"))
    found = {}
    for worker, known in groups.items():
        shared = {name: last - first for name, (first, last) in known.items() if members[name] > 1 and last > first}
        if shared:
            found[worker] = max(sorted(shared), key=lambda name: shared[name])
    return found


class _Pauses:
    """Stretches of time in which no iteration of the job ended for far longer than is usual among the same records.

    Args:
        records: In the order in which they came.

    Attributes:
        is_unsure: It may be pausing at the end, and too little came before to tell what is usual.
    """

    def __init__(self, records: Sequence[Second]) -> None:
        self.is_unsure = False
        self._spans: list[tuple[float, float]] = []
        self._cut: list[float] = []
        times, front = [records[0].at] if records else [], -1
        for second in records:
            newest = max(second.iterations.values(), default=-1)
            if newest > front >= 0:
                times.append(second.at)
            front = max(front, newest)
        gaps = [later - earlier for earlier, later in pairwise(times)]
        if len(gaps) < 2:
            since_s = records[-1].at - times[-1] if records else 0.0
            self.is_unsure = bool(gaps) and since_s > max(_PAUSE * gaps[0], _LEAST_PAUSE_S)
            return
        usual_s = median_low(gaps)
        ends = zip(times, [*times[1:], records[-1].at], strict=True)
        for earlier, later in ends:
            if later - earlier > max(_PAUSE * usual_s, _LEAST_PAUSE_S):
                self._spans.append((earlier, later))
                self._cut.append((self._cut[-1] if self._cut else 0.0) + later - earlier - usual_s)

    def cover(self, second: Second) -> bool:
        """Most of what a record tells of is a pause."""
        number = bisect_right(self._spans, (second.at, -math.inf)) - 1
        if number < 0:
            return False
        begin, end = self._spans[number]
        return min(second.at, end) - max(second.at - second.interval_s, begin) > second.interval_s / 2

    def without(self, at: float) -> float:
        """The time on a clock that stood still in pauses."""
        number = bisect_right(self._spans, (at, -math.inf)) - 1
        if number < 0:
            return at
        begin, end = self._spans[number]
        before = self._cut[number - 1] if number else 0.0
        return at - self._cut[number] if at >= end else min(at, begin) - before


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
