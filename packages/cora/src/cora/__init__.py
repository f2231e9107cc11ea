"""Splits stateful packet programs between XDP and user space: write, profile, predict, plan, build, run.

>>> import cora
>>> program = cora.load("bucket", {"rate_per_s": 100})
>>> cora.Interpreter(program).run(b"no packet", 0, 1).verdict
'up'
"""

from __future__ import annotations

from cora.errors import BadInput, BadProgram, BuildError, CoraError, DeviceError, NoPlan, Unsupported
from cora.expressions import both, either, field, hash_of, maximum, minimum, now, old, select
from cora.functions import FUNCTIONS, load
from cora.interpret import Interpreter
from cora.placement import Placement
from cora.program import Build, Program, Table

__version__ = "0.1.0"

__all__ = [
    "FUNCTIONS",
    "BadInput",
    "BadProgram",
    "Build",
    "BuildError",
    "CoraError",
    "DeviceError",
    "Interpreter",
    "NoPlan",
    "Placement",
    "Program",
    "Table",
    "Unsupported",
    "both",
    "either",
    "field",
    "hash_of",
    "load",
    "maximum",
    "minimum",
    "now",
    "old",
    "select",
]
