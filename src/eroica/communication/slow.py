"""A slow job: by own work of some workers, by some connections, or by both.

A job whose iterations take no longer than usual is not slow.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist, median

from eroica.communication.stretch import Cell, CellReading, Stretch, read_places
from eroica.model.communication import CommunicationClass, Place

#: Least moments of a worker for its own work.
_LEAST_MOMENTS = 8
#: Workers held up with their mates are named only if nobody else is late by this part of their standard errors.
_NEARLY = 0.5
#: Least standard errors of a difference: alone, and beside a slow way that explains the slowdown.
_SURE, _SURE_BESIDE = 2.6, 3.5
#: Probability of a chance outlier among all workers of one reading, from which the limit rises.
_WRONG = 0.01
#: The standard error of a median is larger than that of a mean by this factor.
_OF_MEDIAN = 1.25
_MAYBE = 1.5
#: Share of the quickest ways that may be faster than "nearly all".
_NEARLY_ALL = 0.1
#: A cell is hot if its bytes wait this many times as long as usual, and as on nearly all ways ...
_HOT = 2.5
#: ... and this much longer, seconds: less is the noise of acknowledgements.
_LEAST_DELAY_S = 0.002
#: Floor of the usual delay, seconds.
_NO_DELAY_S = 2e-4
#: Least cost of a hot cell, as a share of the hottest one's.
_SAME_LOSS = 0.1
#: On a slow way, throughput while data is under way falls by this factor; with more data only the delay rises.
_LESS_COMES = 0.7
#: Weight of unsent and arriving data: late acknowledgements reach twice the delay of a slow way.
_SIGNS = 6.0
#: Share of unsent bytes from which a sender does not keep up.
_LINGERING = 0.1
_BINOMIAL_FLOOR = 0.05
#: Own work below this share of an iteration is next to none.
_LITTLE_WORK = 0.1
#: A host is late if each of its workers is late by this share of the latest one; a worker is late by itself if it is
#: late beyond its mates by this share of its lateness beyond all.
_ALIKE = 0.5


@dataclass(frozen=True)
class Usual:
    """The job's healthy past: mean iteration, own work in it and moments by global rank, and readings of cells."""

    iteration_s: float
    work_s: Mapping[int, float] = field(default_factory=dict)
    cells: Mapping[Cell, CellReading] = field(default_factory=dict)
    moments: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Slow:
    """The slowdown of a stretch.

    Attributes:
        kind: The class.
        places: The heaviest first.
        gain: Share of the iteration that the place costs.
        sureness: Standard errors (own work), or the multiple of the usual delay (cells).
        late: Global rank -> own work in an iteration above the usual, seconds.
        hot: Cell -> delay above the usual, seconds.
        doubtful: Whether another worker may be late, too.
    """

    kind: CommunicationClass
    places: tuple[Place, ...]
    gain: float
    sureness: float
    late: Mapping[int, float] = field(default_factory=dict)
    hot: Mapping[Cell, float] = field(default_factory=dict)
    doubtful: bool = False

    @property
    def key(self) -> tuple[str, Place]:
        """What two readings must agree on; a host and one of its workers count as equal."""
        place = self.places[0]
        of_workers = place.kind in ("worker", "host") and bool(place.hosts)
        return self.kind, Place(kind="host", hosts=place.hosts) if of_workers else place


def usual_of(stretches: Sequence[Stretch]) -> Usual | None:
    """Return the median of healthy stretches; None if no iteration ended in them."""
    known = [one for one in stretches if one.iteration_s]
    if not known:
        return None
    workers = {worker for one in known for worker in one.outside}
    cells = {cell for one in known for cell in one.cells}
    return Usual(
        iteration_s=median(one.iteration_s or 0.0 for one in known),
        work_s={
            worker: median(work for one in known if (work := one.work_s(worker)) is not None) for worker in workers
        },
        cells={cell: _middle([one.cells[cell] for one in known if cell in one.cells]) for cell in cells},
        moments={worker: sum(one.moments.get(worker, 0) for one in known) for worker in workers},
    )


def is_slow(now: Stretch, usual: Usual, least_share: float) -> bool:
    """Return whether iterations take longer than usual by this share, even if one more had ended."""
    least_s = now.least_iteration_s
    return least_s is not None and least_s >= usual.iteration_s * (1 + least_share)


