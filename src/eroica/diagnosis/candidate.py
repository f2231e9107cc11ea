"""Candidate for a cause: the accused, their rows, and the time that it takes of each worker in each iteration."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.frames import Focus
from eroica.model.verdict import ResourceUse

Floats = NDArray[np.float64]
Reference = Literal["peers", "baseline", "expectation", "slowdown", "stages"]

FindingKind = Literal["compute", "memory", "collective", "python", "other"]


class Candidate(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One possible cause.

    Attributes:
        cause: Slug in the catalog.
        scope: On some workers, on all, or changing from iteration to iteration.
        workers: Accused workers (indices).
        functions: Rows whose time it is (indices into the fleet's keys).
        focus: The function to name.
        kind: Kind of that function.
        removed_us: Time it takes from each worker in each iteration. float64 [W, I].
        mean_us: Time in `functions` on the accused, mean.
        reference_us: The same time on the reference.
        reference: Peers, baseline window, or another measure that the accused are compared with.
        strength: Excess in standard errors.
        coverage: Share of the excess the named function holds, 0-1.
        agreement: Share of the excess that the others wait for or hide, 0-1; None where waiting tells nothing.
        is_hidden: The others are seen to wait for too little of the excess, being as late by other work meanwhile.
        least_gain: Gain from which this cause counts.
        evidence: Sentences beyond those every cause gets.
        corroboration: Independent evidence that is no time lost, in standard errors.
        hosts: Accused hosts, where it is hosts and not workers.
        subject: Subject and verb of the summary, where the general sentences do not fit.
        resource: Resource that limits the accused, where it is not read from the rows.
        held_W: Share of the time in which it holds each worker, whatever that does, its transfers too. float64 [W].
        gain: Gain of its removal, where taking time away from workers cannot express it; else None.
        sentence: The summary's first sentence, where the general ones do not fit; the evidence then stands for itself.
        next_step: Advice, where that of the catalog is too general.
        doubt: Factor on the confidence for what the window cannot tell, 0-1.
        is_latecomer: Known by the waiting of others alone, which `mean_us` is where no function is named; its strength
            allows for few iterations already.
        may_be_recording: The excess may come from the recording itself rather than from the job.
        is_remark: Worth knowing beside a cause though it costs nothing by itself.
        is_own_doing: The job itself does more of it than in the baseline window: nobody beside it has brought it about.
        is_general: Everything is slower everywhere, which other causes bring about too: it stands behind a specific
            cause unless it costs far more.
        is_one_operator: One operator takes longer while others do not: nothing that slows all of them is behind it.
        older_us: Part of the excess that the baseline window of a job that has got slower had, too.
        caller: The function of the user's that calls the operators which are named, for sentences.
        stands_for: Further causes that other rules see in the same time of the same workers.
    """

    cause: str
    scope: Literal["some", "all", "rotating"]
    workers: tuple[int, ...]
    functions: tuple[int, ...] = ()
    focus: Focus
    kind: FindingKind
    removed_us: Floats
    mean_us: float
    reference_us: float
    reference: Reference
    strength: float
    coverage: float = 1.0
    agreement: float | None = None
    is_hidden: bool = False
    least_gain: float
    evidence: tuple[str, ...] = ()
    corroboration: float = 0.0
    hosts: tuple[str, ...] = ()
    subject: str = ""
    resource: ResourceUse | None = None
    held_W: Floats | None = None
    gain: float | None = None
    sentence: str = ""
    next_step: str = ""
    doubt: float = 1.0
    is_latecomer: bool = False
    may_be_recording: bool = False
    is_remark: bool = False
    is_general: bool = False
    is_own_doing: bool = False
    is_one_operator: bool = False
    older_us: float = 0.0
    caller: str = ""
    stands_for: frozenset[str] = frozenset()

    @property
    def is_elsewhere(self) -> bool:
        """True if the named function runs on another thread or in a loader process, and its rows only wait for it."""
        return not set(self.focus.functions) <= set(self.functions)

    @property
    def excess_us(self) -> float:
        """Mean excess per iteration on the accused."""
        return self.mean_us - self.reference_us

    def told_as(self, cause: str, subject: str, evidence: tuple[str, ...]) -> Candidate:
        """Tell the same time under another cause, without the sentence and advice of the old one.

        Args:
            cause: Slug in the catalog.
            subject: Subject of the sentence, with its verb.
            evidence: Sentences added to the evidence.
        """
        return msgspec.structs.replace(
            self, cause=cause, subject=subject, evidence=(*self.evidence, *evidence), sentence="", next_step=""
        )


class Weighed(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A candidate that was considered.

    Attributes:
        candidate: The possible cause.
        gain: Gain of its removal, as a fraction of the iteration, 0-1; None where it was not worked out.
        decision: Why it is not named, a clause.
    """

    candidate: Candidate
    gain: float | None
    decision: str
