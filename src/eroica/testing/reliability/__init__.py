"""Never in the way, put to the test: a training that says everything it computes, with Eroica disturbed and without it.

`tests/reliability` runs some of it, `benchmarks/reliability.py` everything.
"""

from eroica.testing.reliability.comparison import Outcome, differences
from eroica.testing.reliability.disturbance import DISTURBANCES, Disturbance
from eroica.testing.reliability.trial import Reference, Trial, attempt

__all__ = ["DISTURBANCES", "Disturbance", "Outcome", "Reference", "Trial", "attempt", "differences"]
