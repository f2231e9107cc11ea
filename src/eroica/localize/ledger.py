"""Books of waiting: the waiting of each worker in each iteration, and the workers that it is laid at.

Array suffixes: G groups of M members, K matched executions, W workers, I iterations. All times are microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.localize.direct_waits import Meets
from eroica.localize.fleet import Fleet, cut_out, shared_iterations
from eroica.localize.graph import MOST_AT_ONCE, MOST_EXECUTIONS
from eroica.localize.matching import Matched, is_contradiction
from eroica.localize.meetings import MeetingBlock
from eroica.localize.propagation import propagate
from eroica.model.pattern import CollectiveRecord
from eroica.model.series import decode_series

Floats = NDArray[np.float64]
Places = NDArray[np.intp]


class Ledger:
    """Adds up waiting and blame over groups."""

    def __init__(self, fleet: Fleet) -> None:
        shape = fleet.iteration_us.shape
        self._wait_WI = fleet.wait_us
        self.waited = np.zeros(shape)
        self.direct = np.zeros(shape)
        self.blamed = np.zeros(shape)
        self.last = np.zeros(shape[0])
        self.meets = Meets()
        self.withheld = 0.0
        self.executions = 0
        self.skew: dict[tuple[str, str], float] = {}
        self.transfer_us: dict[tuple[str, str], Floats] = {}
        self.matched: list[Matched] = []
        self.pending: list[tuple[Matched, MeetingBlock | None]] = []
        self.blocks: list[MeetingBlock] = []
        self.told_W = np.zeros(shape[0])
        self.unpaired_W = np.zeros(shape[0])
        self.contradicted = ""
        self.notes: list[str] = []
        self._teams: dict[tuple[int, ...], int] = {}
        self._groups: dict[str, int] = {}
        self._places_WL = _inverse(fleet.columns)
        self.edge_WJ, self.wait_WI, offset_W = _edges(fleet)
        self._first_chained, self.whole_from = _what_is_chained(fleet, offset_W)

    def book(self, part: Matched, block: MeetingBlock | None) -> None:
        """Enter matched executions, and keep those of recorded traces."""
        counted = (part.columns >= 0).all(axis=0)
        part = msgspec.structs.replace(part, share=np.where(counted, part.share, 0.0))
        members_M = np.asarray(part.members, dtype=np.intp)
        self.enter(members_M[None], part.wait_us[None], part.share[None], part.columns[None], block)
        if part.end_us.shape[1]:
            self.matched.append(part)

    def refuse(self, reason: str) -> None:
        """Remember a pairing that the ends speak against."""
        if is_contradiction(reason):
            self.contradicted = self.contradicted or reason

    def leave_out(self, owners: Mapping[int, CollectiveRecord]) -> None:
        """Remember the waiting of records that pair with nothing (by worker): no record tells what ends it."""
        for worker, record in owners.items():
            self.unpaired_W[worker] += float(decode_series(record.critical_us, np.float32).sum())

    def columns(self, worker: int, iterations_K: NDArray[np.int32]) -> NDArray[np.intp]:
        """Column of each execution, -1 for iterations that do not count."""
        return np.asarray(self.columns_of([worker], iterations_K)[0])

    def columns_of(self, workers: Sequence[int] | Places, iterations: NDArray[np.int32]) -> Places:
        """Find the columns of iterations of some workers.

        Args:
            workers: Indices of M workers. intp [..., M].
            iterations: Of each worker, or one row for all of them. int32 [..., M, K] or [K].

        Returns:
            intp [..., M, K].
        """
        beyond = self._places_WL.shape[1] - 1
        known = (iterations >= 0) & (iterations < beyond)
        return self._places_WL[np.asarray(workers, dtype=np.intp)[..., None], np.where(known, iterations, beyond)]

    def team(self, members: Sequence[int]) -> int:
        """Number of a set of workers."""
        return self._teams.setdefault(tuple(sorted(members)), len(self._teams))

    def queue(self, group: str) -> int:
        """Number of a process group."""
        return self._groups.setdefault(group, len(self._groups))

    def enter(
        self,
        members_GM: Places,
        wait_GMK: Floats,
        share_GMK: Floats,
        columns_GMK: Places,
        block: MeetingBlock | None = None,
    ) -> None:
        """Book waits in some groups, and lay each execution's sum at the members that came last.

        Args:
            members_GM: Indices of the workers.
            wait_GMK: Critical waiting.
            share_GMK: Each member's share of the blame; zeros blame nobody.
            columns_GMK: Iteration each member counts the execution in; executions with any -1 are left out.
            block: The last of these executions with their places in time, if they are known: their blame is passed on.
        """
        if not self.waited.size:
            return  # no iteration that all workers have
        counted_GK = np.asarray((columns_GMK >= 0).all(axis=1))
        wait_GMK, share_GMK = (array * counted_GK[:, None] for array in (wait_GMK, share_GMK))
        first = counted_GK.shape[1] - (0 if block is None else block.end_us.shape[2])
        if block is not None:
            wait, share, columns = (array[..., first:].copy() for array in (wait_GMK, share_GMK, columns_GMK))
            self.blocks.append(msgspec.structs.replace(block, wait_us=wait, share=share, columns=columns))
        waited_GK = wait_GMK.sum(axis=1)
        blame_GMK = share_GMK * waited_GK[:, None]
        cells_GMK = members_GM[..., None] * self.waited[0].size + np.where(counted_GK[:, None], columns_GMK, 0)
        np.add.at(self.waited.reshape(-1), cells_GMK.ravel(), wait_GMK.ravel())
        np.add.at(self.direct.reshape(-1), cells_GMK.ravel(), blame_GMK.ravel())
        np.add.at(self.blamed.reshape(-1), cells_GMK[..., :first].ravel(), blame_GMK[..., :first].ravel())
        last_GM = share_GMK.sum(axis=2)
        np.add.at(self.last, members_GM.ravel(), last_GM.ravel())
        self.meets.add(members_GM, wait_GMK, share_GMK, last_GM)
        self.withheld += float((waited_GK - blame_GMK.sum(axis=1))[:, :first].sum())
        self.executions += int(counted_GK.sum())

    def first_chained(self, columns_GMK: Places) -> Places:
        """The first of each group's executions whose blame is passed on. intp [G]."""
        late_enough_GK = (columns_GMK >= self._first_chained).any(axis=1)
        return np.asarray((~np.logical_or.accumulate(late_enough_GK, axis=1)).sum(axis=1), dtype=np.intp)

    def settle(self) -> None:
        """Pass blame on to where the delays began."""
        blamed_WI, withheld = propagate(self.blocks, self._wait_WI)
        self.blamed += blamed_WI
        self.withheld += withheld


