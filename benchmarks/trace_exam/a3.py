from gen import *
T=open('truth-again.txt','a')
def truth(n,t): T.write(n+': '+t+'\n')
# Pipelines: 2 stages x 2 replicas (0,1)=stage0 dp, (2,3)=stage1; pp pairs (0,2),(1,3)
SR='ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)'
def pp_job(name,stages=2,dp=2,n=8,mb=4,fs=lambda s,i:1.0,fr=lambda r,i:1.0,us=1500.,tiedemb=False,pairargs=True,stacks=False,lastextra=0.0,seed=1,kn=SR,opname='nccl:send',desc='PIPELINE_MODEL_PARALLEL_GROUP',named_p2p=True,final=True):
    W=stages*dp
    pgs={'0':('default_pg',list(range(W)))}
    for s in range(stages): pgs['dp%d'%s]=('DATA_PARALLEL_GROUP',list(range(s*dp,(s+1)*dp)))
    for d in range(dp):
        for s in range(stages-1): pgs['p%d_%d'%(d,s)]=(desc,[s*dp+d,(s+1)*dp+d]) 
        pgs['e%d'%d]=('EMBEDDING_GROUP',[d,(stages-1)*dp+d])
    J=Job(name,W,pgs=pgs,stacks=stacks,seed=seed)
    import contextlib as C
    for i in range(n):
        st=[C.ExitStack() for _ in J.ranks]
        for k,s in zip(J.ranks,st): s.enter_context(k.span('user_annotation','ProfilerStep#%d'%(i+10)))
        # GPipe: forward mb's then backwards
        def comp(r,b):
            k=J.ranks[r]; s=r//dp; m=2.0 if b else 1.0
            x=us*m*fs(s,i)*fr(r,i)
            nm='autograd::engine::evaluate_function: MmBackward0' if b else 'aten::mm'
            k.op(nm,[(GEMM,x/2),(GEMM,x/2)],tid=k.pid+1 if b else None)
            if s==stages-1 and lastextra: k.op('aten::log_softmax' if not b else 'autograd::engine::evaluate_function: LogSoftmaxBackward0',[('void cunn_SoftMaxForward<8, c10::BFloat16>',lastextra*m)],tid=k.pid+1 if b else None)
        for b in (0,1):
            for m in range(mb):
                order=range(stages) if not b else range(stages-1,-1,-1)
                for s in order:
                    for d in range(dp): comp(s*dp+d,b)
                    nxt=s+1 if not b else s-1
                    if 0<=nxt<stages:
                        for d in range(dp):
                            J.coll(kn,60.,'p%d_%d'%(d,min(s,nxt)),coll='send' if True else '',nelems=4000000,stream=30+b,op=opname)
        if tiedemb:
            for d in range(dp): J.coll(dur=200,pg='e%d'%d,op='nccl:all_reduce',nelems=5000000)
        for s in range(stages): J.coll('ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)',500.,'dp%d'%s,coll='_reduce_scatter_base',op='nccl:_reduce_scatter_base',nelems=9000000)
        if final: J.coll(dur=30,pg='0',nelems=1)
        for k in J.ranks:
            with k.span('user_annotation','Optimizer.step#AdamW.step'): k.op('aten::_fused_adamw_',[(ADAM,300)])
            with k.span('cpu_op','aten::item'): k.sync('cudaStreamSynchronize')
        for s in st: s.close()
    return J
truth('p2a','2 stages x2, last stage 1.6x long by structure: no worker faulty; waiting share said'); pp_job('p2a',fs=lambda s,i:1.6 if s==1 else 1).write()
truth('p2b','2 stages x2 balanced; bubbles >10%: nobody to blame, waiting share said'); pp_job('p2b').write()
truth('p2c','2 stages x 2, rank 3 slow 1.7 (stage 1, replica 1) -> worker 3'); pp_job('p2c',fr=lambda r,i:1.7 if r==3 else 1).write()
truth('p2d','4 stages x 2, balanced'); pp_job('p2d',stages=4,dp=2,mb=8).write()
truth('p2e','4 stages x 2, rank 2 (stage1) slow 1.6'); pp_job('p2e',stages=4,dp=2,mb=8,fr=lambda r,i:1.6 if r==2 else 1).write()
truth('p2f','2x2 tied embeddings, last stage with extra loss kernels: structure'); pp_job('p2f',tiedemb=True,lastextra=800).write()
truth('p2g','4 stages x 1 (dp=1: every stage one worker), last stage long 1.5: structure, cannot tell worker from stage'); pp_job('p2g',stages=4,dp=1,fs=lambda s,i:1.5 if s==3 else 1).write()
truth('p2h','2 stages x 1 (2 workers only), balanced; half of time waiting (no microbatch): mb=1'); pp_job('p2h',stages=2,dp=1,mb=1).write()
truth('p2i','4 stages x2, second replica of every stage 2 % slower (noise): healthy/bubbles'); pp_job('p2i',stages=4,fr=lambda r,i:1.02 if r%2 else 1).write()
# dp pairs rotate: groups of two (HSDP) with another one slow each time
def hsdp(name,f,n=12,W=4):
    pgs={'0':('default_pg',list(range(W)))}
    for s in range(W//2): pgs['s%d'%s]=('mesh_shard',[2*s,2*s+1])
    for s in range(2): pgs['r%d'%s]=('mesh_replicate',list(range(s,W,2)))
    J=Job(name,W,pgs=pgs)
    def cl(job,l):
        for s in range(W//2): job.coll('ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(x)',400.,'s%d'%s,coll='_reduce_scatter_base',op='nccl:_reduce_scatter_base')
        if l==5:
            for s in range(2): job.coll(dur=300.,pg='r%d'%s)
    run(J,n,f=f,coll=cl); return J
truth('p2j','HSDP 2x2 groups of two; rank 1 slow 1.5 -> worker 1'); hsdp('p2j',lambda r,i:1.5 if r==1 else 1).write()
truth('p2k','HSDP groups of two; another rank slow each step: waiting >10% named, nobody'); hsdp('p2k',lambda r,i:1.6 if r==i%4 else 1).write()
truth('p2l','8 ranks HSDP groups of two random per-rank variance sigma .3 each step (variable lengths)'); R=random.Random(5); V={(r,i):1+abs(R.gauss(0,.35)) for r in range(8) for i in range(12)}
hsdp('p2l',lambda r,i:V[r,i],W=8).write()
