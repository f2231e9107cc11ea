"""Public helpers for tests: synthetic fleets with faults, and jobs that stand still, whose answer is known."""

from support.fleet import Draft, FleetPlan, draft_fleet, synthesize, synthesize_window
from support.standstill import Standstill
from support.troubles import (
    BackwardHook,
    BusyHost,
    LargerBatches,
    SlowCompute,
    SlowHostLink,
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
    "LargerBatches",
    "SlowCompute",
    "SlowHostLink",
    "SlowLink",
    "SlowLoader",
    "SlowPython",
    "Standstill",
    "Trouble",
    "UnevenWork",
    "draft_fleet",
    "synthesize",
    "synthesize_window",
]
