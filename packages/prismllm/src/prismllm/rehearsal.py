"""Predicts a captured job under changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from prismllm.costs import Costs, read_costs
from prismllm.graph import Graph, Job, build
from prismllm.model import read_record
from prismllm.replay import Iteration, replay
from prismllm.views.path import shares
from prismllm.whatif import Busy, Change, Hang, Network, parse

#: Replays with drawn times for the upper end of the range.
_ROUNDS = 5
#: Ends of the range: work on a core and calls take so many times as long as was measured. Of 28 recorded runs of
#: `benchmarks/truth.py`, 27 lie between these; see docs/figures.md.
_SHORTER, _LONGER = 0.75, 1.7


@dataclass(frozen=True)
class BlockedRank:
    """A rank that never ends the iteration, and its call.

    Attributes:
        op: Number of the call among those of the iteration; of the culprit the one that it never makes.
        call: Operation and place in the script.
        is_culprit: It hangs itself; the others wait.
    """

    rank: int
    op: int
    call: str
    is_culprit: bool


@dataclass(frozen=True)
class Risk:
    """The ranks that were not timed, and what that can hide.

    Attributes:
        timed: Ranks whose own work was timed.
        untimed: Ranks that are taken to work as long as a timed one that makes the same calls.
        missed: Chance that a single rank of the job that works longer is an untimed one, 0-1.
        unlike: Timed ranks that work longer or shorter than others with the same calls.
    """

    timed: int
    untimed: int
    missed: float
    unlike: tuple[int, ...] = ()

    def __str__(self) -> str:
        told = f"all {self.timed:,} ranks were timed"
        if self.untimed:
            told = (f"{self.untimed:,} of {self.timed + self.untimed:,} ranks were not timed; one that works longer "
                    f"is missed with a chance of {100 * self.missed:.0f} %")  # fmt: skip
        if self.unlike:
            shown = ", ".join(map(str, self.unlike[:8])) + (", …" if len(self.unlike) > 8 else "")
            told += (f"; {len(self.unlike)} of {self.timed} timed ranks work longer or shorter than their class "
                     f"({shown})")  # fmt: skip
            told += ", so untimed ones may, too (--check-seconds, --all)" if self.untimed else ""
        return told


@dataclass(frozen=True)
class Prediction:
    """A predicted iteration.

    Attributes:
        seconds: Of one iteration, once all changes are in force; inf if it never ends.
        low: The iteration if work on cores and calls are shorter than measured.
        high: Most of several replays with drawn times in which they are longer than measured.
        compute_s: Own work of the rank that works longest.
        exposed_s: Time in which a rank waits in communication, mean over ranks.
        risk: Of ranks that were not timed.
        blocked: Ranks that never get through, the culprits first.
    """

    seconds: float
    low: float
    high: float
    compute_s: float
    exposed_s: float
    risk: Risk
    blocked: tuple[BlockedRank, ...] = ()

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

    Raises:
        GraphError: The ranks' calls do not fit together.
    """

    def __init__(self, job: Job, costs: Costs | None = None) -> None:
        self.job = job
        self.costs = costs or Costs()
        self.graph: Graph = build(job)

    @classmethod
    def open(cls, directory: str | Path, costs: str | Path | None = None) -> Rehearsal:
        """Read a capture from its directory, with a file of costs.

        Raises:
            InputError: A file is missing or damaged.
        """
        return cls(read_record(Path(directory) / "job.json", Job), read_costs(Path(costs) if costs else None))

    @property
    def most_bytes(self) -> int:
        """The peak memory of the rank that needs most; bytes."""
        return max(rank_class.peak_bytes for rank_class in self.job.classes)

    @property
    def risk(self) -> Risk:
        """Return how many ranks were not timed, and the chance that a single slow one is among them."""
        timed = len({rank for rank_class in self.job.classes for rank in rank_class.timed})
        untimed = self.job.world - timed
        return Risk(timed, untimed, untimed / self.job.world, tuple(self.job.unlike))

    def run(self, changes: Sequence[Change | str] = (), *, iterations: int = 3, noise: int | None = None,
            keep: int = 1) -> list[Iteration]:  # fmt: skip
        """Replay iterations; return the last `keep` of them."""
        return replay(self.graph, self.costs, read_changes(changes), iterations, noise=noise, keep=keep)[0]

    def predict(self, *changes: Change | str) -> Prediction:
        """Predict how long an iteration takes under these changes, with a range.

        Raises:
            InputError: A change cannot be read, or is about something that does not exist.
            DeadlockError: Ranks wait for each other in a cycle.
        """
        wanted = read_changes(changes)
        iterations = first_of(wanted) + 3
        kept, lengths = replay(self.graph, self.costs, wanted, iterations)
        seconds, parts = lengths[-1], shares(self.graph, kept[-1])
        compute_s, exposed_s = float(parts.own_s.max()), float((parts.exposed_s + parts.bubble_s).mean())
        if not np.isfinite(seconds):
            hung = self.run(wanted, iterations=first_of(wanted) + 1)[-1]
            return Prediction(seconds, seconds, seconds, compute_s, exposed_s, self.risk,
                              blocked(self.graph, hung, wanted))  # fmt: skip
        # An uneven call costs as much as its largest member.
        if any(rank_class.sizes for rank_class in self.job.classes):
            seconds = float(np.median([self._drawn(wanted, iterations, seed) for seed in range(_ROUNDS)]))
        shorter, longer = ([*wanted, Busy(by), Network(1 / by)] for by in (_SHORTER, _LONGER))
        low = min(seconds, self._drawn(shorter, iterations, None))
        high = max(seconds, *(self._drawn(longer, iterations, seed) for seed in (None, *range(_ROUNDS))))
        return Prediction(seconds, low, high, compute_s, exposed_s, self.risk)

    def _drawn(self, changes: Sequence[Change], iterations: int, seed: int | None) -> float:
        """Return the length of one iteration with drawn times, or with medians if there is no seed; seconds."""
        return replay(self.graph, self.costs, changes, iterations, noise=seed)[1][-1]


def read_changes(changes: Sequence[Change | str]) -> list[Change]:
    """Parse the changes that are text."""
    return [parse(change) if isinstance(change, str) else change for change in changes]


def first_of(changes: Sequence[Change]) -> int:
    """Return the first iteration in which all changes are in force."""
    return max((getattr(change, "since", 0) for change in changes), default=0)


def blocked(graph: Graph, iteration: Iteration, changes: Sequence[Change]) -> tuple[BlockedRank, ...]:
    """Return the ranks that never end an iteration, the cause first."""
    culprits = {change.rank: change.op for change in changes if isinstance(change, Hang)}
    found = []
    for track in iteration.tracks:
        rank_class = graph.job.classes[track.block.rank_class]
        never = ~np.isfinite(track.left_s)
        for at in np.flatnonzero(never.any(axis=0)):
            rank = int(track.block.ranks[at])
            event = rank_class.step.events[int(np.argmax(never[:, at]))]
            op = culprits.get(rank, event if event >= 0 else -1 - event)
            call = rank_class.step.calls[op]
            found.append(BlockedRank(rank, op, f"{call.op} at {call.site}", rank in culprits))
    return tuple(sorted(found, key=lambda one: (not one.is_culprit, one.rank)))
