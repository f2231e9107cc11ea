from gen import *
exec(open('a5.py').read().split("# startup / unmarked")[0].split('truth(\'b1\'')[0])
src=open('a5.py').read(); exec('def infer'+src.split('def infer')[1].split("infer('b8',1)")[0]); exec('def packed'+src.split('def packed')[1].split("truth('b4'")[0].replace('jit=0.0','jit=JJ'))
JJ=0.002
truth('c1','varlen packing with 0.2 % jitter, compute kernels: healthy, nothing waits in grouped gemm'); packed('c1').write()
JJ=0.0005
truth('c2','varlen packing with 0.05 % jitter'); packed('c2').write()
# host-bound strong
truth('c3','4 ranks all host-bound strongly (device ~15 % busy)'); run(Job('c3',4),8,us=2,layers=60,colldur=60,ncoll=2,data=lambda r,i:50).write()
truth('c4','same with stacks'); run(Job('c4',4,stacks=True),8,us=2,layers=60,colldur=60,ncoll=2,data=lambda r,i:50).write()
# serving waits requests, stacks, variants
truth('c5','serving waits 50 ms in queue.get, marks execute_model, stacks'); infer('c5',10,layers=20,us=800,reqwait=50000,stacks=True,marks='execute_model').write()
truth('c6','serving waits 50 ms in queue.get, inside ProfilerStep? no marks, forward fn marks vLLM gpu_model_runner'); infer('c6',10,layers=20,us=800,reqwait=50000,stacks=True,pyf='vllm/v1/worker/gpu_model_runner.py(1200): execute_model').write()
truth('c7','loader slow on rank 1 (8ms), no stacks'); run(Job('c7',4),8,data=lambda r,i:8000 if r==1 else 200).write()
truth('c8','loader slow on all ranks 15 ms, no stacks'); run(Job('c8',4),8,data=lambda r,i:15000).write()
truth('c9','loader slow on all, stacks'); run(Job('c9',4,stacks=True),8,data=lambda r,i:15000).write()
truth('c10','loader slow on another rank each time 10 ms'); run(Job('c10',4),12,data=lambda r,i:10000 if r==(i*3)%4 else 200).write()
truth('c11','slow network: all-reduce 8 ms x3 everywhere'); run(Job('c11',4),8,colldur=8000).write()
truth('c12','TP2xDP2: rank 2 slow 1.7 -> its TP peer 3 is victim only')
def tpdp(name,f,n=8,tp=2,dp=2,stacks=False,hs=None,us=400.,pg_known=True,**kw):
    W=tp*dp; pgs={'0':('default_pg',list(range(W)))}
    for d in range(dp): pgs['tp%d'%d]=('TENSOR_MODEL_PARALLEL_GROUP',list(range(d*tp,(d+1)*tp)))
    for t in range(tp): pgs['dp%d'%t]=('DATA_PARALLEL_GROUP',list(range(t,W,tp)))
    J=Job(name,W,pgs=pgs,stacks=stacks,**kw)
    import contextlib as C
    for i in range(n):
        st=[C.ExitStack() for _ in J.ranks]
        for k,s in zip(J.ranks,st): s.enter_context(k.span('user_annotation','ProfilerStep#%d'%(i+10))); s.enter_context(k.py('pretrain.py(30): train_step'))
        for b in (0,1):
            for l in range(6):
                for k in J.ranks:
                    if hs and hs(k.r,i):
                        with k.py('model.py(99): hostwork'): k.busy(hs(k.r,i)/12)
                    k.op('autograd::engine::evaluate_function: MmBackward0' if b else 'aten::mm',[(GEMM,us*(1+b)*f(k.r,i))],tid=k.pid+1 if b else None)
                for d in range(dp): J.coll(dur=80.,pg='tp%d'%d,stream=22,tids={k.r:k.pid+1 for k in J.ranks} if b else None)
        for t in range(tp): J.coll('ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(x)',600.,'dp%d'%t,coll='_reduce_scatter_base',op='nccl:_reduce_scatter_base')
        for k,s in zip(J.ranks,st):
            with k.span('user_annotation','Optimizer.step#AdamW.step'): k.op('aten::_fused_adamw_',[(ADAM,300)])
            with k.span('cpu_op','aten::item'): k.sync('cudaStreamSynchronize')
            s.close()
    return J
tpdp('c12',lambda r,i:1.7 if r==2 else 1).write()
truth('c13','TP2xDP4, rank 5 host slow 6 ms (1us gaps), stacks'); tpdp('c13',lambda r,i:1,dp=4,stacks=True,hs=lambda r,i:9000 if r==5 else 0).write()
truth('c14','same no stacks'); tpdp('c14',lambda r,i:1,dp=4,hs=lambda r,i:9000 if r==5 else 0).write()
truth('c15','TP2xDP4 healthy'); tpdp('c15',lambda r,i:1,dp=4).write()
truth('c16','TP4xDP2 both ranks of host (0-3)? all of TP group 0 slow 1.4'); tpdp('c16',lambda r,i:1.4 if r<4 else 1,tp=4,dp=2).write()
truth('c17','checkpoint of rank 0: 60 ms in step 5 of 12 only; rest fine'); run(Job('c17',4),12,opthost=lambda r,i:60000 if r==0 and i==5 else 0).write()
truth('c18','rank 0 logs each 4th step 15 ms of 16 steps'); run(Job('c18',4,stacks=True),16,opthost=lambda r,i:15000 if r==0 and i%4==3 else 0).write()
truth('c19','rank 3 launch slow (weak CPU: host ops 3x, GPU starved), compute equal'); 
J=Job('c19',4)
J.ranks[3].j=lambda x,k=J.ranks[3]: x*(1+.01*k.rng.gauss(0,1))*(1.0 if x>=15 else 1.0)
o=J.ranks[3].op
def slowop(name,kernels=(),host=8.0,**kw): return o(name,kernels,host=400.0,**kw)
J.ranks[3].op=slowop
run(J,8,us=150,layers=20).write()
truth('c20','c19 with stacks');
J=Job('c20',4,stacks=True); o2=J.ranks[3].op
J.ranks[3].op=lambda name,kernels=(),host=8.0,**kw:o2(name,kernels,host=400.0,**kw)
run(J,8,us=150,layers=20).write()
