"""What the verdict must say about each fault: the one table that demo, tests and benchmark share."""

from __future__ import annotations

import re
from dataclasses import dataclass

from eroica.faults.plan import FaultPlan
from eroica.model.verdict import Finding, Verdict, VerdictWord


@dataclass(frozen=True)
class Expectation:
    """The right answer to one fault.

    Attributes:
        cause: Slug of the cause, empty for a healthy job.
        scope: "some" = exactly the worker that has the fault.
        verdict: The verdict's word.
        file: Source file of the training whose frame the finding must show, empty where any will do.
        ends_job: The job ends with it, by itself.
    """

    cause: str
    scope: str
    verdict: VerdictWord = "slow"
    file: str = ""
    ends_job: bool = False

    @property
    def one_worker(self) -> bool:
        """Whether the fault belongs to one worker (else to all)."""
        return self.scope == "some"

    @property
    def blocked(self) -> bool:
        """Whether the job does not move any more."""
        return self.verdict == "blocked"


EXPECTED: dict[str, Expectation] = {
    "slow-loader": Expectation("slow-data-loading", "some"),
    "gc-pause": Expectation("garbage-collection", "rotating"),
    "slow-compute": Expectation("compute-slow", "some"),
    "slow-python": Expectation("python-on-critical-path", "all"),
    "slow-backward": Expectation("python-on-critical-path", "some"),
    "hang": Expectation("desynchronized-collective", "some", "blocked"),
    "hang-queue": Expectation("blocked-in-user-code", "some", "blocked", "reading.py"),
    "hang-lock": Expectation("blocked-in-user-code", "some", "blocked", "bookkeeping.py"),
    "hang-interpreter-lock": Expectation("held-interpreter-lock", "some", "blocked", "bookkeeping.py"),
    "hang-storage": Expectation("blocked-in-user-code", "some", "blocked", "reading.py"),
    "dead-worker": Expectation("dead-worker", "some", "blocked", ends_job=True),
    "stopped-worker": Expectation("dead-worker", "some", "blocked"),
    "none": Expectation("", "", "healthy"),
}


@dataclass(frozen=True)
class Judgement:
    """Whether a verdict is right, and why in words."""

    right: bool
    words: str


def demo_plan(fault: str, worker: int, from_iteration: int) -> FaultPlan:
    """The plan of the demo's `fault`: on `worker` alone where it is a fault of one worker."""
    return FaultPlan(fault, worker if EXPECTED[fault].one_worker else None, from_iteration)


def judge(verdict: Verdict, fault: str, worker: int) -> Judgement:
    """Whether `verdict` names `fault`: its word, its cause, its scope and, where it has them, its worker and its file.

    Args:
        verdict: What Eroica said.
        fault: A key of `EXPECTED`.
        worker: Global rank of the worker that had it.
    """
    wanted, found = EXPECTED[fault], verdict.cause
    right = verdict.verdict == wanted.verdict
    if not wanted.cause:
        right, answer = right and found is None, "healthy"
    else:
        right = right and found is not None and _matches(found, wanted, worker)
        answer = _answer(wanted, worker)
    if right:
        injected = f"that is what was injected ({fault})" if wanted.cause else "nothing was injected"
        return Judgement(True, f"the verdict is {answer}, and {injected}")
    injected = f"{fault} was injected" if wanted.cause else "nothing was injected"
    return Judgement(False, f"{injected}, so expected {answer}; the verdict is {_said(verdict, found)}")


def _answer(wanted: Expectation, worker: int) -> str:
    who = {"some": f"worker {worker}", "all": "all workers", "rotating": "changing workers"}[wanted.scope]
    where = f" in {wanted.file}" if wanted.file else ""
    return f"{wanted.cause} on {who}{where}"


def _matches(found: Finding, wanted: Expectation, worker: int) -> bool:
    same = (found.cause, found.scope) == (wanted.cause, wanted.scope)
    place = re.compile(rf"(?<!\w){re.escape(wanted.file)}" if wanted.file else "")
    there = any(map(place.search, (found.function.name, *found.function.stack)))
    return same and there and (not wanted.one_worker or found.workers == (worker,))


def _said(verdict: Verdict, found: Finding | None) -> str:
    if found is None:
        return verdict.verdict
    about = f"{found.cause}, scope {found.scope}, workers {list(found.workers)[:8]}"
    return f"{verdict.verdict}: {about}, function {found.function.name}"
