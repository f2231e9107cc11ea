"""Real faults, injected into real jobs by worker and iteration: for the demo, the tests, the benchmark and users.

    from eroica.faults import FaultPlan, inject

    with inject(FaultPlan("slow-loader", worker=2, from_iteration=150)) as faults:
        loader = DataLoader(faults.dataset(dataset), batch_size=8, collate_fn=faults.collate(default_collate))
        for iteration, batch in enumerate(loader):
            faults.iteration(iteration, model)
            ...
            for callback in faults.callbacks:
                callback(iteration)

`collate` and `callbacks` are needed only by faults of making batches and of what a training does besides its steps.
Without a plan `inject` takes the one in `EROICA_FAULT`, and without that it does nothing.
"""

from eroica.faults.copying import write_training
from eroica.faults.fault import Fault
from eroica.faults.injection import Injection, inject
from eroica.faults.kinds import FAULTS
from eroica.faults.plan import FaultPlan, plans_from_environment, read_plans

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
