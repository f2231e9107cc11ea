"""One worker's traced events as NumPy columns with a string table. E events; times are wall clock, int64 ns.

Names that traces of the years and of all makers use stand here, too: categories, marks, calls of drivers,
communication. A kernel's name counts without its template arguments and parameters, so `void f<g::all_reduce>(x*)` is
`f`. A fused kernel of a compiler (`triton_poi_fused_add_all_reduce_4`) is named after operators around it, and no
communication.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from eroica.model.worker import ProcessGroup


@dataclass(frozen=True)
class CollectiveArguments:
    """What a collective kernel says about itself, or the call of a send or receive.

    Attributes:
        name: As the library calls it: "allreduce", "_allgather_base", ...
        group: Name of the process group.
        sequence: Sequence number in the group, -1 where the trace has none.
        elements: Elements of the first input, 0 if unknown.
        group_size: Members of the group, 0 if unknown.
        ranks: Global ranks of the members, empty if unknown or abbreviated.
        peer: Global rank of the other side of a send or receive, -1 if unknown.
        peer_in_group: The same as a rank of the group, which is all that calls say; -1 if unknown.
    """

    name: str
    group: str = ""
    sequence: int = -1
    elements: int = 0
    group_size: int = 0
    ranks: tuple[int, ...] = ()
    peer: int = -1
    peer_in_group: int = -1


@dataclass(frozen=True)
class TraceHeader:
    """What a trace says about its worker and itself; each may be missing.

    Attributes:
        rank: Global rank, -1 if the trace does not say.
        world_size: Workers of the job, 0 if unknown.
        backend: "nccl", "gloo", ...
        host: Host name.
        process_id: Process whose operators these are, -1 if unknown.
        groups: Process groups as "pg_config" lists them; those of the worker and, in some versions, of others too.
        job: Name or id of the job, as far as some launcher wrote one into the trace.
        device: Name of the accelerator.
        versions: What the trace says about software beside it: "torch", "cuda driver", ... -> version.
        writer: Tool that wrote the file, where that is not PyTorch's profiler.
        has_wall_clock: Times are times of day; a file that is cut short may have lost what its times count from.
    """

    rank: int = -1
    world_size: int = 0
    backend: str = ""
    host: str = ""
    process_id: int = -1
    groups: tuple[ProcessGroup, ...] = ()
    job: str = ""
    device: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    writer: str = ""
    has_wall_clock: bool = True


@dataclass(frozen=True, eq=False)
class EventTable:
    """Complete events of one worker in order of start, the longer first where starts are equal.

    Attributes:
        strings: Names; `name` indexes them.
        name: int32 [E].
        category: `Category` of each event. int8 [E].
        thread: Kernel thread id of host events, stream of device events, -1 where it is no number; streams of a second
            device in one trace are counted from 2**40 on, of a third from 2 * 2**40. int64 [E].
        start_ns: int64 [E].
        end_ns: Never before `start_ns`; an event still open at the stop ends with the trace. int64 [E].
        link: The number that work of a device shares with the call of its driver that launched it, -1 for what has
            none. int64 [E], or empty where that was not read.
        collectives: Row number -> arguments, for collective kernels that carry any, and for calls of send and receive
            whose inputs were recorded.
        unknown: A sentence about device events of an unknown kind, "" if there are none.
        open_events: Events that had no end of their own.
        header: What the trace says about itself.
        losses: One sentence each about what could not be read and was left out.
        damage: Those of them after which nobody knows what the file held: it is cut, or much of it is left out.
    """

    strings: tuple[str, ...]
    name: NDArray[np.int32]
    category: NDArray[np.int8]
    thread: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    link: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    collectives: dict[int, CollectiveArguments] = field(default_factory=dict)
    unknown: str = ""
    open_events: int = 0
    header: TraceHeader = TraceHeader()
    losses: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.name)

    def named(self, wanted: Callable[[str], object], *categories: Category) -> NDArray[np.bool_]:
        """Which events have a name that `wanted` accepts, and one of these categories (any if none is given). bool [E].

        It is asked once for each name.
        """
        chosen: NDArray[np.bool_] = np.array([bool(wanted(name)) for name in self.strings], dtype=np.bool_)[self.name]
        return chosen & np.isin(self.category, [int(one) for one in categories]) if categories else chosen

    def communication(self, *categories: Category) -> NDArray[np.bool_]:
        """Which events have a name of kernels that are communication, and one of these categories. bool [E]."""
        return self.named(is_collective_kernel, *categories)

    def name_of(self, row: int) -> str:
        """Name of one event."""
        return self.strings[int(self.name[row])]


NO_EVENTS = EventTable(
    strings=(),
    name=np.empty(0, dtype=np.int32),
    category=np.empty(0, dtype=np.int8),
    thread=np.empty(0, dtype=np.int64),
    start_ns=np.empty(0, dtype=np.int64),
    end_ns=np.empty(0, dtype=np.int64),
)


# --- names of events ---


class Category(IntEnum):
    """Kind of event, whatever the trace's schema calls it."""

    OPERATOR = 0
    ANNOTATION = 1
    KERNEL = 2
    MEMORY = 3
    RUNTIME = 4
    OTHER = 5
    PYTHON = 6


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
#: Before Kineto, a process id was all that told a device's events.
_PROCESSES = {"CPU functions": Category.OPERATOR, "CUDA functions": Category.KERNEL}
#: Calls that put a kernel into a stream.
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "hipLaunchKernel", "hipExtModuleLaunchKernel", "hipModuleLaunch")
#: Calls that put a whole graph of kernels into a stream.
GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch")
#: All calls that put kernels into a stream.
ALL_LAUNCHES = (*LAUNCHES, *GRAPH_LAUNCHES, "cudaLaunchCooperativeKernel", "hipExtLaunch")
#: Calls that get memory of a device or of the host, or give it back.
ALLOCATIONS = ("cudaMalloc", "cudaFree", "cudaHostAlloc", "hipMalloc", "hipFree", "hipHostMalloc")
_ANNOTATION = re.compile(
    r"^(ProfilerStep[#*]|Optimizer\.(step|zero_grad)#|enumerate\(DataLoader\)#|DistributedDataParallel\.forward$)"
)
#: Library -> names of its kernels, matched anywhere in the qualified name in lower case. Behind it: where they are
#: defined, as of 2026.
LIBRARIES = {
    # NVIDIA/nccl src/device/generate.py; ROCm/rccl src/device; meta-pytorch/torchcomms comms/ctran/algos
    "NCCL, RCCL, NCCLX": r"^nccl|^rccl",
    # microsoft/mscclpp src/core/include/execution_kernel.hpp
    "MSCCL, MSCCL++": r"^msccl|\bmscclpp::",
    # uxlfoundation/oneCCL src/coll/algorithms
    "oneCCL": r"^oneccl",
    # Ascend and Gaudi profilers: communication operators (hcom_allReduce__503_0_1)
    "HCCL": r"^hccl|^hcom_",
    # vendors' ports of NCCL, which keep its names
    "MCCL, PCCL": r"^mccl|^pccl",
    # deepseek-ai/DeepEP csrc/kernels; microsoft/mscclpp src/ext/ep; ROCm/mori
    "DeepEP and its ports": (
        r"\b(intranode|internode|internode_ll|intranode_ll)\w*::(\w+::)*"
        r"(dispatch|combine|notify_dispatch|cached_notify\w*|barrier\w*|clean_low_latency_buffer)"
        r"|\bmori::moe::\w*(dispatch|combine)"
    ),
    # vllm-project/vllm csrc/custom_all_reduce.cuh and csrc/quickreduce; ROCm/aiter csrc/include
    "all-reduce of vLLM, SGLang and aiter": r"\bcross_device_reduce_[12]stage|\ballreduce_prototype_(one|two)shot",
    # pytorch/pytorch torch/csrc/distributed/c10d/symm_mem
    "symmetric memory": (
        r"\b(multimem_(one_shot_)?|one_shot_|two_shot_)(all_reduce|reduce|reduce_scatter|all_gather)\w*"
        r"|\bsymmetric_memory::\w+|\bintra_node_comm::\w+|\ball_to_all_v?dev\w*"
    ),
    # NVIDIA/TensorRT-LLM cpp/tensorrt_llm/kernels; flashinfer-ai/flashinfer include/flashinfer/comm
    "TensorRT-LLM, FlashInfer": (
        r"\b(one|two)shotallreduce\w*|\ballreduce_fusion_kernel\w*|\btrtllm_(mnnvl_)?allreduce\w*::\w+"
        r"|\bmoe_?(a2a|all_?to_?all)\w*"
    ),
    # NVIDIA/TransformerEngine comm_gemm_overlap/userbuffers
    "Userbuffers": r"\bk?userbuffers_\w+",
    # NVIDIA/nvshmem src/host/stream/coll; ROCm/rocSHMEM
    "NVSHMEM, rocSHMEM, Intel SHMEM": (
        r"\b(nvshmem|rocshmem|ishmem)\w*|\b(barrier|sync)_on_stream_kernel\w*|\b\w+_on_stream_kernel_threadgroup"
    ),
    # bytedance/flux src/comm_none, src/ths_op, src/moe_gather_rs
    "FLUX": (
        r"\bflux::(\w+::)*\w*(all2all|a2a|all_?gather|reduce_?scatter|gather_rs|ring_reduce|barrier|_rs_|allreduce)\w*"
    ),
}
_COMMUNICATION = re.compile("|".join(f"(?:{functions})" for functions in LIBRARIES.values()))
_UNNAMED = re.compile(r"\(anonymous namespace\)::|<unnamed>::|\{anonymous\}::")
_LONGEST = 400
_DEVICE = re.compile(r"\b(gpu|npu|xpu|hpu|tpu|mtia|gaudi|ascend|accelerator|hardware|device)\b", re.IGNORECASE)
#: Categories that Kineto gives to what is on a device without being work: marks, arrows, synchronization.
_NO_WORK = re.compile(
    r"^(gpu_user_annotation|ac2g|fwdbwd|async\w*|cuda_sync|cuda_event|cuda_profiler_range|overhead|trace|hlo|"
    r"gpu_pm_counter|mtia_\w*|user_annotation|instant_event|collective)$",
    re.IGNORECASE,
)


