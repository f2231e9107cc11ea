"""Faults of what feeds the training: storage, loader processes, and what makes batches of items."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any, ClassVar

from eroica.demo.faults import Fault, Place, SlowLoader, SteeredFault
from injected.stalls import StorageFault


@dataclass
class SlowLoaderChildren(SlowLoader):
    """The same in a job whose loaders have processes of their own: the training thread only waits for them."""

    name: ClassVar[str] = "slow-loader-children"
    seconds: float = 0.025


@dataclass
class FewLoaderWorkers(SlowLoader):
    """Items of all workers take longer than their few loader processes can deliver them; two more would be enough."""

    name: ClassVar[str] = "few-loader-workers"
    seconds: float = 0.025


@dataclass
class ManyLoaderWorkers(SteeredFault):
    """Far more loader processes than cores, and each item costs `steps` turns of a loop in Python."""

    name: ClassVar[str] = "many-loader-workers"
    steps: float = 150_000

    def strength(self) -> float:
        return self.steps

    def wrap_dataset(self, dataset: Any, place: Place) -> Any:
        return place.parts["text"](dataset, self.shared_number())


@dataclass
class SlowStorage(StorageFault):
    """The server takes `delay_s` longer for each answer, which is a block of items."""

    name: ClassVar[str] = "slow-storage"
    delay_s: float = 0.025
    items_per_block: float = 4

    def orders(self) -> tuple[object, ...]:
        return ("--other-delay-s", self.delay_s)

    def items(self) -> tuple[int, ...]:
        return (int(self.items_per_block),)

    def start(self, model: Any, place: Place) -> None:
        self.tell(signal.SIGUSR2)

    def stop(self) -> None:
        self.tell(signal.SIGUSR2)


@dataclass
class HeavyCollate(SteeredFault):
    """Making a batch costs `pairs` turns of a loop in Python for each item."""

    name: ClassVar[str] = "heavy-collate"
    pairs: float = 40_000

    def strength(self) -> float:
        return self.pairs

    def wrap_collate(self, collate: Any, place: Place) -> Any:
        return place.parts["pairs"](collate, self.shared_number())


@dataclass
class LoadImbalance(SteeredFault):
    """The worker's batches are `times` as large as the others'."""

    name: ClassVar[str] = "load-imbalance"
    times: float = 4

    def strength(self) -> float:
        return self.times

    def wrap_collate(self, collate: Any, place: Place) -> Any:
        return place.parts["growth"](collate, self.shared_number())


@dataclass
class WanderingLoad(LoadImbalance):
    """In each iteration another worker, drawn anew, has a batch `times` as large: nobody has more work in the end."""

    name: ClassVar[str] = "wandering-load"
    times: float = 8

    def wrap_collate(self, collate: Any, place: Place) -> Any:
        return place.parts["growth"](collate, self.shared_number(), place.worker, place.workers)


@dataclass
class BatchRamp(LoadImbalance):
    """Healthy: batches of all workers grow in steps, as planned, up to `times` as large."""

    name: ClassVar[str] = "batch-ramp"
    times: float = 3
    every: float = 150

    def wrap_collate(self, collate: Any, place: Place) -> Any:
        return place.parts["growth"](collate, self.shared_number(), every=int(self.every))


@dataclass
class ChangingLength(SteeredFault):
    """Healthy: sequences of each batch have another length, the same on all workers."""

    name: ClassVar[str] = "changing-length"
    shortest: float = 0.5

    def strength(self) -> float:
        return self.shortest

    def wrap_collate(self, collate: Any, place: Place) -> Any:
        return place.parts["lengths"](collate, self.shared_number())


LOADING: tuple[type[Fault], ...] = (
    SlowLoaderChildren,
    FewLoaderWorkers,
    ManyLoaderWorkers,
    SlowStorage,
    HeavyCollate,
    LoadImbalance,
    WanderingLoad,
    BatchRamp,
    ChangingLength,
)
