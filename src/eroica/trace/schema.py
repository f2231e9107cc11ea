"""What traces of the years call the same things: categories, annotations, calls."""

from __future__ import annotations

import re

from eroica.trace.table import Category

_CATEGORIES = {
    "cpu_op": Category.OPERATOR,
    "operator": Category.OPERATOR,
    "user_annotation": Category.ANNOTATION,
    "kernel": Category.KERNEL,
    "mtia_ccp_events": Category.KERNEL,
    "collective_comm": Category.KERNEL,
    "memcpy": Category.MEMORY,
    "memset": Category.MEMORY,
    "runtime": Category.RUNTIME,
    "hpu_op": Category.RUNTIME,
    "python_function": Category.PYTHON,
}
_ENDINGS = {
    "_memcpy": Category.MEMORY,
    "_memset": Category.MEMORY,
    "_runtime": Category.RUNTIME,
    "_driver": Category.RUNTIME,
}
#: Calls that put a kernel into a stream.
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "hipLaunchKernel", "hipExtModuleLaunchKernel", "hipModuleLaunch")
#: The same, with what puts many at once.
ALL_LAUNCHES = (
    *LAUNCHES,
    "cudaLaunchCooperativeKernel",
    "cudaGraphLaunch",
    "cuGraphLaunch",
    "hipExtLaunch",
    "hipGraphLaunch",
)
#: Calls that put a whole graph of kernels into a stream.
GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch")
#: Calls that get memory of a device or of the host, or give it back.
ALLOCATIONS = ("cudaMalloc", "cudaFree", "cudaHostAlloc", "hipMalloc", "hipFree", "hipHostMalloc")
_LEGACY = {"CPU functions": Category.OPERATOR, "CUDA functions": Category.KERNEL}
_ANNOTATION = re.compile(
    r"^(ProfilerStep[#*]|Optimizer\.(step|zero_grad)#|enumerate\(DataLoader\)#|DistributedDataParallel\.forward$)"
)


def category_of(text: str, process: int | str = "") -> Category:
    """Category of events.

    Args:
        text: The event's "cat": of 2021 ("Operator", "Kernel") or later, of any accelerator ("xpu_runtime",
            "gpu_memcpy"); marks that an accelerator keeps of host annotations count as OTHER.
        process: The event's "pid": before Kineto, it was all that told a device's events.
    """
    lower = text.lower()
    if lower in _CATEGORIES:
        return _CATEGORIES[lower]
    if not lower:
        return _LEGACY.get(process, Category.OTHER) if isinstance(process, str) else Category.OTHER
    return next((category for ending, category in _ENDINGS.items() if lower.endswith(ending)), Category.OTHER)


def is_annotation(name: str) -> bool:
    """Whether an event of this name is torch's own mark in a loop, whatever its category: in 2021 it was "Operator"."""
    return _ANNOTATION.match(name) is not None
