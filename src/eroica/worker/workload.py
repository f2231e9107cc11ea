"""Count what the training sets itself: parameters that get gradients, and the sizes of batches. Keeps numbers only.

Parameters are counted once, before a window opens. Batches are measured while it is open, where the loader hands them
out: 4 microseconds each. Shapes and references are read; no value of a tensor is, so no device is waited for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

#: Tensors of a batch that are measured, containers inside each other that are opened, and parameters that are counted.
_MOST_TENSORS, _DEEPEST, _MOST_PARAMETERS = 64, 4, 200_000
#: Frames between the loader's `__next__` and us.
_NEAREST_FRAMES = 16


class Workload:
    """Quantities of one window."""

    def __init__(self) -> None:
        self._parameters = self._gradients = self._batches = self._measured = self._samples = self._elements = 0

    def count_gradients(self, optimizers: Iterable[Any]) -> None:
        """Count the parameters of torch's optimizers that have a gradient now: 0.13 microseconds each."""
        with _plain_tensors():
            left = _MOST_PARAMETERS
            for optimizer in optimizers:
                for group in getattr(optimizer, "param_groups", ()):
                    parameters = group["params"][:left]
                    left -= len(parameters)
                    sizes = [one.numel() for one in parameters if one.grad is not None]
                    self._gradients += len(sizes)
                    self._parameters += sum(sizes)

    def add_batch(self, iterator: Any) -> None:
        """Add the batch that a loader's iterator is about to hand out."""
        self._batches += 1
        with _plain_tensors():
            shapes = [shape for shape in _shapes(_batch_of(iterator), _DEEPEST) if shape]
        if shapes:
            sizes = [_elements(shape) for shape in shapes[:_MOST_TENSORS]]
            largest = max(range(len(sizes)), key=sizes.__getitem__)
            self._measured += 1
            self._samples += shapes[largest][0]
            self._elements += sizes[largest]

    def counts(self, iterations: int) -> dict[str, float]:
        """Return the fields of `eroica.model.pattern.Workload` that the worker knows."""
        return {
            "parameters": self._parameters,
            "gradients": self._gradients,
            "batches": self._batches / max(iterations, 1),
            "samples": self._samples / max(self._measured, 1),
            "elements": self._elements / max(self._samples, 1),
        }


def _plain_tensors() -> Any:
    """Read tensors without calling what the user overrides of them."""
    return sys.modules["torch._C"].DisableTorchFunction()


def _batch_of(iterator: Any) -> Any:
    """Return what torch's loader is about to hand out; None where it cannot be found."""
    frame: FrameType | None = sys._getframe()
    for _ in range(_NEAREST_FRAMES):
        if frame is None:
            break
        if frame.f_code.co_name == "__next__" and frame.f_locals.get("self") is iterator:
            return frame.f_locals.get("data")
        frame = frame.f_back
    return None


def _shapes(batch: Any, depth: int) -> Iterator[tuple[int, ...]]:
    """Yield the shapes of the tensors in a batch, whose containers are read as Python's own."""
    kind = sys.modules["torch"].Tensor
    if isinstance(batch, kind):
        yield tuple(batch.shape)
    elif isinstance(batch, (tuple, list, dict)) and depth:
        parts = dict.values(batch) if isinstance(batch, dict) else batch
        for part in list(parts)[:_MOST_TENSORS]:
            yield from _shapes(part, depth - 1)
    elif depth and isinstance(vars(batch).get("data") if hasattr(batch, "__dict__") else None, dict):
        yield from _shapes(vars(batch)["data"], depth - 1)  # a UserDict, as tokenizers make it


def _elements(shape: tuple[int, ...]) -> int:
    product = 1
    for length in shape:
        product *= length
    return product
