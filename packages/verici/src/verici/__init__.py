"""Learns from a repository's build history what its configuration must satisfy, and checks commits against it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from verici.errors import BadInput, BuildRefused, NotEnoughHistory, RepositoryError, VeriCIError

if TYPE_CHECKING:
    from verici.check import check, state_of_commit
    from verici.history import Files, Repository
    from verici.learn import Options, learn, walk_forward
    from verici.relabel import relabel
    from verici.store import Model, load_model, save_model

__version__ = "0.1.0"

__all__ = [
    "BadInput", "BuildRefused", "Files", "Model", "NotEnoughHistory", "Options", "Repository", "RepositoryError",
    "VeriCIError", "check", "learn", "load_model", "relabel", "save_model", "state_of_commit", "walk_forward",
]  # fmt: skip
_HOMES = {
    "history": ("Files", "Repository"), "learn": ("Options", "learn", "walk_forward"), "relabel": ("relabel",),
    "store": ("Model", "load_model", "save_model"), "check": ("check", "state_of_commit"),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a name where it is first used: the learner needs numpy, a check does not."""
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'verici' has no attribute {name!r}")
    return getattr(import_module(f"verici.{home}"), name)
