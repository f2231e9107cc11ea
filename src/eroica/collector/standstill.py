"""One standstill of a job: who is silent since when, and whether anybody of them has moved."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from eroica.collector.roll import WorkerKey
from eroica.model.look import HostLooks
from eroica.model.verdict import Verdict
from eroica.model.window import Window
from eroica.wire.messages import WorkerStatus

_NAMED = 8


@dataclass
class Mark:
    """A silent worker as it was last seen.

    Attributes:
        agent_pid: Who saw it; a new agent counts the silence from its own start.
        silent_s: By that agent.
        longest_s: By any.
    """

    global_rank: int
    iteration: int
    agent_pid: int
    silent_s: float
    longest_s: float

    def moved(self, status: WorkerStatus, agent_pid: int) -> bool:
        """It went on: a new iteration, or an event since. An agent that knows no limit or past proves nothing."""
        if status.iteration > self.iteration:
            return True
        return agent_pid == self.agent_pid and not status.silent and status.silent_s < self.silent_s

    def update(self, status: WorkerStatus, agent_pid: int) -> None:
        """It stands still."""
        self.iteration = max(self.iteration, status.iteration)
        self.silent_s = max(self.silent_s, status.silent_s) if agent_pid == self.agent_pid else status.silent_s
        self.longest_s = max(self.longest_s, status.silent_s)
        self.agent_pid = agent_pid


def mark(status: WorkerStatus, agent_pid: int) -> Mark:
    """A worker that is silent now."""
    return Mark(status.worker.global_rank, status.iteration, agent_pid, status.silent_s, status.silent_s)


@dataclass
class Standstill:
    """One silence of the job, from the first silent worker to the first that moves."""

    window: Window
    asked_at: float
    deadline: float
    marks: dict[WorkerKey, Mark]
    phase: Literal["looking", "examining", "standing"] = "looking"
    looks: dict[str, HostLooks] = field(default_factory=dict)
    verdict: Verdict | None = None
    look_again_at: float = math.inf

    @property
    def who(self) -> str:
        """The silent workers, for a sentence."""
        ranks = sorted({each.global_rank for each in self.marks.values()})
        named = ", ".join(map(str, ranks[:_NAMED])) + (
            f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
        )
        return f"worker {named}" if len(ranks) == 1 else f"workers {named}"

    @property
    def lasted_s(self) -> float:
        """How long the longest silence has been."""
        return max((each.longest_s for each in self.marks.values()), default=0.0)
