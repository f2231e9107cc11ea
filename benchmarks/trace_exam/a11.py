from gen import *
exec(open('a5.py').read().split('truth(\'b1\'')[0])
truth('h1','unmarked healthy 8 steps of 19.2 ms (optimizer annotation)'); run(Job('h1',4),8,mark=False).write()
truth('h2','unmarked healthy without loader annotation'); run(Job('h2',4),8,mark=False,loader=False).write()
truth('h3','unmarked, single rank, 8 steps, h'); run(Job('h3',1),8,mark=False,ncoll=0).write()
truth('h4','unmarked 4 steps, rank 2 slow'); run(Job('h4',4),4,mark=False,loader=False,f=R2).write()
truth('h5','unmarked, no sync (host runs far ahead), rank 2 slow'); run(Job('h5',4),8,mark=False,loader=False,f=R2,sync=False).write()
truth('h6','gradient accumulation: 4 fwd/bwd per optimizer step, unmarked, all-reduce only in last'); 
def ga(name,f=lambda r,i:1,mark=False,n=6,W=4,stacks=False):
    J=Job(name,W,stacks=stacks)
    import contextlib as C
    for i in range(n):
        st=[C.ExitStack() for _ in J.ranks]
        for k,s in zip(J.ranks,st):
            if mark: s.enter_context(k.span('user_annotation','ProfilerStep#%d'%(i+10)))
        for m in range(4):
            step(J,i,f=f,mark=False,ncoll=3 if m==3 else 0,opt=m==3,sync=m==3,layers=3)
        for s in st: s.close()
    return J
ga('h6').write()
truth('h7','as h6, rank 1 slow 1.6'); ga('h7',lambda r,i:1.6 if r==1 else 1).write()
truth('h8','grad accumulation where ProfilerStep per micro batch (prof.step each microbatch), healthy');
def gam(name,f=lambda r,i:1,n=12,W=4):
    J=Job(name,W)
    for i in range(n): step(J,i,f=f,ncoll=3 if i%4==3 else 0,opt=i%4==3,sync=i%4==3,layers=3)
    return J
gam('h8').write()
truth('h9','as h8 with rank 1 slow 1.6'); gam('h9',lambda r,i:1.6 if r==1 else 1).write()
truth('h10','as h8, another rank slow in each micro step (averages out over 4: only accumulations matter)'); gam('h10',lambda r,i:1.8 if r==i%4 else 1).write()
truth('h11','steps without sync marks: ProfilerStep host-only; host runs ahead 8 steps, rank 2 slow'); run(Job('h11',4),8,f=R2,sync=False).write()
truth('h12','as h11 healthy'); run(Job('h12',4),8,sync=False).write()
truth('h13','eval loop inside training: steps 10-13 train, 14-17 eval (no backward) rank 2 slow'); 
J=Job('h13',4)
for i in range(8): step(J,i,f=R2,bwd=i<4,ncoll=3 if i<4 else 0,opt=i<4)
J.write()
truth('h14','as h13 healthy'); 
J=Job('h14',4)
for i in range(8): step(J,i,bwd=i<4,ncoll=3 if i<4 else 0,opt=i<4)
J.write()
truth('h15','TP4 vLLM inference rank 2 slow 1.7, custom allreduce, execute_model marks')
def tpinf(name,f,n=12,marks='execute_context_0(0)_generation_16(16)',stacks=False,us=200.,kn='void vllm::cross_device_reduce_1stage<__nv_bfloat16, 4>(x)',host=8,wait=0,L=16):
    J=Job(name,4,stacks=stacks)
    import contextlib as C
    for i in range(n):
        st=[C.ExitStack() for _ in J.ranks]
        for k in J.ranks:
            if wait:
                with k.py('shm_broadcast.py(400): acquire_read'):
                    with k.py('<built-in function sched_yield>'): k.busy(wait)
        for k,s in zip(J.ranks,st): s.enter_context(k.py('vllm/v1/worker/gpu_model_runner.py(1200): execute_model'));  s.enter_context(k.span('user_annotation',marks.format(i=i)))
        for l in range(L):
            for k in J.ranks: k.op('aten::linear',[(GEMM,us*f(k.r,i))],host=host)
            J.coll(kn,20.,collargs=False,op='_C_custom_ar::all_reduce',stream=7)
        for k,s in zip(J.ranks,st):
            with k.span('cpu_op','aten::item'): k.sync('cudaStreamSynchronize')
            s.close()
    return J
tpinf('h15',lambda r,i:1.7 if r==2 else 1).write()
truth('h16','TP4 inference healthy'); tpinf('h16',lambda r,i:1).write()
truth('h17','TP4 inference launch-bound (us=3,host 25)'); tpinf('h17',lambda r,i:1,us=3,host=25).write()
truth('h18','TP4 inference, wait for requests 10 ms in shm broadcast, stacks'); tpinf('h18',lambda r,i:1,wait=10000,stacks=True).write()
truth('h19','TP4 inference unmarked rank 2 slow'); tpinf('h19',lambda r,i:1.7 if r==2 else 1,marks='forward').write()
truth('h20','blocking .item() after each layer, training 1 rank, device idle due to sync: host-bound / sync');
J=Job('h20',1); k=J.ranks[0]; o=k.op
def sy(name,kernels=(),**kw):
    o(name,kernels,**kw)
    with k.span('cpu_op','aten::item'):
        with k.span('cpu_op','aten::_local_scalar_dense'):
            k.launch('Memcpy DtoH (Device -> Pinned)',1.5,cat='gpu_memcpy',call='cudaMemcpyAsync',args={'bytes':4}); k.sync('cudaStreamSynchronize'); k.busy(60)
k.op=sy; run(J,8,us=60,layers=20,ncoll=0).write()
