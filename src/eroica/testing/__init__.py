"""Public helpers for tests: synthetic fleets of workers with faults whose answer is known."""

from eroica.testing.fleet import Draft, FleetPlan, draft_fleet, synthesize, synthesize_window
from eroica.testing.troubles import (
    BackwardHook,
    BusyHost,
    GarbagePauses,
    SlowCompute,
    SlowLink,
    SlowLoader,
    SlowPython,
    Trouble,
    UnevenWork,
)

__all__ = [
    "BackwardHook",
    "BusyHost",
    "Draft",
    "FleetPlan",
    "GarbagePauses",
    "SlowCompute",
    "SlowLink",
    "SlowLoader",
    "SlowPython",
    "Trouble",
    "UnevenWork",
    "draft_fleet",
    "synthesize",
    "synthesize_window",
]
