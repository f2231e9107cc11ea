"""Records of hosts, matched to each other, and their sums over a stretch of time."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median, median_low

from eroica_c4d.records import Flow, HostRecord

_MOST_ENDS = 500_000
#: Seconds of records that are kept.
KEPT_S = 64.0
Cell = tuple[str, str]
#: Cells with less traffic do not count.
_LEAST_BYTES_PER_S = 20_000.0
#: Least length of a pause, as a multiple of the usual gap between iterations, and in seconds.
_PAUSE, _LEAST_PAUSE_S = 3.0, 1.5


@dataclass
class CellSum:
    """What one host sent to another; times of the busiest connection. The receiver's agent saw `arriving_s`."""

    arriving_s: float = 0.0
    unsent_byte_s: float = 0.0
    sent_bytes: int = 0
    waiting_byte_s: float = 0.0
    busy_s: float = 0.0
    held_s: float = 0.0

    def add(self, other: CellSum) -> None:
        """Add another record of the same cell."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def beside(self, flow: Flow) -> None:
        """Add another connection of the same record."""
        self.sent_bytes += flow.sent_bytes
        self.waiting_byte_s += flow.waiting_byte_s
        self.unsent_byte_s += flow.unsent_byte_s
        if flow.busy_s > self.busy_s:
            self.busy_s, self.held_s = flow.busy_s, flow.held_s


@dataclass(frozen=True)
class Second:
    """One record of one host, with its connections matched.

    Attributes:
        at: Time of arrival, the collector's seconds.
        interval_s: Seconds that the record covers.
        cells: What the host sent to others.
        iterations: Global rank -> iterations completed.
    """

    at: float
    host: str
    interval_s: float
    cells: Mapping[Cell, CellSum]
    iterations: Mapping[int, int]


@dataclass
class Ledger:
    """All records of the last minute, and the last one of each host."""

    latest: dict[str, Second] = field(default_factory=dict)
    _seconds: deque[Second] = field(default_factory=deque)
    _ends: dict[str, str] = field(default_factory=dict)

    def take(self, now: float, host: str, record: HostRecord, iterations: Mapping[int, int]) -> Second:
        """Match and keep another record; flows of workers that are not this host's count for nothing.

        Args:
            now: Time of arrival, seconds.
            host: Who told it.
            record: What it told.
            iterations: Global rank -> iterations completed, of the host's workers.
        """
        flows = [flow for flow in record.flows if flow.worker in iterations]
        if len(self._ends) < _MOST_ENDS:
            self._ends.update({flow.local: host for flow in flows})
        second = Second(now, host, record.interval_s, self._cells(host, flows), dict(iterations))
        self._seconds.append(second)
        self.latest[host] = second
        while self._seconds and self._seconds[0].at < now - KEPT_S:
            self._seconds.popleft()
        return second

    def _cells(self, host: str, flows: Iterable[Flow]) -> dict[Cell, CellSum]:
        """Add up a host's connections with workers of other hosts."""
        cells: dict[Cell, CellSum] = {}
        for flow in flows:
            peer = self._ends.get(flow.remote, host)
            if peer != host:
                cells.setdefault((host, peer), CellSum()).beside(flow)
                back = cells.setdefault((peer, host), CellSum())
                back.arriving_s = max(back.arriving_s, flow.arriving_s)
        return cells

    def between(self, first: float, last: float) -> list[Second]:
        """Return the records that came after `first`, up to `last`."""
        return [second for second in self._seconds if first < second.at <= last]


# --- sums ---


@dataclass(frozen=True)
class CellReading:
    """Traffic from one host to another.

    Attributes:
        delay_s: Mean time that a byte waits.
        bytes_per_s: Bytes sent.
        busy: Share of time with data under way on the busiest connection, without `held`.
        held: Share of time in which the receiver's window held data back.
        arriving: Share of time in which data arrived at the receiver.
        unsent: Share of the waiting bytes that are not sent yet.
    """

    delay_s: float
    bytes_per_s: float
    busy: float
    held: float
    arriving: float = 0.0
    unsent: float = 0.0


@dataclass(frozen=True)
class Stretch:
    """Readings of some seconds.

    Attributes:
        seconds: Length without pauses, of the host with least records.
        iteration_s: Mean iteration; None if none ended, or if a pause cannot be told from long iterations.
        iterations: Iterations that ended; infinite if unknown.
        cells: (sender, receiver) -> reading, of cells with traffic that counts.
    """

    seconds: float
    iteration_s: float | None
    cells: Mapping[Cell, CellReading] = field(default_factory=dict)
    iterations: float = math.inf

    @property
    def least_iteration_s(self) -> float | None:
        """Least mean iteration, seconds, if another one was nearly over."""
        if self.iteration_s is None or math.isinf(self.iterations):
            return self.iteration_s
        return self.iteration_s * self.iterations / (self.iterations + 1)


def stretch_of(seconds: Iterable[Second]) -> Stretch:
    """Add up records in order of arrival, without pauses."""
    records = tuple(seconds)
    pauses = _Pauses(records)
    iterations: dict[int, list[tuple[float, int]]] = {}
    cells: dict[Cell, CellSum] = {}
    lengths: dict[str, float] = {}
    for second in records:
        at = pauses.without(second.at)
        for worker, iteration in second.iterations.items():
            iterations.setdefault(worker, []).append((at, iteration))
        if pauses.cover(second):
            continue
        lengths[second.host] = lengths.get(second.host, 0.0) + second.interval_s
        for cell, moved in second.cells.items():
            cells.setdefault(cell, CellSum()).add(moved)
    return Stretch(
        seconds=min(lengths.values(), default=0.0),
        iteration_s=None if pauses.is_unsure else _iteration_s(iterations),
        iterations=median(points[-1][1] - points[0][1] for points in iterations.values()) if iterations else 0.0,
        cells={
            cell: _reading(moved, lengths[cell[0]]) for cell, moved in cells.items() if _counts(moved, lengths, cell)
        },
    )


class _Pauses:
    """Spans in which no iteration ended for far longer than usual (a checkpoint, an evaluation, a suspended host).

    `is_unsure`: the job may be pausing at the end, and too few iterations ended before to tell.
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
        """Return whether most of a record lies in a pause."""
        number = bisect_right(self._spans, (second.at, -math.inf)) - 1
        if number < 0:
            return False
        begin, end = self._spans[number]
        return min(second.at, end) - max(second.at - second.interval_s, begin) > second.interval_s / 2

    def without(self, at: float) -> float:
        """Return the time on a clock that stands still in pauses."""
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
    """Return the mean iteration of the median worker."""
    rates = [rate for points in iterations.values() if (rate := _rate(points)) > 0]
    return 1 / median(rates) if rates else None
