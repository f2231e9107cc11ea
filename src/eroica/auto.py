"""`import eroica.auto`: watch this training, as one added line. Never raises."""

from __future__ import annotations

import os

__all__: list[str] = []

try:
    from eroica.worker.attach import watch

    watch()
except Exception:  # whatever keeps us from watching, the training goes on
    if os.environ.get("EROICA_WORKER_FAILURES_RAISE") == "1":
        raise
