"""Real faults, injected into real jobs by worker and iteration: those of the demo and many more."""

from collections.abc import Mapping
from types import ModuleType

from eroica import demo
from eroica.demo import Fault, FaultPlan, Injection, plans_from_environment, read_plans
from support.faults.copying import write_training
from support.faults.kinds import FAULTS

__all__ = [
    "FAULTS",
    "Fault",
    "FaultPlan",
    "Injection",
    "inject",
    "plans_from_environment",
    "read_plans",
    "write_training",
]


def inject(
    *plans: FaultPlan,
    worker: int | None = None,
    workers: int | None = None,
    code: ModuleType | None = None,
    kinds: Mapping[str, type[Fault]] = FAULTS,
) -> Injection:
    """Prepare faults for this worker; see `eroica.demo.inject`."""
    if code is None:
        from support.faults.training import parts

        code = parts
    return demo.inject(*plans, worker=worker, workers=workers, code=code, kinds=kinds)
