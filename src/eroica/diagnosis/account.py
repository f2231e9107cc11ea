"""Account for own time, cell by cell, now and when the job was healthy, and find the largest block that was added.

A cell is a node of one tree (part of the
iteration, kind of row, name of an operator), and its expectation is the same worker's time in it in the baseline
window. So what was there when the job was healthy is no excess, and what is new has an expectation of zero.

Array suffixes: W workers, I iterations, R rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence, Set

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.lateness import (
    LEAST_STRENGTH,
    Lateness,
    Spent,
    late_against_peers,
    late_together,
    lateness_of,
    measure,
)
from eroica.diagnosis.margins import stands_out
from eroica.diagnosis.python_code import enters_collective
from eroica.diagnosis.view import View
from eroica.localize.excess import excess_over_baseline
from eroica.localize.simulate import simulated_gain
from eroica.model.lost import rank_errors
from eroica.model.pattern import FunctionKey

Floats = NDArray[np.float64]
#: A part of the tree stands for what contains it if it gains this share of what that gains.
_HOLDS = 0.9
#: So much of what takes longer lies in a concentrated part, beyond the pace of the rest.
_CONCENTRATED = 0.5
#: Share of an excess that lies outside of its longest iteration.
_COMES_AGAIN = 0.5
#: Excess relative to the reference from which a cell counts; what differs by less is the pace of the machine.
_LEAST_RATIO = 0.2


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the tree.

    Attributes:
        name: In words; "" for the root, which is all own time.
        phases: Parts of the iteration that it covers.
        rows: Its rows (indices into the fleet's keys).
        is_leaf: It is one operator, or what lies under one frame.
    """

    name: str
    phases: frozenset[str]
    rows: tuple[int, ...]
    is_leaf: bool = False


