"""Records of hosts, matched to workers, their sums over a stretch of time, and the matrix of delays between hosts.

A slow connection is a hot cell of the matrix, slow sending a hot row, slow receiving a hot column. A row of one cell
cannot be told from a connection; the place says so. Acknowledgements share the way of data in the other direction, so a
slow direction also warms the host's other direction; the hotter one is named.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median, median_low

import numpy as np
from numpy.typing import NDArray

from eroica.model.communication import (
    DelayMatrix,
    Flow,
    HostCommunication,
    Place,
    WorkerOperations,
)
from eroica.model.worker import ProcessGroup

_MOST_ENDS = 500_000
_MOST_GROUPS = 4096
#: Seconds of records that are kept.
KEPT_S = 64.0
Cell = tuple[str, str]
_LEAST_BYTES_PER_S = 20_000.0
#: Least length of a pause, as a multiple of the usual gap between iterations, and in seconds.
_PAUSE, _LEAST_PAUSE_S = 3.0, 1.5
#: Hosts of a matrix; of larger jobs those with the hottest cells.
_MOST_HOSTS = 64
#: A row or column is hot if each cell has this part of the hottest cell's excess, in seconds or as a factor: on one
#: slow way large messages wait longer than small ones, by one factor.
_AS_HOT, _BY_ONE_FACTOR = 0.1, 0.5
#: A direction is named alone if the host's other direction has at most this part of its excess.
_OTHER_DIRECTION = 0.6


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
class Matched:
    """A connection between two workers."""

    flow: Flow
    host: str
    peer_host: str
    peer: int


@dataclass(frozen=True)
class Second:
    """One record of one host, with its connections matched.

    Attributes:
        at: Time of arrival, the collector's seconds.
        interval_s: Seconds that the record covers.
        operations: Collectives of each worker.
        cells: What the host sent to others.
        matched: Connections between workers, also inside the host.
        iterations: Global rank -> iterations completed.
        elsewhere: Global rank -> bytes exchanged with others than workers.
    """

    at: float
    host: str
    interval_s: float
    operations: tuple[WorkerOperations, ...]
    cells: Mapping[Cell, CellSum]
    matched: tuple[Matched, ...]
    iterations: Mapping[int, int]
    elsewhere: Mapping[int, int] = field(default_factory=dict)


@dataclass
class Ledger:
    """All records of the last minute: communicators by name, host of each worker, last record of each host."""

    groups: dict[str, ProcessGroup] = field(default_factory=dict)
    hosts: dict[int, str] = field(default_factory=dict)
    latest: dict[str, Second] = field(default_factory=dict)
    _seconds: deque[Second] = field(default_factory=deque)
    _ends: dict[str, tuple[str, int]] = field(default_factory=dict)

    def take(self, now: float, host: str, record: HostCommunication, iterations: Mapping[int, int]) -> Second:
        """Match and keep another record."""
        for group in record.groups:
            if len(self.groups) < _MOST_GROUPS or group.name in self.groups:
                self._add_group(group)
        for one in record.workers:
            self.hosts[one.worker] = host
        if len(self._ends) < _MOST_ENDS:
            self._ends.update({flow.local: (host, flow.worker) for flow in record.flows})
        matched = tuple(self._matched(host, record.flows))
        cells = cells_of(matched)
        second = Second(
            now, host, record.interval_s, record.workers, cells, matched, dict(iterations),
            self._elsewhere(record.flows),
        )  # fmt: skip
        self._seconds.append(second)
        self.latest[host] = second
        while self._seconds and self._seconds[0].at < now - KEPT_S:
            self._seconds.popleft()
        return second

    def _add_group(self, group: ProcessGroup) -> None:
        """Keep the largest group of a name: subgroups may carry one name on different workers."""
        known = self.groups.get(group.name)
        if known is None or len(group.ranks) > len(known.ranks) or set(group.ranks) == set(known.ranks):
            self.groups[group.name] = group

    def _elsewhere(self, flows: Iterable[Flow]) -> dict[int, int]:
        found: dict[int, int] = {}
        for flow in flows:
            if flow.remote not in self._ends:
                found[flow.worker] = found.get(flow.worker, 0) + flow.sent_bytes + flow.received_bytes
        return found

    def _matched(self, host: str, flows: Iterable[Flow]) -> Iterator[Matched]:
        for flow in flows:
            peer = self._ends.get(flow.remote)
            if peer is not None and peer[1] != flow.worker:
                yield Matched(flow, host, peer[0], peer[1])

    def between(self, first: float, last: float) -> list[Second]:
        """Return the records that came after `first`, up to `last`."""
        return [second for second in self._seconds if first < second.at <= last]


def cells_of(matched: Iterable[Matched]) -> dict[Cell, CellSum]:
    """Add up a host's connections with other hosts."""
    cells: dict[Cell, CellSum] = {}
    for one in matched:
        if one.host != one.peer_host:
            cells.setdefault((one.host, one.peer_host), CellSum()).beside(one.flow)
            back = cells.setdefault((one.peer_host, one.host), CellSum())
            back.arriving_s = max(back.arriving_s, one.flow.arriving_s)
    return cells


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
        busiest: Global rank -> group in which it entered most collectives, of those shared with others.
        outside: Global rank -> share of moments in no collective.
        moments: Global rank -> number of moments.
        cells: (sender, receiver) -> reading, of cells with traffic that counts.
        operations_per_s: Collectives of the busiest worker.
    """

    seconds: float
    iteration_s: float | None
    outside: Mapping[int, float]
    moments: Mapping[int, int]
    cells: Mapping[Cell, CellReading] = field(default_factory=dict)
    operations_per_s: float = 0.0
    iterations: float = math.inf
    busiest: Mapping[int, str] = field(default_factory=dict)

    @property
    def least_iteration_s(self) -> float | None:
        """Least mean iteration, seconds, if another one was nearly over."""
        if self.iteration_s is None or math.isinf(self.iterations):
            return self.iteration_s
        return self.iteration_s * self.iterations / (self.iterations + 1)

    def work_s(self, worker: int) -> float | None:
        """Return a worker's own work in each iteration; None if unknown."""
        share = self.outside.get(worker)
        return None if share is None or self.iteration_s is None else share * self.iteration_s


