"""The exceptions of this package."""

from __future__ import annotations


class C4PError(Exception):
    """Base of all errors of this package."""


class BadRequest(C4PError, ValueError):
    """A value from the caller that cannot be used."""


class GroupBroken(C4PError, RuntimeError):
    """The group cannot go on; every later operation raises the same error."""


class NoPath(C4PError, ConnectionError):
    """No path leads to a neighbour."""


class NoSuchJob(C4PError, KeyError):
    """No job of this name is registered, or it has no member of this rank."""


class PlannerError(C4PError, RuntimeError):
    """The planner's service cannot be reached, or refused the request."""


class TestbedError(C4PError, RuntimeError):
    """Network namespaces cannot be made on this machine."""

    __test__ = False
