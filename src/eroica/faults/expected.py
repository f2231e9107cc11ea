"""What the verdict must say about each fault: the one table that demo, tests and benchmark share."""

from __future__ import annotations

from dataclasses import dataclass

from eroica.faults.plan import FaultPlan
from eroica.model.verdict import Finding, Verdict


@dataclass(frozen=True)
class Expectation:
    """The right answer to one fault.

    Attributes:
        cause: Slug of the cause, empty for a healthy job.
        scope: "some" = exactly the worker that has the fault.
    """

    cause: str
    scope: str

    @property
    def one_worker(self) -> bool:
        """Whether the fault belongs to one worker (else to all)."""
        return self.scope == "some"


EXPECTED: dict[str, Expectation] = {
    "slow-loader": Expectation("slow-data-loading", "some"),
    "gc-pause": Expectation("garbage-collection", "rotating"),
    "slow-compute": Expectation("compute-slow", "some"),
    "slow-python": Expectation("python-on-critical-path", "all"),
    "slow-backward": Expectation("python-on-critical-path", "some"),
    "none": Expectation("", ""),
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
    """Whether `verdict` names `fault`: its cause, its scope and, where it has one, its worker.

    Args:
        verdict: What Eroica said.
        fault: A key of `EXPECTED`.
        worker: Global rank of the worker that had it.
    """
    wanted, found = EXPECTED[fault], verdict.cause
    if not wanted.cause:
        right, answer = verdict.verdict == "healthy" and found is None, "healthy"
    else:
        who = {"some": f"worker {worker}", "all": "all workers", "rotating": "changing workers"}[wanted.scope]
        right = verdict.verdict == "slow" and found is not None and _matches(found, wanted, worker)
        answer = f"{wanted.cause} on {who}"
    if right:
        injected = f"that is what was injected ({fault})" if wanted.cause else "nothing was injected"
        return Judgement(True, f"the verdict is {answer}, and {injected}")
    injected = f"{fault} was injected" if wanted.cause else "nothing was injected"
    return Judgement(False, f"{injected}, so expected {answer}; the verdict is {_said(verdict, found)}")


def _matches(found: Finding, wanted: Expectation, worker: int) -> bool:
    same = (found.cause, found.scope) == (wanted.cause, wanted.scope)
    return same and (not wanted.one_worker or found.workers == (worker,))


def _said(verdict: Verdict, found: Finding | None) -> str:
    if found is None:
        return verdict.verdict
    return f"{verdict.verdict}: {found.cause}, scope {found.scope}, workers {list(found.workers)[:8]}"
