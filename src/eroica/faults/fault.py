"""What every fault is: something real done to one resource, started and stopped at iteration boundaries.

A fault is built on each worker that has it, told to `start` and `stop` at iteration boundaries, and brings no frame of
its own into the training thread's stack while it works: what runs there is the code of its parts (`PARTS` of
`eroica.faults.training.tokens`, or of any module that offers the same places under other names).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple


class Place(NamedTuple):
    """Where a fault is built in.

    Attributes:
        worker: This worker's global rank.
        workers: Workers of the job.
        parts: What can be built in, by name ("dataset", "forward", "backward", "objects", ...).
    """

    worker: int
    workers: int
    parts: dict[str, Any]


@dataclass
class Fault:
    """Base: does nothing."""

    name: ClassVar[str] = "none"
    resource: ClassVar[str] = "nothing"

    def wrap_dataset(self, dataset: Any, place: Place) -> Any:
        """The dataset that the loader shall read; called once, before the loader exists."""
        return dataset

    def prepare(self, model: Any, place: Place) -> None:
        """Called once on every worker of the job, with the fault or not, before the first iteration."""

    def start(self, model: Any, place: Place) -> None:
        """The fault is there from now on."""

    def stop(self) -> None:
        """It is gone from now on; also called when the job ends."""

    def close(self) -> None:
        """The training is over, whether the fault was ever there or not: end what was built in before it."""


def inner_module(model: Any) -> Any:
    """The user's own module behind a wrapper such as `DistributedDataParallel`."""
    return getattr(model, "module", model)


def unhook(handle: Any) -> None:
    """Remove a torch hook, if there is one."""
    if handle is not None:
        handle.remove()
