"""One standstill of a job: the silent workers, since when they are silent, and whether any of them has moved."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from eroica.collector.participants import WorkerKey, key_of
from eroica.model.look import HostLooks
from eroica.model.verdict import Verdict
from eroica.model.window import Window
from eroica.wire.messages import JobStatus, WorkerStatus

Movement = Literal["none", "gone", "on"]
#: Silent workers that a sentence lists.
_NAMED = 8
#: Hosts without looks that an examination is told the reason of.
_MISSING_NAMED = 50
#: Who signs off, or is watched no more, has not gone on.
_NOT_TRAINING = ("finished", "failed")


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
        """Return whether the worker went on: a new iteration, or an event since.

        The report of an agent that knows no limit or past proves nothing.
        """
        if status.iteration > self.iteration:
            return True
        return agent_pid == self.agent_pid and not status.silent and status.silent_s < self.silent_s

    def update(self, status: WorkerStatus, agent_pid: int) -> None:
        """Take in another report of a worker that stands still."""
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
        """Longest silence so far, seconds."""
        return max((each.longest_s for each in self.marks.values()), default=0.0)

    def in_words(self, status: JobStatus) -> tuple[str, str]:
        """Phase and message for people."""
        if self.phase == "looking":
            return "looking", f"{self.who} silent ({self.window.reason}): looking at all workers"
        if self.phase == "examining":
            return "looking", f"{self.who} silent: comparing the looks at {len(status.workers)} workers"
        if self.verdict is None:
            return "silent", f"{self.who} silent ({self.window.reason})"
        summary = self.verdict.summary.removeprefix("Blocked: ")
        return self.verdict.verdict, f"standing still at iteration {status.iteration}: {summary}"

    def all_looks(self, missing: Sequence[str], silent: Sequence[str]) -> tuple[HostLooks, ...]:
        """Return the looks of each host, and a note for each host that handed in none.

        Args:
            missing: Hosts that are waited for no longer.
            silent: Hosts whose agent does not report.
        """
        excuses = [(host, "its agent did not hand in its looks in time") for host in missing]
        excuses += [(host, "its agent does not report any more") for host in silent]
        return (
            *(self.looks[host] for host in sorted(self.looks)),
            *(
                HostLooks(look_id=self.window.window_id, host=host, notes=(f"{host}: {why}",))
                for host, why in excuses[:_MISSING_NAMED]
            ),
        )

    def follow(self, workers: Iterable[WorkerStatus], agent_pid: int) -> Movement:
        """Notice workers that went on ("on", at the first) or are gone; add workers that fell silent, too.

        Args:
            workers: Of one host, as its agent says now.
            agent_pid: Of that agent.
        """
        movement: Movement = "none"
        for status in workers:
            key = key_of(status)
            known = self.marks.get(key)
            if status.ended or status.state in _NOT_TRAINING:
                movement = movement if known is None else "gone"
            elif known is None:
                if status.silent:
                    self.marks[key] = mark(status, agent_pid)
            elif known.moved(status, agent_pid):
                return "on"
            else:
                known.update(status, agent_pid)
        return movement

    def holds_any(self, living: Iterable[WorkerStatus]) -> bool:
        """Some silent worker is still there, and trains."""
        return any(key_of(status) in self.marks and status.state not in _NOT_TRAINING for status in living)
