"""Parameters with gradients and sizes of batches, as a worker counts them."""

from __future__ import annotations

import gc
import weakref
from collections import UserDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from eroica.worker.attach import _hear_of_batches
from eroica.worker.setup import Workload


class Sentences(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"tokens": torch.zeros(50, dtype=torch.long), "label": (torch.tensor(index % 2), "text")}


class Refuses(torch.Tensor):
    """A tensor whose class has its say in everything that is asked of it."""

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        raise AssertionError("the user's code was called")


@pytest.mark.parametrize(
    "collate", [None, lambda items: UserDict(tokens=torch.zeros(len(items), 50).as_subclass(Refuses))]
)
def test_batches_are_measured_where_the_loader_hands_them_out(collate: Any) -> None:
    workload, kept = Workload(), []
    loader = DataLoader(Sentences(), batch_size=8, collate_fn=collate)
    undo = _hear_of_batches(type(iter(loader)), SimpleNamespace(hooks=SimpleNamespace(loaded=workload.add_batch)))
    try:
        for batch in loader:
            kept.append(weakref.ref(batch["tokens"]))
    finally:
        undo()
    counts = workload.counts(iterations=2)
    assert (counts["batches"], counts["samples"], counts["elements"]) == (1.5, 8, 50)
    del batch
    gc.collect()
    assert not any(reference() is not None for reference in kept), "a batch is held"


def test_only_parameters_with_a_gradient_count() -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.Linear(10, 2))
    layers[0].requires_grad_(False)
    optimizer = torch.optim.SGD(layers.parameters(), 0.1)
    layers(torch.ones(3, 10)).sum().backward()
    workload = Workload()
    workload.count_gradients([optimizer, None, SimpleNamespace()])
    counts = workload.counts(iterations=1)
    assert (counts["parameters"], counts["gradients"], counts["batches"]) == (22, 2, 0)
