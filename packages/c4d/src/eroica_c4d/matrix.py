"""The matrix of delays between hosts, and the places that its hot cells tell.

A slow connection is a hot cell of the matrix, slow sending a hot row, slow receiving a hot column. A row of one cell
cannot be told from a connection; the place says so. Acknowledgements share the way of data in the other direction, so a
slow direction also warms the host's other direction; the hotter one is named.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from eroica_c4d.records import DelayMatrix, Place
from eroica_c4d.stretch import Cell, CellReading, Stretch

#: Hosts of a matrix; of larger jobs those with the hottest cells.
_MOST_HOSTS = 64
#: A row or column is hot if each cell has this part of the hottest cell's excess, in seconds or as a factor: on one
#: slow way large messages wait longer than small ones, by one factor.
_AS_HOT, _BY_ONE_FACTOR = 0.1, 0.5
#: A direction is named alone if the host's other direction has at most this part of its excess.
_OTHER_DIRECTION = 0.6


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