def _edges(fleet: Fleet) -> tuple[Floats, Floats, NDArray[np.intp]]:
    """The common iterations on each worker's clock.

    Returns:
        Their boundaries, float64 [W, J]; critical time in communication, float64 [W, I]; and how many captured
        iterations lie before, intp [W].
    """
    offset_W, common, times, waits = shared_iterations(fleet.patterns)
    if not common:
        return np.zeros((len(times), 1)), np.zeros((len(times), 0)), offset_W
    before_W = [own[:offset].sum(dtype=np.float64) for own, offset in zip(times, offset_W.tolist(), strict=True)]
    edge_WJ = np.empty((len(times), common + 1))
    edge_WJ[:, 0] = before_W
    edge_WJ[:, 1:] = np.asarray(before_W)[:, None] + np.cumsum(cut_out(times, offset_W, common), axis=1)
    return edge_WJ, cut_out(waits, offset_W, common), offset_W


def _what_is_chained(fleet: Fleet, offset_W: NDArray[np.intp]) -> tuple[int, int]:
    """First column whose blame is passed on, and first common iteration whose executions all are there.

    Memory bounds the former: of long windows of large jobs the last iterations are taken. The latter comes after those
    in which a record lacks some that got no room.
    """
    records = [
        (record, int(offset))
        for pattern, offset in zip(fleet.patterns, offset_W, strict=True)
        for record in pattern.collectives
        if record.end_us
    ]
    executions = sum(record.executions for record, _ in records)
    iterations = fleet.columns.shape[1]
    kept = iterations if executions <= MOST_EXECUTIONS else max(iterations * MOST_EXECUTIONS // executions, 1)
    kept = kept if executions <= MOST_AT_ONCE * iterations else 0
    begins = [int(decode_series(r.iteration, np.int32)[0]) + 1 - at for r, at in records if r.dropped and r.executions]
    first_kept = int(fleet.columns[0, iterations - max(kept, 1)] - offset_W[0]) if kept < iterations else 0
    return iterations - kept, max(first_kept, *begins, 0)


def _inverse(columns_WI: NDArray[np.intp]) -> NDArray[np.intp]:
    """Place of each iteration among those that count, -1 for the others and, at the end, all beyond. intp [W, L]."""
    workers, count = columns_WI.shape
    places_WL = np.full((workers, int(columns_WI.max(initial=-1)) + 2), -1, dtype=np.intp)
    places_WL[np.arange(workers)[:, None], columns_WI] = np.arange(count)
    return places_WL
