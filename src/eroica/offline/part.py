"""One recording among those that were examined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from eroica.model.look import Blockage
from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import Verdict
from eroica.model.window import Window


@dataclass(frozen=True)
class Part:
    """One recording and what is wrong in it.

    Attributes:
        job: Name of the job.
        label: What tells the recording from others of the job.
        window: What was recorded.
        patterns: Of its workers, in order of rank; empty for a job that stood still.
        blockage: What was seen of a job that stood still, else None.
        verdict: What was made of it.
        sources: Global rank -> trace file.
    """

    job: str
    label: str
    window: Window
    verdict: Verdict
    patterns: tuple[WorkerPattern, ...] = ()
    blockage: Blockage | None = None
    sources: Mapping[int, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The recording in a few words."""
        return f"{self.job}, {self.label}" if self.label else self.job
