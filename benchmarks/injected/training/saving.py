"""What a training writes while it runs: its state into files, its numbers to a server that keeps them.

Nothing here runs unless somebody builds it in; see `PARTS` of `parts`.
"""

from __future__ import annotations

import itertools
import logging
import logging.handlers
import os
import tempfile
from pathlib import Path
from typing import Any

_NUMBERS = itertools.count()


class CheckpointWriter:
    """Writes a state of some size every few steps and waits until it is on disk.

    Args:
        megabytes: Size of the state.
        every: Steps between two writes.
    """

    def __init__(self, megabytes: float, every: int) -> None:
        import torch

        self.every = every
        self.save = torch.save
        self.state = {"moments": torch.zeros(int(megabytes * 250_000))}
        self.directory = tempfile.TemporaryDirectory(prefix="checkpoint-")

    def __call__(self, step: int) -> None:
        """After each step."""
        if step % self.every == 0:
            self.save_state(step)

    def save_state(self, step: int) -> None:
        """Write it under another name first, so that there is always a whole one."""
        part = Path(self.directory.name) / "latest.part"
        with part.open("wb") as file:
            self.save({"step": step, **self.state}, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(part.with_name("latest.pt"))

    def close(self) -> None:
        """Remove what was written."""
        self.directory.cleanup()


class MetricsLog:
    """Logs a line of numbers after each step; a handler sends it to a server on this host.

    Args:
        port: Where that server listens.
    """

    def __init__(self, port: int) -> None:
        self.logger = logging.getLogger(f"metrics.{next(_NUMBERS)}")
        self.logger.setLevel(logging.INFO)
        self.logger.propagate = False
        self.handler = logging.handlers.HTTPHandler(f"127.0.0.1:{port}", "/lines", method="POST")
        self.logger.addHandler(self.handler)

    def __call__(self, step: int) -> None:
        """After each step."""
        self.log_step(step)

    def log_step(self, step: int) -> None:
        """One line."""
        self.logger.info("step %d done", step)

    def close(self) -> None:
        """Take the handler away."""
        self.logger.removeHandler(self.handler)
        self.handler.close()


class WeightHistory:
    """Keeps copies of a large buffer, new ones after each step.

    Args:
        megabytes: Size of the buffer.
        copies: How many are made.
    """

    def __init__(self, megabytes: float, copies: int) -> None:
        import torch

        self.weights = torch.zeros(int(megabytes * 250_000))
        self.copies = copies
        self.kept: list[Any] = []

    def __call__(self, _step: int) -> None:
        """After each step."""
        self.keep_weights()

    def keep_weights(self) -> None:
        """Throw the old copies away, make new ones."""
        self.kept = [self.weights.clone() for _ in range(self.copies)]
