from gen import *
T=open('truth-again.txt','a')
def truth(n,t): T.write(n+': '+t+'\n')
R2=lambda r,i:1.8 if r==2 else 1
UK=dict(kname='acme_fused_exchange_v2',collargs=False,op='custom::collective_op',dur=300)
truth('b1','unknown comm kernel, clocks 5 ms*k apart, rank 2 slow'); run(Job('b1',4,clock_off=5000.),8,f=R2,collkw=UK).write()
truth('b2','unknown comm kernel, clocks drift, rotating'); run(Job('b2',4,clock_off=5000.),12,f=lambda r,i:1.6 if r==i%4 else 1,collkw=UK).write()
truth('b3','nccl, clocks 5ms*k apart, rank 2 slow'); run(Job('b3',4,clock_off=5000.),8,f=R2).write()
# compute kernels packed so that total is const: healthy, no comm
def packed(name,world=4,n=12,withcoll=True,rank_bias=None):
    J=Job(name,world,jit=0.0); R=random.Random(2)
    import contextlib as C
    for i in range(n):
        st=[C.ExitStack() for _ in J.ranks]
        for k,s in zip(J.ranks,st):
            s.enter_context(k.span('user_annotation','ProfilerStep#%d'%(i+10)))
            k.op('aten::mm',[(GEMM,3000)])
            x=R.uniform(500,5500)
            k.op('flash_attn::_flash_attn_forward',[('void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t>>',x)])
            k.op('moe::grouped_gemm',[('void cutlass::device_kernel<grouped_gemm>',6000-x)])
            k.op('autograd::engine::evaluate_function: MmBackward0',[(GEMM,6000)],tid=k.pid+1)
        if withcoll: J.coll(dur=500)
        for k,s in zip(J.ranks,st):
            with k.span('user_annotation','Optimizer.step#AdamW.step'): k.op('aten::_fused_adamw_',[(ADAM,300)])
            with k.span('cpu_op','aten::item'): k.sync('cudaStreamSynchronize')
            s.close()
    return J
truth('b4','varlen packing: attn time + moe time const per rank and step; comp kernels; nothing is waiting: healthy'); packed('b4').write()
truth('b5','as b4 but rank-constant split: rank r attn = 1000*(r+1)'); 
# startup / unmarked
truth('b6','unmarked training 8 steps, first step 2 s compile; rank 2 slow 1.8 ')
def st0(J,sec):
    for k in J.ranks:
        with k.span('cpu_op','cudaLaunch init'):
            k.rt('cudaFree',sec*1e6*.4)
            k.rt('cuModuleLoadData',sec*1e6*.2)
        with k.span('cpu_op','TorchDynamo Cache Lookup'): k.busy(sec*1e6*.4)
J=Job('b6',4); st0(J,2.0); run(J,8,f=R2,mark=False).write()
truth('b7','marked training single rank 5 steps, first step with compile 3 s inside step 10; rest healthy ~19 ms, host ok')
J=Job('b7',1)
k=J.ranks[0]
def comp(i):
    return 3e6 if i==0 else 0
run(J,6,hostslow=lambda r,i:comp(i)).write()
truth('b8','unmarked, no optimizer, no backward: inference forward with 40 equal layers once (no iterations)')
def infer(name,n=1,layers=40,us=900,marks=None,sync=True,host=8,stacks=False,gap=0,world=1,copy=None,reqwait=0,nm='aten::linear',pyf='serve.py(10): generate',syncevery=True):
    J=Job(name,world,stacks=stacks)
    import contextlib as C
    for k in J.ranks:
        with k.py('serve.py(3): <module>'):
          for i in range(n):
            if reqwait:
                with k.py('queue.py(154): get'):
                    with k.py('threading.py(295): wait'):
                        with k.py('<built-in method acquire of _thread.lock object at 0x7f>'): k.busy(k.j(reqwait))
            with (k.span('user_annotation',marks.format(i=i)) if marks else C.nullcontext()):
              with k.py(pyf):
                if copy:
                    with k.span('cpu_op','aten::to'):
                        with k.span('cpu_op','aten::copy_'):
                            t=k.h; st=k.launch('Memcpy HtoD (Pageable -> Device)',copy,cat='gpu_memcpy',call='cudaMemcpyAsync',cost=5,args={'bytes':int(copy*6000)}); 
                            # blocking: extend call
                            e=[x for x in k.ev if x and x['name']=='cudaMemcpyAsync'][-1]; e['dur']=copy+10; k.h+=copy+6
                for l in range(layers):
                    with k.py('nn.Module: Linear_%d'%l): k.op(nm,[(GEMM,us)],host=host)
                    if gap: k.busy(gap)
                if sync:
                    with k.span('cpu_op','aten::item'): k.sync('cudaStreamSynchronize')
    return J
infer('b8',1).write()
truth('b9','inference, 12 decode batches launch-bound: kernels 3us, host 40us per op: host/launch-bound'); infer('b9',12,layers=60,us=3,host=30).write()
truth('b10','same with stacks: same answer'); infer('b10',12,layers=60,us=3,host=30,stacks=True).write()
truth('b11','vLLM-like execute_model marks launch-bound'); infer('b11',12,layers=60,us=3,host=30,marks='execute_context_0(0)_generation_{i}(16)').write()
truth('b12','inference with blocking pageable copy 20 ms per batch of 36ms'); infer('b12',10,layers=20,us=800,copy=20000,marks='iteration {i}').write()
truth('b13','as b12, no marks'); infer('b13',10,layers=20,us=800,copy=20000).write()
truth('b14','serving: waits 50 ms for requests then 16 ms compute; stacks'); infer('b14',10,layers=20,us=800,reqwait=50000,stacks=True).write()
truth('b15','serving waits for requests, no stacks, batch marks'); infer('b15',10,layers=20,us=800,reqwait=50000,marks='execute_model').write()
truth('b16','inference with ProfilerStep, compute-bound: healthy'); infer('b16',10,layers=20,us=800,marks='ProfilerStep#{i}').write()
truth('b17','inference with ProfilerStep, launch bound'); infer('b17',10,layers=60,us=3,host=30,marks='ProfilerStep#{i}').write()
truth('b18','inference with ProfilerStep, launch bound, stacks'); infer('b18',10,layers=60,us=3,host=30,marks='ProfilerStep#{i}',stacks=True).write()
# host-bound training w and wo stacks, 4 ranks
truth('b19','4 ranks all host-bound (device busy 15%), marks'); run(Job('b19',4),8,us=8,layers=40,colldur=60,ncoll=2,data=lambda r,i:50).write()
truth('b20','same stacks'); run(Job('b20',4,stacks=True),8,us=8,layers=40,colldur=60,ncoll=2,data=lambda r,i:50).write()
# one iteration
truth('b21','one step, 8 collectives, rank 1 slow 2x, marks: ~45 % gain'); run(Job('b21',4),1,layers=8,ncoll=8,f=lambda r,i:2 if r==1 else 1).write()
truth('b22','one step no marks'); run(Job('b22',4),1,layers=8,ncoll=8,f=lambda r,i:2 if r==1 else 1,mark=False).write()
truth('b23','one step healthy'); run(Job('b23',4),1,layers=8,ncoll=8).write()
truth('b24','one step; 8 collectives; another rank late each: rotating within the step'); run(Job('b24',4,seed=3),1,layers=8,ncoll=8).write()
