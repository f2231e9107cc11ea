"""The few lines that tell what happens in a demo: from the job's status to sentences. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from signal import SIGTERM

from eroica.demo.expected import EXPECTED, Expectation
from eroica.demo.rehearsal import MIDDLE
from eroica.model.words import milliseconds
from eroica.report.phrases import without_word
from eroica.wire.messages import JobStatus, WindowLine

STILL_S = 2.0
TOLD_STILL_S = 5.0


class Story:
    """Turns the job's status, again and again, into lines.

    Args:
        fault: Name of the fault, "none" for a healthy job.
        from_iteration: Where it begins.
        wanted: What the verdict must say; None = what the demo's table says.
    """

    def __init__(self, fault: str, from_iteration: int = MIDDLE, wanted: Expectation | None = None) -> None:
        self.fault = fault
        self.wanted = EXPECTED[fault] if wanted is None else wanted
        self.from_iteration = from_iteration
        self._told: set[str] = set()

    def tell(self, status: JobStatus) -> Iterator[str]:
        """Lines that are new."""
        for key, line in self._lines(status):
            if key not in self._told:
                self._told.add(key)
                yield line

    def _lines(self, status: JobStatus) -> Iterator[tuple[str, str]]:
        """Yield the lines that a status gives, each with a key: a line is told once for each key."""
        if status.iteration > 0:
            yield "training", "training"
        if status.mean_ms:
            yield "healthy", f"healthy, {milliseconds(status.mean_ms)} per iteration"
        if self.wanted.cause and status.iteration >= self.from_iteration:
            yield "fault", f"{self.fault} begins (iteration {self.from_iteration})"
        if standstill_s(status) >= TOLD_STILL_S:
            yield "still", still(status)
        dead = [
            (worker.ending, worker.worker.global_rank)
            for worker in status.workers  # neither at its end nor because somebody asked it to go
            if worker.ending is not None
            and worker.ending.kind != "signed-off"
            and (worker.ending.kind, worker.ending.number) != ("signal", SIGTERM)
        ]
        for ending, rank in sorted(dead, key=lambda one: -one[0].ago_s):
            how = f": {ending.kind} {ending.number}" if ending.kind in ("signal", "exit") else ""
            yield "death", f"worker {rank} is gone{how}"
        for line in status.windows:
            yield from self._window(line, status)

    def _window(self, line: WindowLine, status: JobStatus) -> Iterator[tuple[str, str]]:
        name, word = f"window {line.window_id}", line.verdict or line.phase
        if line.purpose == "baseline":
            if line.phase == "done":
                yield name, "remembered how the healthy job looks (baseline window)"
            return
        if line.purpose == "communication":
            yield name, f"communication alone says: {line.summary}"
            return
        yield name, self._opening(line, status)
        if line.purpose != "blocked" and line.phase in ("window", "patterns", "analysis"):
            span = f"iterations {line.first_iteration} to {line.last_iteration}"
            yield f"{name} window", f"capturing {span} on all workers"
            if line.phase != "window":
                yield f"{name} patterns", "summarizing and comparing"
        if line.phase in ("done", "failed", "given up", "passed", "restarted"):
            yield f"{name} end", f"{word}: {without_word(word, line.summary)}".rstrip(": ")

    def _opening(self, line: WindowLine, status: JobStatus) -> str:
        if line.purpose == "blocked" and all(worker.ended for worker in status.workers):
            return "the job has failed"
        if line.purpose == "blocked":
            return "noticed: looking at stacks, kernel states and collectives of every worker"
        return "asked for a window by hand" if line.purpose == "manual" else f"noticed: {self._rise(status)}"

    @staticmethod
    def _rise(status: JobStatus) -> str:
        if not status.mean_ms or not status.best_ms:
            return "slower than before"
        rise = 100 * (status.mean_ms / status.best_ms - 1)
        if rise < 1:
            return "slower than before for a while"
        return f"{milliseconds(status.mean_ms)} per iteration, {rise:.0f} % above the best"

    def concluded(self, status: JobStatus) -> bool:
        """Whether the job may be stopped: a verdict on the fault is there, or on the window asked for by hand."""
        if not self.wanted.cause:
            return any(line.purpose == "manual" and line.phase == "done" for line in status.windows)
        judged = [line for line in status.windows if line.verdict == self.wanted.verdict]
        if self.wanted.verdict == "blocked":
            return any(line.purpose == "blocked" for line in judged)
        asked_by_nobody = [line for line in judged if line.purpose in ("slow", "expected", "seldom", "early")]
        return any(line.last_iteration > self.from_iteration for line in asked_by_nobody)


def standstill_s(status: JobStatus) -> float:
    """How long no living worker has moved, seconds; 0 if one has just done so or none is left."""
    return min((worker.silent_s for worker in status.workers if not worker.ended), default=0.0)


def still(status: JobStatus) -> str:
    """The same in words, empty while the job moves."""
    seconds = standstill_s(status)
    return f"no worker has moved for {seconds:.0f} s" if seconds >= STILL_S else ""
