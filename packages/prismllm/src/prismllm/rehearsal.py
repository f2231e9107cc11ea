"""A captured job, and what would happen to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from prismllm.costs import Costs, read_costs
from prismllm.graph import Graph, Job, build
from prismllm.model import Residual, read_record
from prismllm.replay import Iteration, Plan, replay
from prismllm.whatif import Change, Hang, parse

_ROUNDS = 7


@dataclass(frozen=True)
class Stuck:
    """Where a rank stands for ever.

    Attributes:
        rank: Global rank.
        op: Number of the call among those of the iteration; of the culprit the one that it never makes.
        call: Operation and place in the script.
        is_culprit: It hangs itself; the others wait.
    """

    rank: int
    op: int
    call: str
    is_culprit: bool


@dataclass(frozen=True)
class Prediction:
    """What a rehearsal says.

    Attributes:
        seconds: Of one iteration, once all changes are in force; inf if it never ends.
        low: Least and
        high: most of several replays with measured variations, widened by how far apart ranks of a kind were timed.
        compute_s: Own work of the rank that works longest.
        exposed_s: Time in which a rank waits in communication, mean over ranks.
        blocked: Ranks that never get through, the culprits first.
    """

    seconds: float
    low: float
    high: float
    compute_s: float
    exposed_s: float
    blocked: tuple[Stuck, ...] = ()

    def __str__(self) -> str:
        if self.blocked:
            first = self.blocked[0]
            return (f"stuck: rank {first.rank} never makes call {first.op}, {first.call}; "
                    f"{len(self.blocked) - 1:,} ranks wait")  # fmt: skip
        return (
            f"{1e3 * self.seconds:,.1f} ms an iteration ({1e3 * self.low:,.1f} to {1e3 * self.high:,.1f}); "
            f"the busiest rank works {1e3 * self.compute_s:,.1f} ms, "
            f"ranks wait {1e3 * self.exposed_s:,.1f} ms on average"
        )


class Rehearsal:
    """A job that can be replayed.

    Args:
        job: As captured.
        costs: Of communication.

    Raises:
        GraphError: The ranks' calls do not fit together.
    """

    def __init__(self, job: Job, costs: Costs | None = None) -> None:
        self.job = job
        self.costs = costs or Costs()
        self.graph: Graph = build(job)

    @classmethod
    def open(cls, directory: str | Path, costs: str | Path | None = None) -> Rehearsal:
        """A capture from its directory, with a file of costs.

        Raises:
            InputError: A file is missing or damaged.
        """
        return cls(read_record(Path(directory) / "job.json", Job), read_costs(Path(costs) if costs else None))

    @property
    def most_bytes(self) -> int:
        """Memory of the rank that needs most."""
        return max(kind.peak_bytes for kind in self.job.kinds)

    @property
    def residual(self) -> Residual | None:
        """What is left of aligning the slices that were timed apart; None if nothing can be left."""
        return self.job.residual

    def run(self, changes: Sequence[Change | str] = (), *, iterations: int = 3, noise: int | None = None,
            keep: int = 1) -> list[Iteration]:  # fmt: skip
        """Replayed iterations, the last `keep` of them."""
        return replay(self.graph, self.costs, Plan(iterations, read_changes(changes), noise, keep)).kept

    def predict(self, *changes: Change | str) -> Prediction:
        """How long an iteration takes under these changes, and how sure that is.

        Raises:
            InputError: A change cannot be read, or is about something that does not exist.
            DeadlockError: Ranks wait for each other in a circle.
        """
        wanted = read_changes(changes)
        first = max((getattr(change, "since", 0) for change in wanted), default=0)
        iterations = first + 3
        last = replay(self.graph, self.costs, Plan(iterations, wanted))
        seconds = last.seconds[-1]
        compute_s, exposed_s = _shares(last.kept[-1], self.job.world)
        if not np.isfinite(seconds):
            hung = replay(self.graph, self.costs, Plan(first + 1, wanted)).kept[-1]
            return Prediction(seconds, seconds, seconds, compute_s, exposed_s, blocked(self.graph, hung, wanted))
        rounds = [replay(self.graph, self.costs, Plan(iterations, wanted, seed)).seconds[-1] for seed in range(_ROUNDS)]
        spread = max((kind.spread for kind in self.job.kinds), default=0.0)
        low, high = min(*rounds, seconds), max(*rounds, seconds)
        return Prediction(seconds, low * (1 - spread / 2), high * (1 + spread / 2), compute_s, exposed_s)


def read_changes(changes: Sequence[Change | str]) -> list[Change]:
    """Changes, from words where they are words."""
    return [parse(change) if isinstance(change, str) else change for change in changes]


def _shares(iteration: Iteration, world: int) -> tuple[float, float]:
    """Own work of the busiest rank, and mean time in communication calls; seconds."""
    busiest, waited = 0.0, 0.0
    for track in iteration.tracks:
        with np.errstate(invalid="ignore"):
            inside = np.nan_to_num(track.left_s - track.at_s).sum(axis=0) if len(track.at_s) else np.zeros(1)
            own = np.nan_to_num(track.end_s - track.begin_s, posinf=0.0) - inside
        busiest = max(busiest, float(np.where(np.isfinite(own), own, 0.0).max()))
        waited += float(np.where(np.isfinite(inside), inside, 0.0).sum())
    return busiest, waited / world


def blocked(graph: Graph, iteration: Iteration, changes: Sequence[Change]) -> tuple[Stuck, ...]:
    """Who never gets through an iteration, culprits first."""
    culprits = {change.rank: change.op for change in changes if isinstance(change, Hang)}
    found = []
    for track in iteration.tracks:
        kind = graph.job.kinds[track.block.kind]
        never = ~np.isfinite(track.left_s)
        for at in np.flatnonzero(never.any(axis=0)):
            rank = int(track.block.ranks[at])
            moment = kind.step.moments[int(np.argmax(never[:, at]))]
            op = culprits.get(rank, moment if moment >= 0 else -1 - moment)
            call = kind.step.calls[op]
            found.append(Stuck(rank, op, f"{call.op} at {call.site}", rank in culprits))
    return tuple(sorted(found, key=lambda one: (not one.is_culprit, one.rank)))