def category_of(text: str, process: int | str = "") -> Category:
    """Return the category of events.

    Args:
        text: The event's "cat": of 2021 ("Operator", "Kernel") or later, of any accelerator ("xpu_runtime",
            "gpu_memcpy"); marks that an accelerator keeps of host annotations count as OTHER.
        process: The event's "pid".
    """
    lower = text.lower()
    if lower in _CATEGORIES:
        return _CATEGORIES[lower]
    if not lower:
        return _PROCESSES.get(process, Category.OTHER) if isinstance(process, str) else Category.OTHER
    return next((category for ending, category in _ENDINGS.items() if lower.endswith(ending)), Category.OTHER)


def is_annotation(name: str) -> bool:
    """Return whether an event is torch's own mark in a loop by its name; in 2021 its category was "Operator"."""
    return _ANNOTATION.match(name) is not None


def unknown_on_device(
    places: Sequence[tuple[str, int | str, int | str]],
    kinds: Sequence[int],
    counts: Sequence[int],
    processes: Mapping[int | str, str],
) -> str:
    """Return a sentence about device events of an unknown kind, "" if there are none.

    Args:
        places: Category, process and thread of events.
        kinds: Category found for each.
        counts: Events of each.
        processes: Names (and labels) of processes.
    """
    found: dict[str, int] = {}
    for (category, process, _), kind, count in zip(places, kinds, counts, strict=False):
        name = processes.get(process, "")
        if kind == Category.OTHER and count and _DEVICE.search(name) and not _NO_WORK.match(category):
            found[category or name] = found.get(category or name, 0) + count
    if not found:
        return ""
    listed = ", ".join(sorted(found, key=lambda label: -found[label])[:3])
    return f"device events of an unknown kind ({listed[:120]}) were left out: {sum(found.values()):,} of them"


