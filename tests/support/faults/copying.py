"""Writes the training that can have all faults: the demo's, and what it has beside that."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from eroica.demo import rehearsal

TRAINING = Path(__file__).with_name("training")


def write_training(directory: Path, package: str = "tinylm", rename: Mapping[str, str] | None = None) -> Path:
    """Write the training that can have all faults as one package; see `eroica.demo.rehearsal.write_training`."""
    for source in (TRAINING, rehearsal.TRAINING):
        script = rehearsal.write_training(directory, package, rename, source, "train")
    for path in (directory / package).glob("*.py"):
        text = path.read_text(encoding="utf-8")
        path.write_text(re.sub(r"\beroica\.demo\.training\.?(?=[\w ])", ".", text), encoding="utf-8")
    return script
