from gen import *
import sys
names={
'p3_deepep_ll':'void deep_ep::internode_ll::combine<true, 7168, 9>(void*, void*)',
'p3_deepep_intra':'void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)',
'p3_nvshmem':'nvshmemi_barrier_kernel(int, int)',
'p3_vllm':'void vllm::cross_device_reduce_1stage<__nv_bfloat16, 4>(vllm::RankData*, vllm::RankSignals, vllm::Signal*, __nv_bfloat16*, int, int)',
'p3_multimem':'void c10d::symmetric_memory::(anonymous namespace)::multimem_one_shot_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)',
'p3_symmbarrier':'c10d::symmetric_memory::barrier_kernel(unsigned int**, unsigned long, unsigned long, unsigned long, unsigned long)',
'p3_twoshot':'void two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 8>(unsigned int**)',
'p3_flux':'void bytedance::flux::CudaIpcBarrierAllKernel(int, int, int**)',
'p3_mscclpp':'void mscclpp::allreduce7<float>(float*, float*)',
'p3_rccl':'ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)',
'p3_rccl2':'rccl_main_kernel(ncclDevComm*)',
'p3_oneccl':'oneapi::ccl::reduce_scatter_large_kernel',
'p3_hccl':'hcom_allReduce__485_1_1',
'p3_torchcomms':'ncclx::ctran::ctranAllGatherKernel(int*)',
'p3_ucc':'ucc_tl_cuda_allreduce_kernel',
'p3_ucc2':'ucp_am_send_kernel',
'p3_trtllm':'void tensorrt_llm::kernels::allreduce_fusion_kernel_oneshot_lamport<(tensorrt_llm::kernels::AllReduceFusionPattern)1, __nv_bfloat16, 8, true>(x)',
'p3_flashinfer':'void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_twoshot_sync<x>(y)',
'p3_te_ub':'void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<8>(int)',
'p3_quickreduce':'void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot<__half>>(x)',
'p3_triton':'_all_gather_wait_signal_triton',
'p3_unknown':'acme_fused_exchange_v2',
'p3_unk_fusedgemm':'fused_gemm_exchange_kernel_0',
'p3_pplx':'void pplx::a2aCombineRecvKernel<__nv_bfloat16>(x)',
'p3_hybridep':'void hybrid_ep::combine_kernel<x>(y)',
'p3_perseus':'void kraken::one_shot_sync_kernel',
'p3_mori':'void mori::moe::EpDispatchInterNodeKernel<x>(y)',
'p3_nccl_sym':'ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(ncclSymkDevWorkArgs)',
}
if __name__=='__main__':
    for n,kn in names.items():
        run(Job(n,4,seed=7),6,f=lambda r,i:1.8 if r==2 else 1,layers=4,collkw=dict(kname=kn,collargs=False,op='custom::collective_op',dur=300),ncoll=2).write()
    # healthy with unknown comm, exposing only transfer
    run(Job('p3_unk_rot',4,seed=7),12,f=lambda r,i:1.8 if r==(i*7)%4 else 1,layers=4,collkw=dict(kname='acme_fused_exchange_v2',collargs=False,op='custom::collective_op',dur=300),ncoll=2).write()
    # unknown comm w/ pairs