class Part(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A coherent block of excess: its workers, its place in the tree, its amount, and its cost.

    Attributes:
        cell: The deepest node that still holds most of it.
        late: Workers with the excess, reference, excess in each iteration, and strength.
        gain: Gain of its removal, as a fraction of the iteration, 0-1.
    """

    cell: Cell
    late: Lateness
    gain: float


def largest_part(view: View, told: Set[int] = frozenset()) -> Part | None:
    """Find the block of own time whose excess costs most, as deep in the tree as it stays one block.

    All cells of the tree are judged, for the noise of a large one hides a small one inside. Cells are compared with
    the baseline, and with peers where that gains more: one worker's own slowness is not the job's.

    Args:
        view: A window with a baseline window.
        told: Rows that are left out.

    Returns:
        None where no own time is surely longer, and where nobody waits for the slower workers.
    """
    keys = view.fleet.keys
    busy = [at for at in np.flatnonzero(view.fleet.critical_us.max(axis=1) > 0) if at not in told]
    rows = [at for at in busy if is_own_time(keys[at])]
    root = Cell(name="", phases=frozenset(keys[at].phase for at in rows), rows=tuple(map(int, rows)))
    cells = [cell for cell in _tree(keys, root) if _may_stand_out(view, cell)]
    judged = [part for cell in cells if (part := _judged(view, cell)) is not None]
    whole = max((part.gain for part in judged), default=0.0)
    parts = [part for part in judged if is_concentrated(view, root, part)]
    if not told:  # one function is a block by itself; several are if they hold nearly all
        parts = [part for part in parts if part.cell.is_leaf or part.gain >= _HOLDS * whole]
    most = max((part.gain for part in parts), default=0.0)
    within = [part for part in parts if part.gain >= _HOLDS * most]
    return min(within, key=lambda part: len(part.cell.rows), default=None)


def is_own_time(key: FunctionKey) -> bool:
    """True if a row is a worker's own work: no collective, nor Python that enters one or waits for autograd."""
    return key.kind != "collective" and not (key.kind == "python" and enters_collective(key.stack))


def is_concentrated(view: View, root: Cell, part: Part) -> bool:
    """True if most of what takes longer lies in a part, beyond the pace at which the rest takes longer.

    Where all that a worker does takes longer in the same way, there is more of it to do, or the machine is slower: that
    has no place in the tree, however large the cell.
    """
    members = list(part.late.workers)
    reference = view.suspects.before_us if part.late.reference == "baseline" else view.suspects.peers_us
    then_F = np.nan_to_num(reference[:, members]).mean(axis=1)
    more_F = view.fleet.critical_us[:, members].mean(axis=1) - then_F
    own, rest = list(part.cell.rows), sorted({*root.rows} - {*part.cell.rows})
    more, pace = float(more_F[own].sum()), float(more_F[rest].sum()) / max(float(then_F[rest].sum()), 1e-9)
    beyond = more - max(pace, 0.0) * float(then_F[own].sum())
    return bool(rest) and beyond >= _CONCENTRATED * float(more_F[list(root.rows)].sum()) > 0


def _may_stand_out(view: View, cell: Cell) -> bool:
    """True if means alone show enough excess over the baseline window: a look before any series is decoded."""
    rows, floor = list(cell.rows), view.settings.min_gain * view.iteration_us
    more_W = view.fleet.critical_us[rows].sum(axis=0) - np.nan_to_num(view.suspects.before_us[rows]).sum(axis=0)
    return bool(more_W.max(initial=0.0) >= floor)


def _judged(view: View, cell: Cell) -> Part | None:
    """Compare a cell with the baseline window and with peers, and keep the part that gains more; None without any."""
    spent = measure(view, cell.rows)
    found = [*_since_healthy(view, spent), *late_against_peers(view, spent, excused=False, least_ratio=_LEAST_RATIO)]
    parts = [
        Part(cell=cell, late=late, gain=simulated_gain(view.fleet, late.removed_us))
        for late in found
        if comes_again(late.removed_us)
    ]
    return max(parts, key=lambda part: part.gain, default=None)


def comes_again(removed_WI: Floats) -> bool:
    """True if more than one iteration holds the excess: one evaluation in the window is none of the job's pace.

    Args:
        removed_WI: The excess in each iteration. float64 [W, I].
    """
    excess_I = removed_WI.sum(axis=0)
    return bool(excess_I.sum() - excess_I.max(initial=0.0) >= _COMES_AGAIN * excess_I.sum())


def _since_healthy(view: View, spent: Spent) -> Iterator[Lateness]:
    """Find most workers above their own time in the baseline window.

    That iterations are longer is known from all of the job's; which cells hold it is seen by all workers together, each
    of which did its work by itself (Stouffer's sum).
    """
    before_WJ = view.before(spent.functions) + view.uncovered(spent.functions)[:, None]
    excess = excess_over_baseline(spent.time_us, before_WJ)
    in_order_W = [rank_errors(now_I, then_J) for now_I, then_J in zip(spent.time_us, before_WJ, strict=True)]
    strength_W = np.maximum(np.nan_to_num(excess.strength), in_order_W)
    over_W = stands_out(view, excess, _LEAST_RATIO, 0.0) & (strength_W > 0)
    over_W &= excess.excess_us >= _CONCENTRATED * np.where(over_W, excess.excess_us, 0.0).max(initial=0.0)
    late_W, agreement = late_together(excess, over_W, view.wait_rise_us)
    strength = float(strength_W[over_W].sum() / max(over_W.sum(), 1) ** 0.5)
    if late_W.any() and strength >= LEAST_STRENGTH:
        late = lateness_of("baseline", excess, spent.steady_us, late_W, agreement)
        yield msgspec.structs.replace(late, strength=strength)


def _tree(keys: Sequence[FunctionKey], root: Cell) -> Iterator[Cell]:
    """List all cells: own time, its parts of the iteration, the kinds in each, the names of operators in each kind.

    Python has a call tree of its own, of which operators are leaves.
    """
    yield root
    for phase in _split(root, [keys[at].phase for at in root.rows]):
        yield phase
        for kind in _split(phase, [keys[at].kind for at in phase.rows]):
            yield kind
            if keys[kind.rows[0]].kind != "python":
                yield from _split(kind, [keys[at].name for at in kind.rows], is_leaf=True)
            else:
                yield from _under_frames(kind, keys)


def _under_frames(cell: Cell, keys: Sequence[FunctionKey]) -> Iterator[Cell]:
    """List the nodes of the call tree: rows under each frame, of frames with the same rows the deepest."""
    under: dict[str, list[int]] = defaultdict(list)
    for row in cell.rows:
        for frame in dict.fromkeys(keys[row].stack):
            under[frame].append(row)
    for rows, frame in {tuple(rows): frame for frame, rows in under.items() if len(rows) < len(cell.rows)}.items():
        yield Cell(name=f"{cell.name} {frame}", phases=cell.phases, rows=rows, is_leaf=True)


def _split(cell: Cell, labels: Sequence[str], is_leaf: bool = False) -> Iterator[Cell]:
    groups: dict[str, list[int]] = defaultdict(list)
    for row, label in zip(cell.rows, labels, strict=True):
        groups[label].append(row)
    for label, rows in groups.items():
        phases = cell.phases if cell.name else frozenset({label})
        yield Cell(name=f"{cell.name} {label}".strip(), phases=phases, rows=tuple(rows), is_leaf=is_leaf)
