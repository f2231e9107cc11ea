"""Writes the training that can have all faults."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from eroica.demo import rehearsal

TRAINING = Path(__file__).with_name("training")


def write_training(directory: Path, package: str = "tinylm", rename: Mapping[str, str] | None = None) -> Path:
    """Write the training that can have all faults; see `eroica.demo.rehearsal.write_training`."""
    return rehearsal.write_training(directory, package, rename, TRAINING, "train")
