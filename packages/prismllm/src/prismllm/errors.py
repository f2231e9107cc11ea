"""The exceptions of this package, and the line of the script that they name."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_TORCH = str(Path(str(find_spec("torch").origin)).parent)  # type: ignore[union-attr]
_HERE = str(Path(__file__).parent)


class PrismError(Exception):
    """Base of all errors that a user can put right."""


class ScriptError(PrismError):
    """The training script failed, stopped before enough iterations, or hung."""


class SlicingError(PrismError):
    """A communication call that cannot be carried out in a slice.

    Attributes:
        needs: Ranks that would have to run in the same slice; empty if that does not help.
    """

    needs: tuple[int, ...] = ()


class DivergenceError(PrismError):
    """Iterations of a rank, or ranks that should be alike, differ."""


class GraphError(PrismError):
    """Calls of several ranks do not fit together."""


class DeadlockError(GraphError):
    """Ranks wait for each other in a cycle."""


class UnsentValueError(PrismError):
    """Control flow that read a value which came from zeros."""


class InputError(PrismError):
    """A file or an option that cannot be used."""


def call_site() -> str:
    """Return the innermost line that is neither torch's nor this package's, "train.py:31"."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith("<") and not name.startswith(_TORCH) and (
            not name.startswith(_HERE) or "/examples/" in name
        ):  # fmt: skip
            if Path(name).name == "runpy.py":
                break
            return f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"
