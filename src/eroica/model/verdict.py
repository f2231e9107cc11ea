"""The one output record; every view (terminal, JSON, HTML, metrics) is drawn from it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

SCHEMA_VERSION = 1
#: Name of the function where workers are late and nothing says why.
NO_FUNCTION = "no function"
#: What became of a hypothesis that is a cause of the verdict.
NAMED = "named"
#: What became of one whose time in the healthy job nobody has measured; it may be all of the slowdown.
UNMEASURED = "how long it took at the best pace is not known"

VerdictWord = Literal["slow", "blocked", "healthy", "undetermined"]


class VerdictWindow(msgspec.Struct, frozen=True, kw_only=True):
    """What the verdict was read from.

    Attributes:
        kind: Iterations of a running job, a look at one that stands still, or recorded traces.
        first_iteration: First captured iteration.
        last_iteration: Exclusive end.
        duration_s: Seconds of the longest pattern.
        reason: Why it was opened, one clause.
        compared_with: Number of the baseline window that it was given to compare with, trusted to show the healthy job;
            0 for none. None where there is no such window to know of, or nobody has noted it.
        doubted: Number of a baseline window that it was compared with though the job may not have been healthy in it,
            for nothing was found without; 0 for none. `compared_with` is 0 then.
    """

    kind: Literal["iterations", "blocked", "trace"]
    first_iteration: int | None = None
    last_iteration: int | None = None
    duration_s: float = 0.0
    reason: str = ""
    compared_with: int | None = None
    doubted: int = 0


class IterationTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Mean iteration at best, before and now, milliseconds; None where unknown. Every sentence and page tells these.

    Attributes:
        best_ms: Of the job's best stretch, outside of windows.
        baseline_ms: Of the healthy window, else of the job's best stretch.
        current_ms: Of the window; of the slowest worker, where each worker has iterations of its own.
        rest_ms: Time that iterations lost against their reference and no cause explains; 0 where that is noise. It
            counts all iterations of both, the slowest too.
    """

    best_ms: float | None = None
    baseline_ms: float | None = None
    current_ms: float | None = None
    rest_ms: float | None = None


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """Who was heard, who was not (global ranks), and what else the reader should know."""

    workers_expected: int
    workers_reported: int
    missing: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


class FindingFunction(msgspec.Struct, frozen=True, kw_only=True):
    """The function a finding is about; `stack` runs from the outermost frame to the leaf."""

    name: str
    kind: Literal["compute", "memory", "collective", "python", "other"]
    stack: tuple[str, ...] = ()


class ResourceUse(msgspec.Struct, frozen=True, kw_only=True):
    """Mean utilization of the bounding resource on the named workers and on their peers."""

    name: str
    mean: float
    peers_mean: float | None = None
    unit: str = "fraction"


class PatternSummary(msgspec.Struct, frozen=True, kw_only=True):
    """(β, μ, σ) of the named workers, of their peers, and the expected range of β."""

    beta: float
    mu: float
    sigma: float
    peers: dict[str, float] | None = None
    expected: dict[str, tuple[float, float]] = {}


class DurationSummary(msgspec.Struct, frozen=True, kw_only=True):
    """How long and how often, against peers (or, for job-wide causes, the job's own baseline).

    Attributes:
        is_sampled: The counts are of runs of stack samples that show the function, not of calls.
    """

    per_iteration_ms: float
    peers_ms: float | None = None
    mean_ms: float = 0.0
    count_per_iteration: float = 0.0
    peers_count: float | None = None
    is_sampled: bool = False


class Recurrence(msgspec.Struct, frozen=True, kw_only=True):
    """What the history of a job's windows says of a cause.

    Attributes:
        kind: "one-off" (seen in one window, others looked and saw nothing of it), "recurring" (the same workers again),
            "rotating" (the same cause on other workers each time), "worsening" (recurring, and its gain grows),
            "single" (there was only one window to see it in).
        windows: Window ids in which it was found, rising.
        looked: Windows that could have shown it.
        gains: Its gain in each of `windows`; None where unknown.
        costs_ms: Milliseconds of each iteration that it costs in each of `windows`; None where unknown.
        growth_ms_per_hour: Of one that is worsening: by how much its cost grows in an hour of training; else None.
    """

    kind: Literal["single", "one-off", "recurring", "rotating", "worsening"]
    windows: tuple[int, ...]
    looked: int
    gains: tuple[float | None, ...] = ()
    costs_ms: tuple[float | None, ...] = ()
    growth_ms_per_hour: float | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One cause or symptom. See docs/how-it-works.md for how each number is made."""

    order: int
    role: Literal["cause", "symptom"]
    cause: str
    function: FindingFunction
    workers: tuple[int, ...]
    scope: Literal["some", "all", "rotating"]
    hosts: tuple[str, ...] = ()
    resource: ResourceUse | None = None
    pattern: PatternSummary | None = None
    duration: DurationSummary | None = None
    gain: float | None = None
    confidence: float = 0.0
    explains: tuple[int, ...] = ()
    evidence: tuple[str, ...] = ()
    next_step: str = ""
    recurrence: Recurrence | None = None


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What looking cost the job and its hosts.

    Attributes:
        window_stall_s: Of the worker that it held up most.
        summarize_s: On the worker that took longest.
        localize_s: From patterns to verdict.
        raw_bytes: What all workers recorded.
        pattern_bytes: Size of all patterns on the wire; of more than 256 workers an estimate from a sample of them.
        trigger_to_verdict_s: From the reason to look until the verdict stood.
        engine: Where the analysis ran its steps of many parts: "local" or "ray"; "" where nothing was localized.
        engine_why: Why there.
    """

    window_stall_s: float = 0.0
    summarize_s: float = 0.0
    localize_s: float = 0.0
    raw_bytes: int = 0
    pattern_bytes: int = 0
    trigger_to_verdict_s: float | None = None
    engine: str = ""
    engine_why: str = ""


