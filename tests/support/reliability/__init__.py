"""Never in the way, put to the test: a training that says everything it computes, with Eroica disturbed and without it.

`tests/reliability` runs this, `benchmarks/reliability.py` more.
"""

from support.reliability.comparison import Outcome, differences
from support.reliability.disturbance import DISTURBANCES, Disturbance
from support.reliability.trial import Reference, Trial, attempt

__all__ = ["DISTURBANCES", "Disturbance", "Outcome", "Reference", "Trial", "attempt", "differences"]