# ---------------------------------------------------------------------- kernels of communication


def is_collective_kernel(name: object) -> bool:
    """Return whether a device kernel waits for other workers and moves their data, by its name."""
    return isinstance(name, str) and _is_known(name[:_LONGEST])


@lru_cache(maxsize=65_536)
def _is_known(name: str) -> bool:
    return _COMMUNICATION.search(readable(name).lower()) is not None


@lru_cache(maxsize=4096)
def readable(name: str) -> str:
    """Return a kernel's function: "deep_ep::internode::combine" of "void deep_ep::internode::combine<false>(int4*)"."""
    if name.startswith("_Z"):
        return _demangled(name) or name
    text = _UNNAMED.sub("", name.strip())
    end = next((at for at, letter in enumerate(text) if letter in "<("), len(text))
    return text[:end].strip().rpartition(" ")[2] or name.split("(", maxsplit=1)[0]  # behind the return type


def _demangled(name: str) -> str:
    """Return the nested name at the beginning of a mangled one: "_ZN5aiter26cross_device_reduce_2stageIDF16bEvv"."""
    at = 3 if name.startswith("_ZN") else 2
    parts: list[str] = []
    while (size := re.match(r"\d+", name[at:])) is not None:
        at += len(size[0])
        parts.append(name[at : at + int(size[0])])
        at += int(size[0])
        if not name.startswith("_ZN"):
            break
    return "::".join(part for part in parts if not part.startswith("_GLOBAL__N"))
