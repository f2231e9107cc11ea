"""Kernels that are communication: one table of names, each with where it comes from.

A name is looked at without its template arguments and parameters, so `void f<g::all_reduce>(x*)` is `f`. A fused kernel
of a compiler (`triton_poi_fused_add_all_reduce_4`) is named after operators around it and is none. What no table knows
may still be communication; the offline room finds that by its behavior (`eroica.offline.behavior`).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple


class Library(NamedTuple):
    """Kernels of a library.

    Attributes:
        title: What it is called.
        functions: Their names, matched anywhere in the qualified name in lower case.
        source: Where these names are defined.
    """

    title: str
    functions: str
    source: str


#: Sources are repositories and files in which the kernels are defined, as of 2026.
LIBRARIES: tuple[Library, ...] = (
    Library(
        "NCCL, RCCL, NCCLX",
        r"^nccl|^rccl",
        "NVIDIA/nccl src/device/generate.py; ROCm/rccl src/device; meta-pytorch/torchcomms comms/ctran/algos",
    ),
    Library("MSCCL, MSCCL++", r"^msccl|\bmscclpp::", "microsoft/mscclpp src/core/include/execution_kernel.hpp"),
    Library("oneCCL", r"^oneccl", "uxlfoundation/oneCCL src/coll/algorithms"),
    Library("HCCL", r"^hccl|^hcom_", "Ascend and Gaudi profilers: communication operators (hcom_allReduce__503_0_1)"),
    Library("MCCL, PCCL", r"^mccl|^pccl", "vendors' ports of NCCL, which keep its names"),
    Library(
        "DeepEP and its ports",
        r"\b(intranode|internode|internode_ll|intranode_ll)\w*::(\w+::)*"
        r"(dispatch|combine|notify_dispatch|cached_notify\w*|barrier\w*|clean_low_latency_buffer)"
        r"|\bmori::moe::\w*(dispatch|combine)",
        "deepseek-ai/DeepEP csrc/kernels; microsoft/mscclpp src/ext/ep; ROCm/mori",
    ),
    Library(
        "all-reduce of vLLM, SGLang and aiter",
        r"\bcross_device_reduce_[12]stage|\ballreduce_prototype_(one|two)shot",
        "vllm-project/vllm csrc/custom_all_reduce.cuh and csrc/quickreduce; ROCm/aiter csrc/include",
    ),
    Library(
        "symmetric memory",
        r"\b(multimem_(one_shot_)?|one_shot_|two_shot_)(all_reduce|reduce|reduce_scatter|all_gather)\w*"
        r"|\bsymmetric_memory::\w+|\bintra_node_comm::\w+|\ball_to_all_v?dev\w*",
        "pytorch/pytorch torch/csrc/distributed/c10d/symm_mem",
    ),
    Library(
        "TensorRT-LLM, FlashInfer",
        r"\b(one|two)shotallreduce\w*|\ballreduce_fusion_kernel\w*|\btrtllm_(mnnvl_)?allreduce\w*::\w+"
        r"|\bmoe_?(a2a|all_?to_?all)\w*",
        "NVIDIA/TensorRT-LLM cpp/tensorrt_llm/kernels; flashinfer-ai/flashinfer include/flashinfer/comm",
    ),
    Library("Userbuffers", r"\bk?userbuffers_\w+", "NVIDIA/TransformerEngine comm_gemm_overlap/userbuffers"),
    Library(
        "NVSHMEM, rocSHMEM, Intel SHMEM",
        r"\b(nvshmem|rocshmem|ishmem)\w*|\b(barrier|sync)_on_stream_kernel\w*|\b\w+_on_stream_kernel_threadgroup",
        "NVIDIA/nvshmem src/host/stream/coll; ROCm/rocSHMEM",
    ),
    Library(
        "FLUX",
        r"\bflux::(\w+::)*\w*(all2all|a2a|all_?gather|reduce_?scatter|gather_rs|ring_reduce|barrier|_rs_|allreduce)\w*",
        "bytedance/flux src/comm_none, src/ths_op, src/moe_gather_rs",
    ),
)
_ANY = re.compile("|".join(f"(?:{library.functions})" for library in LIBRARIES))
_EACH = tuple((library, re.compile(library.functions)) for library in LIBRARIES)
_UNNAMED = re.compile(r"\(anonymous namespace\)::|<unnamed>::|\{anonymous\}::")
_LONGEST = 400


def is_collective_kernel(name: object) -> bool:
    """Whether a device kernel of this name is communication: it waits for other workers, and moves their data."""
    return isinstance(name, str) and _is_known(name[:_LONGEST])


def library_of(name: str) -> Library | None:
    """The library that a kernel of communication belongs to, None if no table knows it."""
    function = qualified_function(name[:_LONGEST])
    return next((library for library, functions in _EACH if functions.search(function)), None)


@lru_cache(maxsize=65_536)
def _is_known(name: str) -> bool:
    return _ANY.search(qualified_function(name)) is not None


def qualified_function(name: str) -> str:
    """A kernel's function with its namespaces, in lower case: no return type, template arguments or parameters."""
    return readable(name).lower()


@lru_cache(maxsize=4096)
def readable(name: str) -> str:
    """The same as it is written: "deep_ep::internode::combine" of "void deep_ep::internode::combine<false>(int4*)"."""
    if name.startswith("_Z"):
        return _demangled(name) or name
    text = _UNNAMED.sub("", name.strip())
    end = next((at for at, letter in enumerate(text) if letter in "<("), len(text))
    return text[:end].strip().rpartition(" ")[2] or name.split("(", maxsplit=1)[0]  # behind the return type


def _demangled(name: str) -> str:
    """The nested name at the beginning of a mangled one: "_ZN5aiter26cross_device_reduce_2stageIDF16bEvv"."""
    at = 3 if name.startswith("_ZN") else 2
    parts: list[str] = []
    while at < len(name) and name[at].isdigit():
        end = at
        while end < len(name) and name[end].isdigit():
            end += 1
        size = int(name[at:end])
        parts.append(name[end : end + size])
        at = end + size
        if not name.startswith("_ZN"):
            break
    return "::".join(part for part in parts if not part.startswith("_GLOBAL__N"))
