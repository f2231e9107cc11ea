"""Which kernels are communication, by their names."""

from __future__ import annotations

import re

import pytest

from eroica.summarize.collectives import collective_kind
from eroica.trace.table import LIBRARIES, is_collective_kernel, readable

_NAMES = [
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", "NCCL", "all_reduce"),
    ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", "NCCL", "all_to_all"),
    ("void ncclKernelAllToAllv<int8_t>(int*, CtranAlgoDeviceState*)", "NCCL", "all_to_all"),
    ("ncclSymkDevKernel_AllGather_ST", "NCCL", "all_gather"),
    ("rcclGenericKernel", "NCCL", None),
    ("void mscclpp::executionKernel<float, mscclpp::LL16Packet>(int, float*)", "MSCCL", None),
    ("mscclKernel_Sum_half_Simple_Sum_true", "MSCCL", None),
    ("oneccl_allreduce_pcie", "oneCCL", "all_reduce"),
    ("hcom_allReduce__503_0_1", "HCCL", "all_reduce"),
    ("void deep_ep::internode::combine<false, 8, __nv_bfloat16, 8, 2>(int4*)", "DeepEP", "all_to_all"),
    ("void deep_ep::intranode::notify_dispatch<8>(int const*)", "DeepEP", "barrier"),
    ("void deep_ep::internode_ll::dispatch<true, false, 7168>(void*)", "DeepEP", "all_to_all"),
    ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", "all-reduce of vLLM", "all_reduce"),
    ("_ZN5aiter26cross_device_reduce_2stageIDF16bLi8ELb0EEEv", "all-reduce of vLLM", "all_reduce"),
    ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)", "symm", "all_reduce"),
    ("void <unnamed>::two_shot_all_reduce_kernel_inplace<c10::BFloat16>(c10::BFloat16**)", "symm", "all_reduce"),
    ("multimem_one_shot_all_reduce_kernel", "symm", "all_reduce"),
    ("void c10d::symmetric_memory::barrier_kernel(unsigned int**)", "symm", "barrier"),
    ("void tensorrt_llm::kernels::oneShotAllReduceKernel<half, 8>(AllReduceParams)", "TensorRT", "all_reduce"),
    (
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<__nv_bfloat16, 8>(x)",
        "TensorRT",
        "all_reduce",
    ),
    ("void flashinfer::trtllm_mnnvl_allreduce::twoshotAllreduceKernel<(unsigned char)2>(x)", "TensorRT", "all_reduce"),
    ("void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<8>(int)", "Userbuffers", None),
    ("kuserbuffers_pushrecv", "Userbuffers", None),
    ("void barrier_on_stream_kernel_threadgroup<(threadgroup_t)1>(int, int)", "NVSHMEM", "barrier"),
    ("nvshmemi_transfer_rma", "NVSHMEM", None),
    ("void bytedance::flux::ring_reduce_kernel<float>(float*)", "FLUX", "reduce_scatter"),
]
_OTHERS = [
    "gemm_kernel",
    "triton_poi_fused_add_all_reduce_4",
    "triton_red_fused_combine_dispatch_2",
    "void deep_ep::layout::get_dispatch_layout<256>(int const*)",
    "void cub::DeviceReduceKernel<int>(int)",
    "void at::native::reduce_kernel<512, 1>(x<vllm::cross_device_reduce_1stage>)",
    "void moe::combine_experts<float>(float*)",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::TensorListMetadata<1>>(x)",
    "flash::flash_fwd_splitkv_combine_kernel",
    "void all_reduce_finder()",
    "",
    "(",
]


@pytest.mark.parametrize(("name", "title", "kind"), _NAMES, ids=[name[:50] for name, _, _ in _NAMES])
def test_a_kernel_of_communication_is_known_with_its_library_and_kind(name: str, title: str, kind: str | None) -> None:
    pattern = next(pattern for library, pattern in LIBRARIES.items() if title.lower() in library.lower())
    assert is_collective_kernel(name) and re.search(pattern, readable(name).lower())
    assert kind is None or collective_kind(readable(name)) == kind


@pytest.mark.parametrize("name", _OTHERS)
def test_compute_is_no_communication(name: str) -> None:
    assert not is_collective_kernel(name)


def test_a_name_is_shown_without_parameters() -> None:
    assert readable("void deep_ep::internode::combine<false>(int4*)") == "deep_ep::internode::combine"
    assert readable("ncclDevKernel_AllReduce(ncclDevComm*)") == "ncclDevKernel_AllReduce"
    assert readable("void (anonymous namespace)::f<x>(y)") == "f"
