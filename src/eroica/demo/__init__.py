"""A small training, five faults that are injected into it by worker and iteration, and what a verdict must say of them.

    from eroica.demo import FaultPlan, inject

    with inject(FaultPlan("slow-loader", worker=2, from_iteration=150)) as faults:
        loader = DataLoader(faults.dataset(dataset), batch_size=8)
        for iteration, batch in enumerate(loader):
            faults.iteration(iteration, model)
            ...

Without a plan `inject` takes the one in `EROICA_FAULT`, and without that it does nothing.
"""

from eroica.demo.faults import FAULTS, Fault, FaultPlan, Injection, inject, plans_from_environment, read_plans

__all__ = ["FAULTS", "Fault", "FaultPlan", "Injection", "inject", "plans_from_environment", "read_plans"]
