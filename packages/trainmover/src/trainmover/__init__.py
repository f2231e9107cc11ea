"""Replaces a machine in a running PyTorch job: same role, same losses, a pause instead of a restart."""

import sys as _sys
from itertools import pairwise
from pathlib import Path as _Path
from typing import TYPE_CHECKING, Any

from trainmover.errors import TrainmoverError

if TYPE_CHECKING:
    from trainmover.data import Batches
    from trainmover.job import Job, attach


def _own_program() -> bool:
    """Whether this process is one of this package's own programs, which start faster without torch."""
    words = _sys.orig_argv
    as_module = any(one == "-m" and two.startswith("trainmover.") for one, two in pairwise(words[:4]))
    return as_module or _Path(_sys.argv[0]).name == "trainmover"


def __getattr__(name: str) -> Any:
    if name in ("attach", "Job"):
        from trainmover import job

        return getattr(job, name)
    if name == "Batches":
        from trainmover.data import Batches

        return Batches
    raise AttributeError(f"module 'trainmover' has no attribute {name!r}")


if not _own_program():
    from trainmover import group as _group

    _group.register()

__all__ = ["Batches", "Job", "TrainmoverError", "attach"]