def stretch_of(seconds: Iterable[Second]) -> Stretch:
    """Add up records in order of arrival, without pauses."""
    records = tuple(seconds)
    pauses = _Pauses(records)
    answered: dict[int, int] = {}
    inside: dict[int, int] = {}
    counted: dict[int, list[tuple[float, int]]] = {}
    iterations: dict[int, list[tuple[float, int]]] = {}
    groups: dict[int, dict[str, tuple[int, int]]] = {}
    cells: dict[Cell, CellSum] = {}
    lengths: dict[str, float] = {}
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
        busiest=_busiest(groups),
    )


def _busiest(groups: Mapping[int, Mapping[str, tuple[int, int]]]) -> dict[int, str]:
    """Return the shared group in which each worker entered most collectives.

    A group without a name yet ("#" and a number) is its worker's own.
    """
    members = Counter(name for known in groups.values() for name in known if not name.startswith("#"))
    found = {}
    for worker, known in groups.items():
        shared = {name: last - first for name, (first, last) in known.items() if members[name] > 1 and last > first}
        if shared:
            found[worker] = max(sorted(shared), key=lambda name: shared[name])
    return found


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


# --- the matrix ---


def build_matrix(now: Stretch, usual: Mapping[Cell, CellReading]) -> DelayMatrix | None:
    """Return the matrix of a stretch beside the usual delays; None if no two hosts talk."""
    if not now.cells:
        return None
    hosts = sorted({host for cell in (*now.cells, *usual) for host in cell})
    if len(hosts) > _MOST_HOSTS:
        heat = {
            host: max((one.delay_s for cell, one in now.cells.items() if host in cell), default=0) for host in hosts
        }
        hosts = sorted(sorted(hosts, key=lambda host: -heat[host])[:_MOST_HOSTS])

    def rows(of: Mapping[Cell, CellReading], name: str, empty: float | None) -> tuple[tuple[float | None, ...], ...]:
        return tuple(tuple(getattr(of[i, j], name) if (i, j) in of else empty for j in hosts) for i in hosts)

    return DelayMatrix(
        hosts=tuple(hosts),
        delay_s=rows(now.cells, "delay_s", None),
        bytes_per_s=rows(now.cells, "bytes_per_s", 0.0),  # type: ignore[arg-type]
        busy=rows(now.cells, "busy", 0.0),  # type: ignore[arg-type]
        held=rows(now.cells, "held", 0.0),  # type: ignore[arg-type]
        usual_s=rows(usual, "delay_s", None) if usual else (),
        arriving=rows(now.cells, "arriving", 0.0),  # type: ignore[arg-type]
        unsent=rows(now.cells, "unsent", 0.0),  # type: ignore[arg-type]
    )


