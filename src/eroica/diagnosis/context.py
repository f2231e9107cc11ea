"""Facts on a window that diagnosis needs beside the patterns."""

from __future__ import annotations

import msgspec

from eroica.model.verdict import Cost
from eroica.model.window import Window


class WindowContext(msgspec.Struct, frozen=True, kw_only=True):
    """The window, and the workers that answered.

    Attributes:
        job: Name of the job.
        window: The window that was ordered.
        expected_workers: Workers of the whole job.
        missing: Global ranks that did not answer.
        left_out: Ranks among them that answered with patterns that cannot be compared.
        notes: Notes of the collector and the workers.
        is_past_doubted: The job may not have been healthy in the baseline window: no sentence says that it was.
        cost: Cost of the window to the job.
    """

    job: str
    window: Window
    expected_workers: int
    missing: tuple[int, ...] = ()
    left_out: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    is_past_doubted: bool = False
    cost: Cost = Cost()
