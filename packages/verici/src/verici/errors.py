"""Everything that this package raises."""

from __future__ import annotations


class VeriCIError(Exception):
    """Base of all errors of this package; `status` is the exit status of a command that ends with it."""

    status = 1


class BadInput(VeriCIError, ValueError):
    """A file, table or option from the caller that cannot be used."""

    status = 2


class RepositoryError(VeriCIError, RuntimeError):
    """The git repository, or a commit in it, cannot be read."""

    status = 2


class NotEnoughHistory(VeriCIError, RuntimeError):
    """There are too few labelled builds, or no failed one, to learn from."""

    status = 4


class BuildRefused(VeriCIError, RuntimeError):
    """Commits cannot be built within limits on this machine."""
