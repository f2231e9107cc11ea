"""Facts on a window that diagnosis needs beside the patterns."""

from __future__ import annotations

import msgspec

from eroica.model.verdict import Cost
from eroica.model.window import Window


class WindowContext(msgspec.Struct, frozen=True, kw_only=True):
    """The window, and the workers that answered.

    Attributes:
        job: Name of the job.
        window: What was asked for.
        expected_workers: Workers of the whole job.
        missing: Global ranks that did not answer.
        left_out: Those of them that did, with what cannot be compared.
        notes: What the collector and the workers had to say.
        cost: What looking cost.
    """

    job: str
    window: Window
    expected_workers: int
    missing: tuple[int, ...] = ()
    left_out: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    cost: Cost = Cost()
