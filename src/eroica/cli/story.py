"""The few lines that tell what happens in a demo: from the job's status to sentences. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from signal import SIGTERM

from eroica.demo.expected import EXPECTED, Expectation
from eroica.demo.rehearsal import MIDDLE
from eroica.model.words import milliseconds
from eroica.wire.messages import JobStatus, WindowLine, WorkerStatus

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
        pace = f", {milliseconds(status.mean_ms)} per iteration" if status.mean_ms else ""
        if status.iteration > 0:
            yield from self._once("training", "training")
        if status.mean_ms:
            yield from self._once("healthy", f"healthy{pace}")
        if self.wanted.cause and status.iteration >= self.from_iteration:
            yield from self._once("fault", f"{self.fault} begins (iteration {self.from_iteration})")
        if standstill_s(status) >= TOLD_STILL_S:
            yield from self._once("still", still(status))
        for worker in sorted(filter(_died, status.workers), key=_gone_s, reverse=True):
            yield from self._once("death", f"worker {worker.worker.global_rank} is gone{_how(worker)}")
        for line in status.windows:
            yield from self._tell_window(line, status)

    def _tell_window(self, line: WindowLine, status: JobStatus) -> Iterator[str]:
        name = f"window {line.window_id}"
        if line.purpose == "baseline":
            if line.phase == "done":
                yield from self._once(name, "remembered how the healthy job looks (baseline window)")
            return
        if line.purpose == "communication":
            yield from self._once(name, f"communication alone says: {line.summary}")
            return
        yield from self._once(name, self._opening(line, status))
        if line.purpose != "blocked":
            yield from self._tell_capture(name, line)
        if line.phase in ("done", "failed", "given up", "passed", "restarted"):
            yield from self._once(f"{name} end", _end_of(line))

    def _tell_capture(self, name: str, line: WindowLine) -> Iterator[str]:
        if line.phase in ("window", "patterns", "analysis"):
            span = f"capturing iterations {line.first_iteration} to {line.last_iteration} on all workers"
            yield from self._once(f"{name} window", span)
        if line.phase in ("patterns", "analysis"):
            yield from self._once(f"{name} patterns", "summarizing and comparing")

    def _opening(self, line: WindowLine, status: JobStatus) -> str:
        if line.purpose == "blocked" and all(worker.ended for worker in status.workers):
            return "the job has failed"
        if line.purpose == "blocked":
            return "noticed: looking at stacks, kernel states and collectives of every worker"
        if line.purpose == "manual" and any(one.purpose == "communication" for one in status.windows):
            return "a window opens, to see what it is"
        return "asked for a window by hand" if line.purpose == "manual" else f"noticed: {self._rise(status)}"

    @staticmethod
    def _rise(status: JobStatus) -> str:
        if not status.mean_ms or not status.best_ms:
            return "slower than before"
        rise = 100 * (status.mean_ms / status.best_ms - 1)
        if rise < 1:
            return "slower than before for a while"
        return f"{milliseconds(status.mean_ms)} per iteration, {rise:.0f} % above the best"

    def _once(self, key: str, line: str) -> Iterator[str]:
        if key not in self._told:
            self._told.add(key)
            yield line

    def concluded(self, status: JobStatus) -> bool:
        """Whether the job may be stopped: a verdict on the fault is there, or on the window asked for by hand."""
        if not self.wanted.cause:
            return any(line.purpose == "manual" and line.phase == "done" for line in status.windows)
        return any(self._is_answer(line) for line in status.windows)

    def _is_answer(self, line: WindowLine) -> bool:
        wanted = self.wanted.verdict
        if wanted == "blocked":
            return line.purpose == "blocked" and line.verdict == "blocked"
        asked_by_nobody = line.purpose in ("slow", "expected", "seldom", "early")
        return asked_by_nobody and line.verdict == wanted and line.last_iteration > self.from_iteration


def standstill_s(status: JobStatus) -> float:
    """How long no living worker has moved, seconds; 0 if one has just done so or none is left."""
    return min((worker.silent_s for worker in status.workers if not worker.ended), default=0.0)


def still(status: JobStatus) -> str:
    """The same in words, empty while the job moves."""
    seconds = standstill_s(status)
    return f"no worker has moved for {seconds:.0f} s" if seconds >= STILL_S else ""


def _end_of(line: WindowLine) -> str:
    """Verdict or phase, and the sentence, which may begin with it."""
    word = line.verdict or line.phase
    if line.summary.lower().startswith(f"{word}:"):
        return line.summary
    return f"{word}: {line.summary}".rstrip(": ")


def _died(worker: WorkerStatus) -> bool:
    """Neither at its end nor because somebody (a launcher, after a failure) asked it to go."""
    ending = worker.ending
    return ending is not None and ending.kind != "signed-off" and (ending.kind, ending.number) != ("signal", SIGTERM)


def _gone_s(worker: WorkerStatus) -> float:
    return worker.ending.ago_s if worker.ending is not None else 0.0


def _how(worker: WorkerStatus) -> str:
    ending = worker.ending
    if ending is None or ending.kind not in ("signal", "exit"):
        return ""
    return f": {ending.kind} {ending.number}"
