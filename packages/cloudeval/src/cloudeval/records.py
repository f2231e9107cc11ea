"""The records that cross process borders and files: verdicts, results, answers."""

import msgspec

#: Outcomes of a test. A machine's failure and an answer that no runner covers are never counted as wrong.
RIGHT, WRONG, UNJUDGED = "right", "wrong", "unjudged"
#: Source, problem, style, seed and sample: unique within a results file.
Key = tuple[str, str, str, int, int]


class Verdict(msgspec.Struct, frozen=True):
    """The outcome of a test of one answer.

    Attributes:
        outcome: `right`, `wrong` or `unjudged`.
        how: What decided: `yaml`, `admission`, `behaviour`, `semantics`, `hostile`, or `runner` for an unjudged answer.
        reason: Why it failed or could not be judged, in one sentence with its path.
        seconds: How long the test took, without waiting for a worker.
        attempts: How often the test was run; failures of the machine are repeated.
        faults: Every reason that admission found.
    """

    outcome: str
    how: str
    reason: str = ""
    seconds: float = 0.0
    attempts: int = 1
    faults: list[str] = []

    @property
    def passed(self) -> bool:
        """True for a right answer."""
        return self.outcome == RIGHT


class Result(msgspec.Struct, frozen=True):
    """One line of a results file: an answer of a model, its metrics and its verdict. Question texts are not in it."""

    problem: str
    group: str
    style: str
    seed: int
    sample: int
    source: str
    answer: str
    cleaned_by: str
    answer_class: int
    metrics: dict[str, float]
    verdict: Verdict
    tokens: dict[str, int] = {}
    cost: float = 0.0

    @property
    def key(self) -> Key:
        """The key of the result within its file."""
        return (self.source, self.problem, self.style, self.seed, self.sample)
