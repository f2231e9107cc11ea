"""Builds a plan's faults into one worker and switches them by iteration."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from types import ModuleType, TracebackType
from typing import Any

from eroica.demo.fault import Fault, Place
from eroica.demo.kinds import FAULTS
from eroica.demo.plan import FaultPlan, plans_from_environment
from eroica.errors import UsageError


class Injection:
    """The faults of one worker. As a context manager it takes everything back at the end.

    Args:
        plans: Plans of the whole job; those of other workers are only prepared for here.
        place: Which worker this is and what can be built in.
        kinds: All faults that a plan may name.
    """

    def __init__(self, plans: Sequence[FaultPlan], place: Place, kinds: Mapping[str, type[Fault]] = FAULTS) -> None:
        self._place = place
        everybodys = [(plan, build_fault(plan, kinds)) for plan in plans]
        self._faults = [(plan, fault) for plan, fault in everybodys if plan.hits(place.worker)]
        self._unprepared = [fault for _, fault in everybodys]
        self._running: set[int] = set()

    def dataset(self, dataset: Any) -> Any:
        """The dataset to give to the loader, wrapped where a plan says so."""
        for _, fault in self._faults:
            dataset = fault.wrap_dataset(dataset, self._place)
        return dataset

    def collate(self, collate: Any) -> Any:
        """The function that the loader shall make batches with, wrapped where a plan says so."""
        for _, fault in self._faults:
            collate = fault.wrap_collate(collate, self._place)
        return collate

    @property
    def callbacks(self) -> list[Callable[[int], None]]:
        """What the training shall call after each step, with the step's number; changes at iteration boundaries."""
        return list(self._place.callbacks)

    def iteration(self, iteration: int, model: Any) -> None:
        """Call at the start of each iteration: starts and stops what is due.

        Args:
            iteration: Its number, from 0, the same on all workers.
            model: A torch module; hooks go into it.
        """
        while self._unprepared:
            self._unprepared.pop(0).prepare(model, self._place)
        for number, (plan, fault) in enumerate(self._faults):
            if plan.is_active(iteration) == (number in self._running):
                continue
            if number in self._running:
                self._running.remove(number)
                fault.stop()
            else:
                self._running.add(number)
                fault.start(model, self._place)

    def close(self) -> None:
        """Stop everything that runs and end what was built in."""
        for number in sorted(self._running):
            self._faults[number][1].stop()
        self._running.clear()
        for _, fault in self._faults:
            fault.close()

    def __enter__(self) -> Injection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def build_fault(plan: FaultPlan, kinds: Mapping[str, type[Fault]] = FAULTS) -> Fault:
    """The fault that `plan` names, one of `kinds`, with its options.

    Raises:
        UsageError: There is no such fault or it has no such option; the text lists what there is.
    """
    kind = kinds.get(plan.name)
    if kind is None:
        raise UsageError(f"no fault is called {plan.name!r}; there are {', '.join(kinds)}")
    known = {item.name for item in fields(kind) if item.init}
    unknown = sorted(set(plan.options) - known)
    if unknown:
        raise UsageError(f"{plan.name} has no option {', '.join(unknown)}; it has {', '.join(sorted(known)) or 'none'}")
    return kind(**plan.options)


def inject(
    *plans: FaultPlan,
    worker: int | None = None,
    workers: int | None = None,
    code: ModuleType | None = None,
    kinds: Mapping[str, type[Fault]] = FAULTS,
) -> Injection:
    """Prepare faults for this worker.

    Args:
        *plans: What to inject; none given = what `EROICA_FAULT` says.
        worker: Global rank of this process, default `RANK`, else 0.
        workers: Workers of the job, default `WORLD_SIZE`, else 1.
        code: A module with `PARTS` like `eroica.demo.training.tokens`, which is the default.
        kinds: All faults that a plan may name.

    Raises:
        UsageError: A plan names an unknown fault, option or worker.

    Example:
        >>> faults = inject(FaultPlan("slow-loader", worker=2, from_iteration=150))
        >>> dataset = faults.dataset(["a", "b"])
        >>> for iteration in range(3):
        ...     faults.iteration(iteration, model=None)
        >>> faults.close()
    """
    if code is None:
        from eroica.demo.training import tokens

        code = tokens
    chosen = plans or plans_from_environment()
    worker = int(os.environ.get("RANK", "0")) if worker is None else worker
    workers = int(os.environ.get("WORLD_SIZE", "1")) if workers is None else workers
    return Injection(chosen, Place(worker, workers, code.PARTS, []), kinds)
