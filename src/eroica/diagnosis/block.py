"""Records of the mechanism: a block of excess time, and the facts that name it.

Array suffixes: W workers, I iterations. All times are microseconds per iteration.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.frames import HALF, NOTHING, Activity, Focus
from eroica.model.verdict import ResourceUse

Floats = NDArray[np.float64]
#: What time is compared with.
Reference = Literal["peers", "baseline", "expectation"]
Scope = Literal["some", "all", "rotating"]
FindingKind = Literal["compute", "memory", "collective", "python", "other"]
#: What kind of time a block is made of.
Cell = Literal["input", "python", "collections", "memory", "operators", "launches", "collectives", "process", "late"]
_KINDS: dict[Cell, FindingKind] = {
    "input": "python",
    "python": "python",
    "memory": "memory",
    "operators": "compute",
    "collectives": "collective",
    "process": "compute",
}


#: Factor from which a collective is called clearly more often than in the baseline window.
MANY_MORE_CALLS = 1.5


class Culprit(msgspec.Struct, frozen=True, kw_only=True):
    """The process, setting, thread, link or stage that makes the workers of a block slow.

    Attributes:
        kind: A process beside the job, a setting, the job's own helper processes, a thread with the interpreter lock,
            a link, a pipeline stage, or ("late") nobody: the sentence says to which collectives the workers come last.
        subject: Start of the sentence, with its verb; the culprit in a few words.
        ending: End of the sentence; "" for the time that the block takes.
        evidence: Sentences, one measurement each.
        next_step: Advice; "" for that of the catalog.
        resource: Its use, where it was measured itself.
        doubt: Factor on the probability that the culprit is right, 0-1.
    """

    kind: Literal["process", "setting", "helpers", "thread", "link", "stage", "late"]
    subject: str
    ending: str = ""
    evidence: tuple[str, ...] = ()
    next_step: str = ""
    resource: ResourceUse | None = None
    doubt: float = 1.0


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """A quantity that the training sets itself, in the baseline window and now: median of the workers.

    Attributes:
        what: Field of `Workload`.
        before: In the baseline window.
        now: In this one.
    """

    what: str
    before: float
    now: float

    @property
    def times(self) -> float:
        """Factor by which it has grown."""
        return self.now / self.before


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """A function, and the time in what it calls.

    Attributes:
        focus: The function.
        own_us: Time on the workers asked about, mean.
        usual_us: The same time on the reference.
    """

    focus: Focus
    own_us: float
    usual_us: float


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a block's workers and rows: everything that labels, gate and sentences read.

    Attributes:
        activity: What frames of known libraries in the named function do.
        core: Use of a core in the rows, 0-1; NaN where too few samples tell.
        allowed: Share of the time in which the thread did not stand in the run queue, 0-1.
        on_disk: Share of the time in the uninterruptible wait for a disk, 0-1.
        elsewhere: Where the named function runs if not in the training thread: "a loader process", "another thread".
        more_work: Share of the operators' time that more executions account for; NaN without a reference.
        slower: The same for longer executions.
        factor: Factor by which an execution takes longer than the reference's; NaN without one.
        has_more_data: Operators take longer as they do with larger tensors.
        held: Share of the time in which the processes were stopped or throttled, 0-1.
        stopped: The part of it in which they were stopped.
        queued: Share of the excess that is a longer wait for a core, 0-1.
        calls: Executions of the named collective per iteration.
        calls_before: The same in the baseline window; NaN without one.
        every: Iterations from one occurrence to the next; 1 if it is in each.
        each_us: Time of one occurrence; NaN if it is in each iteration.
        caller: The user's function that calls the block's operators.
        operator: Name of the operator that holds most of the block, "" for none.
        planned: What all workers have more of by the training's own plan, if that explains the block's time.
    """

    activity: Activity = ""
    core: float = np.nan
    allowed: float = 1.0
    on_disk: float = 0.0
    elsewhere: str = ""
    more_work: float = np.nan
    slower: float = np.nan
    factor: float = np.nan
    has_more_data: bool = False
    held: float = 0.0
    stopped: float = 0.0
    queued: float = 0.0
    calls: float = np.nan
    calls_before: float = np.nan
    every: float = 1.0
    each_us: float = np.nan
    caller: Caller | None = None
    operator: str = ""
    planned: tuple[Growth, ...] = ()

    @property
    def waits_for_read(self) -> bool:
        """True if rows wait for storage or a network; without a use of a core, only frames that read a socket tell."""
        if np.isnan(self.core):
            return self.activity in ("network", "service")
        is_read = self.activity in ("network", "service", "file") or self.on_disk >= 0.4  # whatever the frames say
        return is_read and min(self.core / max(self.allowed, 0.05), 1.0) < HALF  # some time every thread gets


class Block(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A coherent excess of time: whose, in which rows, when, and beyond what.

    Attributes:
        cell: Kind of its time.
        rows: Rows whose time it is (indices into the fleet's keys).
        focus: The function to name.
        workers: Workers that have it (indices); empty for a rotating one.
        scope: On some workers, on all, or on another one each time.
        reference: What it exceeds.
        removed_us: The excess in each iteration, 0 for everybody else. float64 [W, I].
        mean_us: Time of the rows on its workers.
        reference_us: The same time on the reference.
        strength: Excess in standard errors.
        agreement: Share of the excess that the others wait for, 0-1; None where nobody else is to wait.
        facts: What was measured of it.
        culprit: Who takes what its workers lack; None if nobody was seen to.
        gain: Share of the iteration that its removal saves, where the replay cannot tell; else None.
    """

    cell: Cell
    rows: tuple[int, ...] = ()
    focus: Focus = NOTHING
    workers: tuple[int, ...]
    scope: Scope
    reference: Reference
    removed_us: Floats
    mean_us: float
    reference_us: float
    strength: float
    agreement: float | None = None
    facts: Facts = Facts()
    culprit: Culprit | None = None
    gain: float | None = None

    @property
    def kind(self) -> FindingKind:
        """Kind of the named function in the verdict."""
        return _KINDS.get(self.cell, "other")

    @property
    def excess_us(self) -> float:
        """Mean excess per iteration on its workers."""
        return self.mean_us - self.reference_us

    @property
    def is_elsewhere(self) -> bool:
        """True if the named function runs on another thread or process, and the rows only wait for it."""
        return not set(self.focus.functions) <= set(self.rows)

    @property
    def is_general(self) -> bool:
        """True if everything of a kind takes longer on everybody, which specific causes bring about, too."""
        slower = self.cell == "operators" or (self.cell == "collectives" and not self.calls_more)
        return slower and self.scope == "all"

    @property
    def calls_more(self) -> bool:
        """True if the job itself calls the collective more often than in the baseline window."""
        return bool(self.facts.calls >= MANY_MORE_CALLS * self.facts.calls_before)
