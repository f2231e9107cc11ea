"""Real faults, injected into real jobs of benchmarks by worker and iteration: those of the demo and many more."""

from types import ModuleType

from eroica import demo
from eroica.demo import Fault, FaultPlan, Injection, plans_from_environment, read_plans
from eroica.demo import faults as demo_kinds
from injected.hosts import HOSTS
from injected.loading import LOADING
from injected.rehearsal import write_training
from injected.stalls import STALLS
from injected.steps import STEPS

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


def inject(*plans: FaultPlan, code: ModuleType) -> Injection:
    """Prepare faults for this worker, made of the parts in `code`; see `eroica.demo.inject`."""
    return demo.inject(*plans, code=code, kinds=FAULTS)
