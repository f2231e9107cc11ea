"""The exceptions of this package.

C4PError
├── BadRequest        a value from the caller that cannot be used; the message says which would do
├── GroupBroken       the group cannot go on: a member left, failed, or was waited for too long
├── NoPath            no path leads to a neighbour
├── PlannerError      the planner's service cannot be reached or refused the request
└── TestbedError      network namespaces cannot be made here
"""

from __future__ import annotations


class C4PError(Exception):
    """Base of all errors of this package."""


class BadRequest(C4PError, ValueError):
    """A value from the caller that cannot be used."""


class GroupBroken(C4PError, RuntimeError):
    """The group cannot go on; every later operation raises the same error."""


class NoPath(C4PError, ConnectionError):
    """No path leads to a neighbour."""


class PlannerError(C4PError, RuntimeError):
    """The planner's service cannot be reached, or refused the request."""


class TestbedError(C4PError, RuntimeError):
    """Network namespaces cannot be made on this machine."""

    __test__ = False
