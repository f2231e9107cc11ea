from gen import *
exec(open('a5.py').read().split('truth(\'b1\'')[0])
src=open('a3.py').read(); exec('def pp_job'+src.split('def pp_job')[1].split("truth('p2a'")[0].replace('kn=SR',"kn='ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)'"))
body='def packed'+open('a5.py').read().split('def packed')[1].split("truth('b4'")[0].replace('jit=0.0','jit=JJ')
exec(body.replace("x=R.uniform(500,5500)","x=1000.*(k.r+1)"))
JJ=0.03
truth('n1','as e1 with 3 % jitter'); packed('n1').write()
# different: encoder on rank 0,1 (VLM): vision kernels on 0/1, longer llm on 2/3; totals equal
def vlm(name,n=10,jit=.01):
    J=Job(name,4,jit=jit)
    import contextlib as C
    for i in range(n):
        st=[C.ExitStack() for _ in J.ranks]
        for k,s in zip(J.ranks,st):
            s.enter_context(k.span('user_annotation','ProfilerStep#%d'%(i+10)))
            a=[6,5,3,2][k.r]
            for q in range(a): k.op('aten::conv2d',[('sm90_conv_fprop_kernel',1000)])
            for q in range(8-a): k.op('aten::mm',[(GEMM,1000)])
            for q in range(6): k.op('autograd::engine::evaluate_function: MmBackward0',[(GEMM,1500)],tid=k.pid+1)
        J.coll(dur=500)
        for k,s in zip(J.ranks,st):
            with k.span('user_annotation','Optimizer.step#AdamW.step'): k.op('aten::_fused_adamw_',[(ADAM,300)])
            with k.span('cpu_op','aten::item'): k.sync('cudaStreamSynchronize')
            s.close()
    return J
truth('n2','uneven mix by design (vision vs text), total equal: healthy'); vlm('n2').write()
truth('n3','split by rank, two kernels, moe first then attention'); exec(body.replace("x=R.uniform(500,5500)","x=1000.*(4-k.r)").replace('def packed','def packed3')); JJ=.01; packed3('n3').write()
def part(rank,step_,frac):
    def m(k,ev):
        if k.r!=rank: return ev
        s=[e for e in ev if e.get('name')=='ProfilerStep#%d'%step_][0]; c=s['ts']+s['dur']*frac
        return [e for e in ev if e.get('cat') not in('kernel','cuda_runtime','cpu_op') or e['ts']+e['dur']<c]
    return m
truth('n4','2 steps; rank 1 ops end at 40 % of the 2nd (annotations whole): healthy on step 10'); run(Job('n4',4),2).write(mut=part(1,11,.4))
truth('n5','4 steps; rank 1 ends at 30 % of 3rd'); run(Job('n5',4),4).write(mut=part(1,12,.3))
truth('n6','rank 1 only CUDA part ends at 40 % of last of 3 (kernel buffer full)'); 
def partk(rank,step_,frac):
    def m(k,ev):
        if k.r!=rank: return ev
        s=[e for e in ev if e.get('name')=='ProfilerStep#%d'%step_][0]; c=s['ts']+s['dur']*frac
        return [e for e in ev if e.get('cat')!='kernel' or e['ts']+e['dur']<c]
    return m
run(Job('n6',4),3).write(mut=partk(1,12,.4))
truth('n7','pp 2x2 rank 3 slow; rank 2 without kernels'); pp_job('n7',fr=lambda r,i:1.7 if r==3 else 1).write(mut=lambda k,ev:[e for e in ev if not(k.r==2 and e.get('cat')=='kernel')])
truth('n8','pp 2x2 balanced; rank 3 file cut to 3 of 8 steps'); 
def firsthalf(lost,frac):
    def m(k,ev):
        if k.r!=lost: return ev
        x=[e for e in ev if e['ph']=='X' and e['cat']!='Trace']; t0=min(e['ts'] for e in x); t1=max(e['ts'] for e in x)
        return [e for e in ev if e['ph']!='X' or e['cat']=='Trace' or e['ts']+e['dur']<t0+(t1-t0)*frac]
    return m
pp_job('n8').write(mut=firsthalf(3,.4))
truth('n9','gradient accumulation via prof.step per microbatch, loader stall 20 ms on rank 1 each 4th microbatch (at optimizer step)'); 
J=Job('n9',4)
for i in range(16): step(J,i,ncoll=3 if i%4==3 else 0,opt=i%4==3,sync=True,layers=3,data=lambda r,i:20000 if r==1 and i%4==0 else 200)
J.write()
truth('n10','as h9, 24 micro steps'); 
J=Job('n10',4)
for i in range(24): step(J,i,f=lambda r,i:1.6 if r==1 else 1,ncoll=3 if i%4==3 else 0,opt=i%4==3,sync=i%4==3,layers=3)
J.write()