def read_places(
    excess: Mapping[Cell, float],
    used: frozenset[Cell],
    prompt: frozenset[Cell] = frozenset(),
    factors: Mapping[Cell, float] | None = None,
) -> tuple[Place, ...]:
    """Return the places of excess delay, the hottest first.

    Args:
        excess: Hot cells -> excess above 0, in any unit.
        used: All cells with traffic.
        prompt: Cells whose sender sends all its data at once: if all of a host's cells do, its sending is not slow.
        factors: Hot cells -> delay as a multiple of the usual one.
    """
    hosts = sorted({host for cell in used for host in cell})
    number = {host: at for at, host in enumerate(hosts)}
    left = np.zeros((len(hosts), len(hosts)))
    there = np.zeros_like(left, dtype=bool)
    lingers = np.zeros_like(left, dtype=bool)
    times = np.zeros_like(left)
    for i, j in used:
        there[number[i], number[j]] = True
        lingers[number[i], number[j]] = (i, j) not in prompt
    for (i, j), hot in excess.items():
        left[number[i], number[j]] = hot
        times[number[i], number[j]] = (factors or {}).get((i, j), 0.0)
    places: list[Place] = []
    while left.max(initial=0.0) > 0 and len(places) < len(hosts):
        places.append(_hottest((left, times), there, lingers, hosts))
    return tuple(places)


def _hottest(
    heat: tuple[NDArray[np.float64], NDArray[np.float64]],
    there: NDArray[np.bool_],
    lingers: NDArray[np.bool_],
    hosts: list[str],
) -> Place:
    """Return the place of the hottest cell, and remove what it explains from the first of `heat`."""
    left, times = heat
    i, j = map(int, np.unravel_index(int(left.argmax()), left.shape))
    hottest = left[i, j]
    rows, columns = (
        (values >= _AS_HOT * hottest) | ((values > 0) & (factors > 0) & (factors >= _BY_ONE_FACTOR * times[i, j]))
        for values, factors in ((left[i, :], times[i, :]), (left[:, j], times[:, j]))
    )
    row = _line(left[i, :], there[i, :], rows, _echoes(left[:, i], there[:, i], without=j))
    column = _line(left[:, j], there[:, j], columns, _echoes(left[j, :], there[j, :], without=i))
    if row is None and column is None:
        instead = _instead(there, i, j, hosts)
        if left[j, i] > _OTHER_DIRECTION * hottest:
            instead = (*instead, f"the way back from {hosts[j]} to {hosts[i]}, or both")
        left[i, j] = left[j, i] = 0.0  # acknowledgements of the way back take this way
        return Place(kind="connection", hosts=(hosts[i], hosts[j]), instead=instead)
    sends = row is not None and (column is None or row >= column)
    host = i if sends else j
    mean = (row if sends else column) or 0.0
    other = left[:, host] if sends else left[host, :]
    used = there[:, host] if sends else there[host, :]
    back = float(other[used].mean()) if used.any() else 0.0
    both = back > _OTHER_DIRECTION * mean and (sends or bool(lingers[host, :].any()))
    left[host, :] = 0.0
    left[:, host] = 0.0
    kind = "link" if both else ("sending" if sends else "receiving")
    return Place(kind=kind, hosts=(hosts[host],))  # type: ignore[arg-type]


def _line(
    values: NDArray[np.float64], used: NDArray[np.bool_], as_hot: NDArray[np.bool_], echoes: bool
) -> float | None:
    """Return the mean excess of a hot row or column, else None.

    A single cell, as in a ring, is the host's only if the host's other direction echoes it.
    """
    if (used.sum() < 2 and not echoes) or not as_hot[used].all():
        return None
    return float(values[used].mean())


def _echoes(values: NDArray[np.float64], used: NDArray[np.bool_], without: int) -> bool:
    """Return whether the host's other direction is hot, too, because its acknowledgements take the slow way."""
    others = used.copy()
    others[without] = False
    return bool(others.any()) and bool((values[others] > 0).all())


def _instead(there: NDArray[np.bool_], i: int, j: int, hosts: list[str]) -> tuple[str, ...]:
    said = []
    if there[i, :].sum() == 1:
        said.append(f"all that {hosts[i]} sends: it sends to no other host")
    if there[:, j].sum() == 1:
        said.append(f"all that {hosts[j]} receives: no other host sends to it")
    return tuple(said)
