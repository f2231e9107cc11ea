"""Two runs side by side, function by function: the output record of `eroica diff`."""

from __future__ import annotations

from typing import Literal

import msgspec

from eroica.model.pattern import FunctionKind, Phase
from eroica.model.verdict import IterationTimes

SCHEMA_VERSION = 1

ComparisonWord = Literal["regression", "improvement", "equal", "undetermined"]
ChangeReason = Literal["more-work", "slower", "outside-contention", "new", "gone", "less-work", "faster", "waiting"]


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two runs.

    Attributes:
        name: Path or name, as given.
        job: Name of the job.
        workers: Global ranks that reported.
        iterations: Iterations that count.
        iteration_ms: Mean iteration.
        notes: What is missing.
    """

    name: str
    job: str = ""
    workers: tuple[int, ...] = ()
    iterations: int = 0
    iteration_ms: float = 0.0
    notes: tuple[str, ...] = ()


class FunctionChange(msgspec.Struct, frozen=True, kw_only=True):
    """One function that differs.

    Attributes:
        order: Counts from 1: the largest change first, waits after everything else.
        name: Function, operator or kernel; "12 operators" where so many changed alike and are told as one.
        kind: Class of the function.
        phase: Part of the iteration.
        stack: For Python: outermost frame first.
        workers: Global ranks on which it changed.
        reason: What kind of change: more (less) executions at the same length are more (less) work; the same number,
            longer at a lower utilization, is "slower"; the same number, longer at equal utilization, is contention from
            outside if at least three operators (or all there are) got longer alike, else "slower", as without sampled
            utilization; a collective that is longer because its members come at different times is "waiting".
        change_ms: Critical time per iteration, after less before, mean over the workers.
        before_ms: Critical time per iteration before.
        after_ms: The same after.
        share: The change as a fraction of the iteration before.
        count_before: Executions per iteration.
        count_after: The same after.
        mean_before_ms: Mean length of one execution.
        mean_after_ms: The same after.
        utilization_before: μ of its resource, None if it was never sampled.
        utilization_after: The same after.
        confidence: Probability that this is no noise, 0-1.
        text: The sentence for people.
        functions: How many functions this row stands for.
    """

    order: int
    name: str
    kind: FunctionKind
    phase: Phase
    stack: tuple[str, ...] = ()
    workers: tuple[int, ...] = ()
    reason: ChangeReason
    change_ms: float
    before_ms: float
    after_ms: float
    share: float
    count_before: float = 0.0
    count_after: float = 0.0
    mean_before_ms: float = 0.0
    mean_after_ms: float = 0.0
    utilization_before: float | None = None
    utilization_after: float | None = None
    confidence: float = 0.0
    text: str = ""
    functions: int = 1


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What got slower or faster from `before` to `after`.

    Attributes:
        comparison: The word: "regression" where iterations, or a function that is no mere wait, got slower, and nothing
            else on the same workers makes up for it; "improvement" where nothing did, and iterations or a function
            got faster in the same way; "undetermined" where too little was captured to tell a change from noise:
            iterations look longer or shorter by `min_gain` or more, but not beyond their noise, and not plainly by
            chance.
        summary: One sentence a person can act on.
        before: The first run.
        after: The second one.
        iteration: Mean iteration of both; the first one is the baseline.
        changes: In order of their numbers.
        explained: Share of the iteration's change that the changes on one worker add up to (the worker on which they do
            most), waits left out; None where iterations did not change.
        notes: What limits all this.
    """

    schema_version: int = SCHEMA_VERSION
    eroica_version: str = ""
    comparison: ComparisonWord
    summary: str
    before: Side
    after: Side
    iteration: IterationTimes = IterationTimes()
    changes: tuple[FunctionChange, ...] = ()
    explained: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """Exit status of `eroica diff`: 0 no regression, 3 a regression, 4 undetermined."""
        return {"equal": 0, "improvement": 0, "regression": 3, "undetermined": 4}[self.comparison]

    def to_json(self) -> bytes:
        """The record as indented JSON with a newline at the end."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"
