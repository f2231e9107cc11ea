"""The critical path of a replayed iteration, and what every rank's time went into."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prismllm.graph import Graph
from prismllm.replay import Iteration, Track

_SAME_S = 1e-12


@dataclass(frozen=True)
class Piece:
    """A stretch of the critical path.

    Attributes:
        rank: On whose time it lies; of a call the rank that came last.
        what: "own work" or the operation.
        site: Of the call, or of the call that the work leads to.
        begin_s: Since the begin of the replay.
    """

    rank: int
    what: str
    site: str
    begin_s: float
    seconds: float


@dataclass(frozen=True)
class Shares:
    """The shares of each rank's time; float64 [world] each, seconds of one iteration.

    Attributes:
        own_s: Own work.
        exposed_s: Waiting for collectives or their transfer.
        bubble_s: Waiting for messages of other pipeline stages.
    """

    own_s: NDArray[np.float64]
    exposed_s: NDArray[np.float64]
    bubble_s: NDArray[np.float64]


def shares(graph: Graph, iteration: Iteration) -> Shares:
    """Own work, exposed communication and pipeline bubbles of each rank."""
    own, exposed, bubble = (np.zeros(graph.job.world) for _ in range(3))
    for track in iteration.tracks:
        step = graph.job.classes[track.block.rank_class].step
        ranks = track.block.ranks
        with np.errstate(invalid="ignore"):  # of a hang what is finite counts
            inside = np.nan_to_num(track.left_s - track.at_s, posinf=0.0)
            spent = np.nan_to_num(track.end_s - track.begin_s, posinf=0.0)
        for at in range(len(step.events)):
            (bubble if step.call_at(at).is_pairwise else exposed)[ranks] += inside[at]
        own[ranks] = np.maximum(0.0, spent - inside.sum(axis=0))
    return Shares(own, exposed, bubble)


def critical_path(graph: Graph, iteration: Iteration) -> list[Piece]:
    """Return the pieces that make up the iteration's length, from its begin to its end.

    Walks back from the rank that ends last: own work, a call that was waited for, then the rank that came last to it.
    """
    place: dict[int, tuple[Track, int]] = {
        rank: (track, row) for track in iteration.tracks for row, rank in enumerate(track.block.ranks.tolist())
    }
    ends = iteration.end_s(graph.job.world)
    rank = int(np.argmax(ends))
    track, row = place[rank]
    step = graph.job.classes[track.block.rank_class].step
    pieces: list[Piece] = []
    at, until = len(step.events), float(track.end_s[row])
    while True:
        before = float(track.left_s[at - 1, row]) if at else float(track.begin_s[row])
        call = step.call_at(min(at, len(step.events) - 1)) if step.events else None
        if until - before > _SAME_S:
            pieces.append(Piece(rank, "own work", call.site if call else "", before, until - before))
        if at == 0:
            return pieces[::-1]
        at -= 1
        event = step.events[at]
        waited = float(track.left_s[at, row] - track.at_s[at, row])
        until = float(track.at_s[at, row])
        if event >= 0 or waited <= _SAME_S:
            continue
        operation = int(track.block.operations[-1 - event][row])
        here = step.calls[-1 - event]
        begun = float(iteration.done_s[operation] - iteration.cost_s[operation])
        while graph.before[operation] >= 0 and begun - float(iteration.ready_s[operation]) > _SAME_S:
            # Queued behind another call.
            pieces.append(Piece(rank, here.op, here.site, begun, float(iteration.cost_s[operation])))
            operation = int(graph.before[operation])
            begun = float(iteration.done_s[operation] - iteration.cost_s[operation])
        track, row, at = _last_to_come(iteration, operation)
        rank = int(track.block.ranks[row])
        step = graph.job.classes[track.block.rank_class].step
        pieces.append(Piece(rank, here.op, here.site, begun, float(iteration.cost_s[operation])))
        until = float(track.at_s[at, row])


def _last_to_come(iteration: Iteration, operation: int) -> tuple[Track, int, int]:
    """Track, row and event of the launch that completed an operation."""
    found: list[tuple[float, Track, int, int]] = []
    for track in iteration.tracks:
        for place, operations in enumerate(track.block.operations):
            if operations.min() <= operation <= operations.max():
                event, rows = track.launches[place], np.flatnonzero(operations == operation)
                if len(rows):
                    row = int(rows[np.argmax(track.at_s[event, rows])])
                    found.append((float(track.at_s[event, row]), track, row, event))
    return max(found, key=lambda one: one[0])[1:]
