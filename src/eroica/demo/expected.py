"""What the verdict must say about each fault of the demo."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from eroica.model.verdict import Finding, Verdict, VerdictWord

Scope = Literal["some", "all", "rotating", "any", ""]


@dataclass(frozen=True)
class Expectation:
    """The right answer to one fault.

    Attributes:
        cause: Slug of the cause, empty for a healthy job.
        scope: "some" = exactly the worker that has the fault; "any" = whoever suffers most: no set is the right one.
        verdict: The verdict's word.
        file: Source file of the training whose frame the finding must show, empty where any will do.
        function: Function whose frame the finding should show; told apart, and no condition of being right.
        also: Other causes that are right, where a mechanism has two sides.
    """

    cause: str
    scope: Scope
    verdict: VerdictWord = "slow"
    file: str = ""
    function: str = ""
    also: frozenset[str] = frozenset()

    @property
    def one_worker(self) -> bool:
        """Whether the fault belongs to one worker (else to all)."""
        return self.scope == "some"

    @property
    def causes(self) -> frozenset[str]:
        """All that are right."""
        return self.also | {self.cause}


EXPECTED: dict[str, Expectation] = {
    "slow-loader": Expectation("slow-data-loading", "some", function="_read_block"),
    "gc-pause": Expectation("garbage-collection", "rotating"),
    "slow-compute": Expectation("compute-slow", "some"),
    "slow-python": Expectation("python-on-critical-path", "all", function="_score_tokens"),
    "hang": Expectation("desynchronized-collective", "some", "blocked"),
    "none": Expectation("", "", "healthy"),
}


@dataclass(frozen=True)
class Judgement:
    """Whether a verdict is right, and why in words."""

    right: bool
    words: str


def judge(verdict: Verdict, fault: str, worker: int, wanted: Expectation) -> Judgement:
    """Whether `verdict` names a fault: its word, its cause, its scope and, where it has them, its worker and its file.

    Args:
        verdict: What Eroica said.
        fault: Its name.
        worker: Global rank of the worker that had it.
        wanted: The right answer.
    """
    found, answer, injected = verdict.cause, "healthy", "nothing was injected"
    if wanted.cause:
        who = {"some": f"worker {worker}", "all": "all workers", "rotating": "changing workers", "any": "some workers"}
        answer = f"{wanted.cause} on {who[wanted.scope]}{f' in {wanted.file}' if wanted.file else ''}"
        injected = f"{fault} was injected"
    parts = judge_parts(verdict, worker, wanted)
    if all(parts[part] for part in ("verdict", "cause", "workers", "file")):
        injected = f"that is what was injected ({fault})" if wanted.cause else injected
        return Judgement(True, f"the verdict is {answer}, and {injected}")
    said: str = verdict.verdict
    if found is not None:
        about = f"{found.cause}, scope {found.scope}, workers {list(found.workers)[:8]}"
        said = f"{said}: {about}, function {found.function.name}"
    return Judgement(False, f"{injected}, so expected {answer}; the verdict is {said}")


def judge_parts(verdict: Verdict, worker: int, wanted: Expectation) -> dict[str, bool]:
    """What is right: "verdict", "cause", "workers" (and scope), "file", "function"; arguments as of `judge`."""
    found = verdict.cause
    word = verdict.verdict == wanted.verdict
    if not wanted.cause or found is None:
        right = not wanted.cause and found is None
        return {"verdict": word, "cause": right, "workers": right, "file": right, "function": right}
    return {
        "verdict": word,
        "cause": found.cause in wanted.causes,
        "workers": names_workers(found, worker, wanted),
        "file": shows(found, wanted.file),
        "function": shows(found, wanted.function),
    }


def names_workers(found: Finding, worker: int, wanted: Expectation) -> bool:
    """Whether a finding is about the right workers."""
    if wanted.scope == "any":
        return True
    return found.scope == wanted.scope and (wanted.scope != "some" or found.workers == (worker,))


def shows(found: Finding, word: str) -> bool:
    """Whether a frame has this word in it."""
    place = re.compile(rf"(?<!\w){re.escape(word)}" if word else "")
    return any(map(place.search, (found.function.name, *found.function.stack)))