def _middle(readings: Sequence[CellReading]) -> CellReading:
    return CellReading(*(median(getattr(one, name) for one in readings) for name in CellReading.__dataclass_fields__))


def find_slow(now: Stretch, usual: Usual, hosts: Mapping[int, str], least_share: float) -> Slow | None:
    """Return what makes the job slow in this stretch; None if nothing is sure.

    Args:
        now: The stretch.
        usual: The job's healthy past.
        hosts: Global rank -> host.
        least_share: Least share of an iteration that counts.
    """
    if not now.iteration_s or not is_slow(now, usual, least_share):
        return None
    hot, weights, factors, cost = _hot(now, usual, least_share)
    heat = max(factors.values(), default=0.0)
    late, sure, doubtful = _late(now, usual, hosts, (least_share, _SURE_BESIDE if hot else _SURE))
    late = _waited_for(late, now, usual, is_explained=bool(hot))
    prompt = frozenset(cell for cell, reading in now.cells.items() if reading.unsent < _LINGERING)
    own = max(late.values(), default=0.0) / now.iteration_s
    kind: CommunicationClass = (
        "both-slow" if late and hot else "non-communication-slow" if late else "communication-slow"
    )
    if not late and not hot:
        return None
    return Slow(
        kind,
        (*_worker_places(late, hosts), *read_places(weights, frozenset(now.cells), prompt, factors)),
        min((own if late else 0.0) + cost, 1 - usual.iteration_s / now.iteration_s),
        min(sure if late else heat, heat if hot else sure),
        late,
        hot,
        doubtful,
    )


def _late(
    now: Stretch, usual: Usual, hosts: Mapping[int, str], limits: tuple[float, float]
) -> tuple[dict[int, float], float, bool]:
    """Return the workers whose own work has grown beyond all others', seconds in an iteration.

    The growth must be larger in seconds and as a factor: where all have more to do, a worker with more to do before has
    more of that as well.

    Returns:
        The workers; the sureness of the least sure one; whether others may be late, too.
    """
    late: dict[int, float] = {}
    sureness, doubtful = math.inf, False
    period_s = now.iteration_s or 0.0
    grown = {worker: more for worker in hosts if (more := _grown(now, usual, worker)) is not None}
    if len(grown) < 2:
        return late, sureness, doubtful
    least, factor, sure = limits[0], _factor(now, usual, grown), _limit(limits[1], len(grown))
    for (worker, more), middle in zip(grown.items(), medians_without(list(grown.values())), strict=True):
        beyond_s = more - max(middle, _alike(usual, worker, factor))
        share, error = beyond_s / period_s, _error(now, usual, worker)
        if share >= max(least, sure * error) and more >= least * period_s / 2:
            late[worker] = beyond_s
            sureness = min(sureness, share / error)
        else:
            doubtful |= share >= max(least, _MAYBE * error)
    together = _late_hosts(now, usual, grown, hosts, (least, limits[1]))
    if together:
        late.update({worker: max(more, late.get(worker, 0.0)) for worker, more in together.items()})
        sureness = min(sureness, limits[1])
    return late, sureness, doubtful


def _waited_for(late: Mapping[int, float], now: Stretch, usual: Usual, *, is_explained: bool) -> dict[int, float]:
    """Return the late workers whose mates wait for them; all of them if there is nobody like that.

    Mates share the group in which a worker communicates most. A worker that is late by itself makes them wait there.
    One that is late along with its mates may be held up by a message, which looks like own work. If a slow way explains
    that (`is_explained`), only workers whose mates wait count.
    """
    if not late:
        return {}
    beyond = _beyond_mates(now, usual)
    held = {worker for worker, more in late.items() if worker in beyond and beyond[worker] < _ALIKE * more}
    if len(held) < len(late) or is_explained:
        return {worker: more for worker, more in late.items() if worker not in held}
    surest = max(more / _error(now, usual, worker) for worker, more in late.items())
    nearly = max((beyond[worker] / _error(now, usual, worker) for worker in beyond.keys() - late), default=0.0)
    return dict(late) if nearly < _NEARLY * surest else {}


