"""Learns from a repository's build history what its configuration must satisfy, and checks commits against it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verici.check import check, state_of_commit
from verici.errors import BadInput, BuildRefused, NotEnoughHistory, RepositoryError, VeriCIError
from verici.history import Files, Repository
from verici.relabel import relabel
from verici.store import Model, load_model, save_model

if TYPE_CHECKING:
    from verici.learner import Options, learn, walk_forward

__version__ = "0.1.0"

__all__ = [
    "BadInput", "BuildRefused", "Files", "Model", "NotEnoughHistory", "Options", "Repository", "RepositoryError",
    "VeriCIError", "check", "learn", "load_model", "relabel", "save_model", "state_of_commit", "walk_forward",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import the learner where it is first used: it needs numpy, a check does not."""
    if name not in ("Options", "learn", "walk_forward"):
        raise AttributeError(f"module 'verici' has no attribute {name!r}")
    from verici import learner

    return getattr(learner, name)
