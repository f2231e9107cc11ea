"""The exceptions of this package."""

from __future__ import annotations


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


def error_named(name: str, text: str, needs: tuple[int, ...] = ()) -> PrismError:
    """Return the error that another process raised, from its class name, text and the ranks it asks for."""
    known = {one.__name__: one for one in (ScriptError, SlicingError, DivergenceError, GraphError, DeadlockError,
                                           UnsentValueError, InputError)}  # fmt: skip
    error = known.get(name, ScriptError)(text)
    if isinstance(error, SlicingError):
        error.needs = needs
    return error