def _beyond_mates(now: Stretch, usual: Usual) -> dict[int, float]:
    """Return how much more workers' own work has grown than their mates', seconds, if not all others are mates."""
    mates: dict[str, dict[int, float]] = {}
    for worker, name in now.busiest.items():
        grown = _grown(now, usual, worker)
        if grown is not None:
            mates.setdefault(name, {})[worker] = grown
    count = sum(map(len, mates.values()))
    return {
        worker: grown - others
        for group in mates.values()
        if 1 < len(group) < count
        for (worker, grown), others in zip(group.items(), medians_without(list(group.values())), strict=True)
    }


def medians_without(values: Sequence[float]) -> list[float]:
    """Return for each of two or more values the median of all others."""
    ordered, count = sorted(values), len(values) - 1

    def at(number: int, left_out: int) -> float:
        return ordered[number + (number >= left_out)]

    found = []
    for value in values:
        out = bisect_left(ordered, value)
        found.append((at((count - 1) // 2, out) + at(count // 2, out)) / 2)
    return found


def _factor(now: Stretch, usual: Usual, workers: Collection[int]) -> float:
    """Return the median factor by which workers' own work has grown."""
    floor_s = _LITTLE_WORK * usual.iteration_s
    return median(
        ((now.work_s(worker) or 0.0) + floor_s) / (usual.work_s.get(worker, 0.0) + floor_s) for worker in workers
    )


def _alike(usual: Usual, worker: int, factor: float) -> float:
    """Return the growth of a worker's own work that its peers' factor explains."""
    return usual.work_s.get(worker, 0.0) * max(0.0, factor - 1)


def _late_hosts(
    now: Stretch,
    usual: Usual,
    grown: Mapping[int, float],
    hosts: Mapping[int, str],
    limits: tuple[float, float],
) -> dict[int, float]:
    """Return the workers of hosts whose workers are all late; seconds in an iteration."""
    late: dict[int, float] = {}
    period_s, names = now.iteration_s or 1.0, sorted({hosts[worker] for worker in grown if worker in hosts})
    for host in names:
        here = [worker for worker in grown if hosts.get(worker) == host]
        elsewhere = [worker for worker in grown if hosts.get(worker) != host]
        others = [grown[worker] for worker in elsewhere]
        if len(here) < 2 or len(others) < 2 or len(names) < 2:
            continue
        usual_s, factor = median(others), _factor(now, usual, elsewhere)
        beyond = {worker: grown[worker] - max(usual_s, _alike(usual, worker, factor)) for worker in here}
        shares = [beyond[worker] / period_s for worker in here]
        mean = sum(shares) / len(shares)
        error = math.sqrt(sum(_error(now, usual, worker) ** 2 for worker in here)) / len(here)
        if mean >= max(limits[0], _limit(limits[1], len(names)) * error) and min(shares) >= _ALIKE * max(shares):
            late |= beyond
    return late


def _grown(now: Stretch, usual: Usual, worker: int) -> float | None:
    if now.moments.get(worker, 0) < _LEAST_MOMENTS:
        return None
    work_s = now.work_s(worker)
    return None if work_s is None or worker not in usual.work_s else work_s - usual.work_s[worker]


def _limit(errors: float, count: int) -> float:
    """Return the least standard errors of one of so many."""
    return max(errors, NormalDist().inv_cdf(1 - _WRONG / max(count, 1)))


def _error(now: Stretch, usual: Usual, worker: int) -> float:
    """Return the standard error of a worker's growth, as a share of an iteration of now."""
    error = _standard_error(now.moments[worker], now.outside[worker])
    count = usual.moments.get(worker, 0)
    if not count:
        return error
    before = _OF_MEDIAN * _standard_error(count, usual.work_s[worker] / usual.iteration_s)
    return math.hypot(error, before * usual.iteration_s / (now.iteration_s or usual.iteration_s))


def _standard_error(count: int, share: float) -> float:
    """Of a worker's share of moments, never taken for less than what so few moments can tell."""
    share = min(max(share, _BINOMIAL_FLOOR), 1 - _BINOMIAL_FLOOR)
    return math.sqrt(share * (1 - share) / count)


def _worker_places(late: Mapping[int, float], hosts: Mapping[int, str]) -> tuple[Place, ...]:
    """Hosts of which every worker is late (if there are several, and others), else workers."""
    places: list[tuple[float, Place]] = []
    left = dict(late)
    for host in sorted({hosts[worker] for worker in late if worker in hosts}):
        here = {worker for worker, where in hosts.items() if where == host}
        if len(here) > 1 and here <= left.keys() and len(here) < len(hosts):
            heaviest = max(left.pop(worker) for worker in sorted(here))
            places.append((heaviest, Place(kind="host", workers=tuple(sorted(here)), hosts=(host,))))
    places += [
        (more, Place(kind="worker", workers=(worker,), hosts=tuple(filter(None, (hosts.get(worker, ""),)))))
        for worker, more in left.items()
    ]
    return tuple(place for _, place in sorted(places, key=lambda one: -one[0]))


# ---------------------------------------------------------------------- cells


def _hot(
    now: Stretch, usual: Usual, least_share: float
) -> tuple[dict[Cell, float], dict[Cell, float], dict[Cell, float], float]:
    """Cells whose bytes wait longer than they should.

    A byte waits for its acknowledgement, too, which comes the other way: where one direction is slow, the other one's
    bytes wait as well. What tells them apart: on the slow way data lingers unsent at a sender that cannot keep up, and
    keeps arriving at the receiver; what only waits for acknowledgements was sent, and came, at once.

    Returns:
        Cell -> more delay than usual, seconds; cell -> its weight, which tells the place; cell -> how many times as
        long as usual; the share of time that the hottest costs.
    """
    found: dict[Cell, tuple[CellReading, CellReading]] = {}
    known = {cell: before for cell in now.cells if (before := _ordinary(cell, now, usual)) is not None}
    alike = _alike_on_all_ways(now, known)
    for cell, ordinary in known.items():
        reading = now.cells[cell]
        if reading.delay_s - ordinary.delay_s < _LEAST_DELAY_S:
            continue
        if reading.delay_s >= _HOT * alike * max(ordinary.delay_s, _NO_DELAY_S):
            found[cell] = reading, ordinary
    cost = max((one.busy - before.busy for one, before in found.values()), default=0.0)
    if cost < least_share:
        return {}, {}, {}, 0.0
    found = {cell: pair for cell, pair in found.items() if pair[0].busy - pair[1].busy >= _SAME_LOSS * cost}
    if not any(_less_comes(now.cells[cell], usual.cells[cell]) for cell in found):
        return {}, {}, {}, 0.0
    return (
        {cell: one.delay_s - before.delay_s for cell, (one, before) in found.items()},
        {cell: _weight(one, before) for cell, (one, before) in found.items()},
        {cell: one.delay_s / max(before.delay_s, _NO_DELAY_S) for cell, (one, before) in found.items()},
        cost,
    )


def _alike_on_all_ways(now: Stretch, known: Mapping[Cell, CellReading]) -> float:
    """Return the factor by which bytes wait longer on nearly all ways; 1 for two hosts."""
    if len({host for cell in known for host in cell}) < 3:
        return 1.0
    factors = sorted(now.cells[cell].delay_s / max(before.delay_s, _NO_DELAY_S) for cell, before in known.items())
    return max(1.0, factors[int(_NEARLY_ALL * len(factors))])


def _less_comes(reading: CellReading, before: CellReading) -> bool:
    """Return whether the throughput while data is under way fell."""
    return reading.bytes_per_s * before.busy < _LESS_COMES * before.bytes_per_s * reading.busy or before.busy == 0


def _weight(reading: CellReading, ordinary: CellReading) -> float:
    """Return the excess delay, weighed by signs that only a slow way shows."""
    sure = reading.unsent + max(reading.arriving - ordinary.arriving, 0.0)
    return (reading.delay_s - ordinary.delay_s) * (1 + _SIGNS * sure)


def _ordinary(cell: Cell, now: Stretch, usual: Usual) -> CellReading | None:
    """Return the expected reading of a cell: as it was, its shares of time in proportion."""
    before = usual.cells.get(cell)
    if before is None:
        return None
    slower = usual.iteration_s / (now.iteration_s or usual.iteration_s)
    return replace(before, busy=before.busy * slower, arriving=before.arriving * slower)
