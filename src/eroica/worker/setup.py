"""Describe how this worker is set up, and what the training sets itself: gradients, and the sizes of batches.

The setup is asked of torch and the loader once in a window. Parameters are counted once, before a window opens. Batches
are measured while it is open, where the loader hands them out: 4 microseconds each. Numbers only are kept: shapes and
references are read, no value of a tensor is, so no device is waited for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

from eroica.wire.variables import told_variables
from eroica.worker.errors_of_users import UNFAMILIAR, raised_by_user

_LOADER = {
    "loader_workers": "_num_workers",
    "loader_pin_memory": "_pin_memory",
    "loader_prefetch_factor": "_prefetch_factor",
    "loader_persistent_workers": "_persistent_workers",
}
#: Fact -> names below torch that lead to a value or to a function that returns it; all are set by the user's code.
_TORCH = {
    "torch_threads": "get_num_threads",
    "torch_interop_threads": "get_num_interop_threads",
    "anomaly_mode": "is_anomaly_enabled",
    "deterministic": "are_deterministic_algorithms_enabled",
    "mkldnn": "backends.mkldnn.enabled",
}
_CUDA = {
    "cuda": "version.cuda",
    "nccl": "cuda.nccl.version",
    "cudnn_benchmark": "backends.cudnn.benchmark",
    "cudnn_deterministic": "backends.cudnn.deterministic",
}
#: How exactly it multiplies float32, before and since `_NEW_PRECISION`; the old names warn there, on the user's stderr.
_OLD_NAMES = {"matmul_precision": "get_float32_matmul_precision"}
_OLD_CUDA = {"tf32_matmul": "backends.cuda.matmul.allow_tf32", "tf32_cudnn": "backends.cudnn.allow_tf32"}
_NEW_NAMES = {"fp32_mkldnn": "backends.mkldnn.matmul.fp32_precision"}
_NEW_CUDA = {
    "fp32_matmul": "backends.cuda.matmul.fp32_precision",
    "fp32_cudnn": "backends.cudnn.conv.fp32_precision",
}
_NEW_PRECISION = (2, 9)


def torch_setup() -> dict[str, str]:
    """Versions, threads, switches and variables that change how fast torch computes; nothing is imported for it.

    A script may set variables itself; what it was started with stands in `/proc`.
    """
    facts = {"python": ".".join(map(str, sys.version_info[:3])), **told_variables(os.environ.items())}
    torch = sys.modules.get("torch")
    if torch is None:
        return facts
    facts["torch"] = str(getattr(torch, "__version__", ""))
    for fact, names in _questions(torch, facts["torch"]).items():
        value = _ask(lambda names=names: _follow(torch, names))  # type: ignore[misc]
        if value is not None:
            facts[fact] = _text(value)
    return facts


def _questions(torch: Any, version: str) -> dict[str, str]:
    """Choose the facts to ask torch for; of an unknown version only those that no version answers with a warning."""
    cuda = bool(getattr(getattr(torch, "version", None), "cuda", None))
    asked = {**_TORCH, **(_CUDA if cuda else {})}
    release = _release(version)
    if release is None:
        return asked
    names, devices = (_NEW_NAMES, _NEW_CUDA) if release >= _NEW_PRECISION else (_OLD_NAMES, _OLD_CUDA)
    return {**asked, **names, **(devices if cuda else {})}


def _release(version: str) -> tuple[int, int] | None:
    """Parse the release of a version: (2, 9) of "2.9.0a0+git1"; None if it has none."""
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


def loader_setup(iterator: Any) -> dict[str, str]:
    """Read the settings of torch's loader from its iterator; empty for an iterator of another make."""
    values = {fact: getattr(iterator, name, None) for fact, name in _LOADER.items()}
    return {fact: _text(value) for fact, value in values.items() if isinstance(value, (bool, int))}


def _follow(start: Any, names: str) -> Any:
    for name in names.split("."):
        start = getattr(start, name)
    return start() if callable(start) else start


def _ask(question: Callable[[], Any]) -> Any:
    try:
        return question()
    except UNFAMILIAR as error:
        if raised_by_user(error):
            raise
        return None


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ".".join(map(str, value))[:80]
    return str(value)[:80]


# --- what the training sets itself ---


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
