"""Plan which source port takes which network path, and run collectives over the planned ports."""

from __future__ import annotations

from c4p.errors import BadRequest, C4PError, GroupBroken, NoPath, PlannerError, TestbedError
from c4p.group import Group, Options
from c4p.rendezvous import Folder

__version__ = "0.1.0"

__all__ = [
    "BadRequest",
    "C4PError",
    "Folder",
    "Group",
    "GroupBroken",
    "NoPath",
    "Options",
    "PlannerError",
    "TestbedError",
]