class WaitEdge(msgspec.Struct, frozen=True, kw_only=True):
    """One worker waits for another.

    Attributes:
        waiter: Global rank.
        on: Global rank of the one who came last to what both take part in.
        per_iteration_ms: Critical waiting per iteration.
    """

    waiter: int
    on: int
    per_iteration_ms: float


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """Who waits for whom in the window's collectives, sends and receives; what blame is read from.

    Blame is conserved: what is laid at workers and what is withheld add up to `total_ms`, as far as all are listed.

    Attributes:
        total_ms: Critical waiting per iteration, summed over workers: all of it in executions that pair; in broadcasts,
            reduces and the like that of executions which show for whom.
        withheld_ms: The part that nobody is blamed for, and why the sum of `blamed_ms` may be less.
        waited_ms: Global rank -> its own critical waiting per iteration; the largest ones only.
        blamed_ms: Global rank -> waiting of others per iteration laid at it, chains followed; the largest ones only.
        edges: Who waited directly for whom, before chains are followed; the largest ones only, in falling order. Where
            there are more than can be listed, those for one worker do not crowd out all others.
        workers: Workers that this was read from.
        standstill: The job stands still: nobody knows how long waits will last, so all times are 0, and only who waits
            for whom is told.
    """

    total_ms: float
    withheld_ms: float
    waited_ms: dict[int, float] = {}
    blamed_ms: dict[int, float] = {}
    edges: tuple[WaitEdge, ...] = ()
    workers: int = 0
    standstill: bool = False


class Hypothesis(msgspec.Struct, frozen=True, kw_only=True):
    """A possible cause that was considered, and what became of it.

    Attributes:
        cause: Slug in the catalog.
        function: The function that it would name, or `NO_FUNCTION`.
        workers: Who would be accused (global ranks); empty where it is another one each time.
        scope: On some workers, on all, or changing from iteration to iteration.
        gain: Fraction of the iteration that its removal would save, 0-1; None where that was not worked out.
        decision: "named", or why it is not, with what took its place.
        met: Signs that speak for it.
        missing: Signs that it should have and has not.
        unknown: Signs that this window cannot tell: what would settle it.
    """

    cause: str
    function: str
    workers: tuple[int, ...]
    scope: Literal["some", "all", "rotating"]
    gain: float | None
    decision: str
    met: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


class BreakdownItem(msgspec.Struct, frozen=True, kw_only=True):
    """A function that takes much of an iteration. Nothing says that it should take less.

    Attributes:
        workers: Global ranks that spend at least half as much time in it as the one that spends most.
        phase: "input", "forward", "backward", "optimizer" or "other".
        caller: The user's function that calls a collective; "" where no sample tells.
        per_iteration_ms: Critical time per iteration, mean of these workers.
        most_gain: Upper bound of the share of an iteration that its removal would save, 0-1.
    """

    function: FindingFunction
    workers: tuple[int, ...]
    phase: str
    caller: str
    per_iteration_ms: float
    most_gain: float


class Breakdown(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of an iteration in a window in which no cause was found.

    Attributes:
        iteration_ms: Mean iteration of the window.
        shares: Part -> its share of the critical path, 0-1, mean of all workers; they add up to 1.
        items: The three functions whose removal would gain most.
    """

    iteration_ms: float
    shares: dict[str, float]
    items: tuple[BreakdownItem, ...] = ()


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one window, or on a whole job.

    `considered` holds what was named first, what was not by falling gain; empty where nothing was weighed. `found_by`
    says whether it rests on a window (or looks, or traces), or on communication alone (the extra `c4d`); then
    `communication` has places and matrix. `breakdown` is of healthy and undetermined verdicts on windows.
    """

    eroica_version: str
    job: str
    verdict: VerdictWord
    summary: str
    window: VerdictWindow | None
    iteration: IterationTimes
    coverage: Coverage
    findings: tuple[Finding, ...] = ()
    cost: Cost = Cost()
    waits: Waits | None = None
    considered: tuple[Hypothesis, ...] = ()
    breakdown: Breakdown | None = None
    schema_version: int = SCHEMA_VERSION
    found_by: Literal["window", "communication"] = "window"
    communication: dict[str, Any] | None = None

    def __str__(self) -> str:
        """The word and the sentence."""
        return f"{self.verdict.upper()}: {self.summary}"

    def __repr__(self) -> str:
        """Short enough for a prompt; `to_dict` has everything."""
        return f"<Verdict {self.verdict}: {self.summary!r}, {len(self.findings)} findings>"

    @property
    def cause(self) -> Finding | None:
        """The first finding that is a cause, None if there is none."""
        return next((finding for finding in self.findings if finding.role == "cause"), None)

    @property
    def exit_code(self) -> int:
        """Exit status of commands that diagnose: 0 healthy, 3 a cause was found, 4 undetermined."""
        return {"healthy": 0, "slow": 3, "blocked": 3, "undetermined": 4}[self.verdict]

    def to_json(self) -> bytes:
        """Indented JSON, the form of `--json FILE`."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"

    @classmethod
    def from_json(cls, text: bytes | str) -> Verdict:
        """Read what `to_json` wrote.

        Raises:
            msgspec.ValidationError: The text is JSON but no verdict of this schema.
            msgspec.DecodeError: The text is no JSON.
        """
        return msgspec.json.decode(text, type=cls)

    def to_dict(self) -> dict[str, Any]:
        """Plain built-in containers, for notebooks and other tools."""
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]
