"""Real faults, injected into real jobs by worker and iteration: those of the demo and many more."""

from types import ModuleType

from eroica import demo
from eroica.demo import Fault, FaultPlan, Injection, plans_from_environment, read_plans
from eroica.demo import faults as demo_kinds
from support.faults.hosts import HOSTS
from support.faults.loading import LOADING
from support.faults.rehearsal import write_training
from support.faults.stalls import STALLS
from support.faults.steps import STEPS

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

FAULTS: dict[str, type[Fault]] = {
    **demo_kinds.FAULTS,
    **{kind.name: kind for kind in (*LOADING, *STEPS, *HOSTS, *STALLS)},
}


def inject(
    *plans: FaultPlan,
    worker: int | None = None,
    workers: int | None = None,
    code: ModuleType | None = None,
) -> Injection:
    """Prepare faults for this worker; see `eroica.demo.inject`."""
    if code is None:
        from support.faults.training import parts

        code = parts
    return demo.inject(*plans, worker=worker, workers=workers, code=code, kinds=FAULTS)
