"""A job that some ways between hosts make slow. A job whose iterations take no longer than usual is not slow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from eroica_c4d.matrix import read_places
from eroica_c4d.records import Place
from eroica_c4d.stretch import Cell, CellReading, Stretch

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


@dataclass(frozen=True)
class Usual:
    """The job's healthy past: mean iteration, and readings of cells."""

    iteration_s: float
    cells: Mapping[Cell, CellReading] = field(default_factory=dict)


@dataclass(frozen=True)
class Slow:
    """The slowdown of a stretch.

    Attributes:
        places: The heaviest first.
        gain: Share of the iteration that they cost.
        sureness: How many times as long as usual the bytes of the hottest cell wait.
        hot: Cell -> delay above the usual, seconds.
    """

    places: tuple[Place, ...]
    gain: float
    sureness: float
    hot: Mapping[Cell, float] = field(default_factory=dict)

    @property
    def key(self) -> Place:
        """What two readings must agree on."""
        return self.places[0]


def usual_of(stretches: Sequence[Stretch]) -> Usual | None:
    """Return the median of healthy stretches; None if no iteration ended in them."""
    known = [one for one in stretches if one.iteration_s]
    if not known:
        return None
    cells = {cell for one in known for cell in one.cells}
    return Usual(
        iteration_s=median(one.iteration_s or 0.0 for one in known),
        cells={cell: _middle([one.cells[cell] for one in known if cell in one.cells]) for cell in cells},
    )


def is_slow(now: Stretch, usual: Usual, least_share: float) -> bool:
    """Return whether iterations take longer than usual by this share, even if one more had ended."""
    least_s = now.least_iteration_s
    return least_s is not None and least_s >= usual.iteration_s * (1 + least_share)


def _middle(readings: Sequence[CellReading]) -> CellReading:
    return CellReading(*(median(getattr(one, name) for one in readings) for name in CellReading.__dataclass_fields__))


def find_slow(now: Stretch, usual: Usual, least_share: float) -> Slow | None:
    """Return the ways that make the job slow in this stretch; None if nothing is sure.

    Args:
        now: The stretch.
        usual: The job's healthy past.
        least_share: Least share of an iteration that counts.
    """
    if not now.iteration_s or not is_slow(now, usual, least_share):
        return None
    hot, weights, factors, cost = _hot(now, usual, least_share)
    if not hot:
        return None
    prompt = frozenset(cell for cell, reading in now.cells.items() if reading.unsent < _LINGERING)
    places = read_places(weights, frozenset(now.cells), prompt, factors)
    return Slow(places, min(cost, 1 - usual.iteration_s / now.iteration_s), max(factors.values()), hot)


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
