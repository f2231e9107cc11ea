from gen import *
exec(open('a5.py').read().split('truth(\'b1\'')[0])
src=open('a3.py').read(); exec('def pp_job'+src.split('def pp_job')[1].split("truth('p2a'")[0].replace('kn=SR',"kn='ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)'").replace("for s in range(stages): J.coll('ncclDevKernel_ReduceScatter","for s in (range(stages) if dp>1 else []): J.coll('ncclDevKernel_ReduceScatter").replace("for s in range(stages): pgs['dp%d'%s]","for s in (range(stages) if dp>1 else []): pgs['dp%d'%s]"))
truth('o1','pp 4x1 (no dp), last stage long 1.5 always'); pp_job('o1',stages=4,dp=1,fs=lambda s,i:1.5 if s==3 else 1,mb=8).write()
truth('o2','pp 4x1 stage 1 slow 1.8'); pp_job('o2',stages=4,dp=1,fs=lambda s,i:1.8 if s==1 else 1,mb=8).write()
truth('o3','pp 4x1 balanced, mb 8'); pp_job('o3',stages=4,dp=1,mb=8).write()
truth('o4','pp 2x2 balanced no final global all-reduce'); pp_job('o4',final=False).write()
truth('o5','3 ranks compute-split mixture with layernorm: realistic DP, healthy but rank-different kernel choice: rank 2 uses slower gemm (autotune) yet faster attention; totals equal')
J=Job('o5',4)
import contextlib as C
for i in range(10):
    st=[C.ExitStack() for _ in J.ranks]
    for k,s in zip(J.ranks,st):
        s.enter_context(k.span('user_annotation','ProfilerStep#%d'%(i+10)))
        for l in range(4):
            k.op('aten::mm',[(GEMM,1500 if k.r==2 else 1000)]); k.op('flash_attn::_flash_attn_forward',[('void flash::flash_fwd_kernel<x>',500 if k.r==2 else 1000)])
        for l in range(4): k.op('autograd::engine::evaluate_function: MmBackward0',[(GEMM+'_bwd',2000)],tid=k.pid+1)
    J.coll(dur=500)
    for k,s in zip(J.ranks,st):
        with k.span('user_annotation','Optimizer.step#AdamW.step'): k.op('aten::_fused_adamw_',[(ADAM,300)])
        with k.span('cpu_op','aten::item'): k.sync('cudaStreamSynchronize')
        s.close()
J.write()
truth('o6','host python 1 rank spread, launch starved heavily (us=200) with stacks'); run(Job('o6',4,stacks=True),8,us=200,layers=12,hostslow=lambda r,i:24000 if r==1 else 0).write()
truth('o7','same no stacks'); run(Job('o7',4),8,us=200,layers=12,hostslow=lambda r,i:24000 if r==1 else 0).write()
run(Job('o8',4),8,us=200,layers=12).write()
truth('o9','ALL ranks: python 24 ms spread, stacks'); run(Job('o9',4,stacks=True),8,us=200,layers=12,hostslow=lambda r,i:24000).write()
truth('o10','ALL ranks: python 24 ms spread, no stacks'); run(Job('o10',4),8,us=200,layers=12,hostslow=lambda r,i:24000).write()
