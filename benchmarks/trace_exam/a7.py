from gen import *
import copy
exec(open('a5.py').read().split('truth(\'b1\'')[0])
# --- devices
def conv(J,fn,**kw): J.write(mut=fn,**kw)
def ascend(r,slow=1.0,steps=5,busy=True,gapscale=1.0):
    ev=[]; P=100+r; t=1000.0
    for pid,nm in ((P,'Python'),(P+1000,'CANN'),(P+2000,'Ascend Hardware'),(P+3000,'HCCL')): ev.append(dict(ph='M',name='process_name',pid=pid,tid=0,args={'name':nm}))
    ev.append(dict(ph='M',name='thread_name',pid=P+2000,tid=2,args={'name':'Stream 2'})); ev.append(dict(ph='M',name='thread_name',pid=P+3000,tid=3,args={'name':'Group 0 Communication'}))
    return ev,P
def ascjob(name,slow,steps=6,W=4,listfmt=True,hccl=True,prof=True):
    d=OUT+name; shutil.rmtree(d,ignore_errors=True)
    R=random.Random(3); evs=[];Ps=[]
    for r in range(W):
        e,P=ascend(r); evs.append(e);Ps.append(P)
    t=[1000.0]*W
    for i in range(steps):
        t0=list(t); ends=[]
        for r in range(W):
            h=t[r]+50; dv=h+20
            for l in range(6):
                evs[r].append(dict(ph='X',name='aten::mm',cat='cpu_op',pid=Ps[r],tid=Ps[r],ts=str(round(h,3)),dur=20,args={}))
                du=1000*slow(r,i)*R.uniform(.99,1.01)
                evs[r].append(dict(ph='X',name='MatMulV2',pid=Ps[r]+2000,tid=2,ts=str(round(dv,3)),dur=round(du,3),args={'Model Id':1,'Task Type':'AI_CORE','Stream Id':2,'Task Id':l}))
                dv+=du+1; h+=25
            evs[r].append(dict(ph='X',name='autograd::engine::evaluate_function: MmBackward0',cat='cpu_op',pid=Ps[r],tid=Ps[r]+1,ts=str(round(h,3)),dur=20,args={}))
            ends.append(dv)
        E=max(ends)+700
        for r in range(W):
            if hccl:
                evs[r].append(dict(ph='X',name='hcom_allReduce__485_%d_1'%i,pid=Ps[r]+3000,tid=3,ts=str(round(ends[r],3)),dur=round(E-ends[r],3),args={'connection_id':i,'model id':1,'data_type':'fp32','alg_type':'RING','count':1000000}))
                evs[r].append(dict(ph='X',name='hcom_allReduce__485_%d_1'%i,pid=Ps[r]+2000,tid=2,ts=str(round(ends[r],3)),dur=round(E-ends[r],3),args={}))
            evs[r].append(dict(ph='X',name='ProfilerStep#%d'%(i+3),cat='user_annotation',pid=Ps[r],tid=Ps[r],ts=str(round(t0[r],3)),dur=round(E+20-t0[r],3),args={}))
            t[r]=E+30
    for r in range(W):
        p=d+'/host_%d_2024_ascend_pt/ASCEND_PROFILER_OUTPUT'%r; os.makedirs(p); json.dump(evs[r],open(p+'/trace_view.json','w'))
        if prof: json.dump({'config':{},'rank_id':r},open(d+'/host_%d_2024_ascend_pt/profiler_info_%d.json'%(r,r),'w'))
truth('d1','ascend 4 ranks rank 2 slow 1.8'); ascjob('d1',lambda r,i:1.8 if r==2 else 1)
truth('d2','ascend healthy'); ascjob('d2',lambda r,i:1)
def catmap(m,namef=None):
    def f(k,ev):
        out=[]
        for e in ev:
            e=dict(e)
            if e.get('cat') in m: e['cat']=m[e['cat']]
            out.append(e)
        return out
    return f
truth('d3','Gaudi-like: device events cat "hpu_op" , launches none; rank 2 slow'); run(Job('d3',4),8,f=lambda r,i:1.8 if r==2 else 1).write(mut=catmap({'kernel':'hpu_op','cuda_runtime':'synapse'}))
truth('d4','Gaudi healthy hpu_op'); run(Job('d4',4),8).write(mut=catmap({'kernel':'hpu_op','cuda_runtime':'synapse'}))
truth('d5','XPU: cat kernel, xpu_runtime; rank 2 slow'); run(Job('d5',4),8,f=lambda r,i:1.8 if r==2 else 1,collkw=dict(kname='oneapi::ccl::allreduce_medium',collargs=False)).write(mut=catmap({'cuda_runtime':'xpu_runtime'}))
truth('d6','MTIA: mtia_ccp_events etc'); run(Job('d6',4),8,f=lambda r,i:1.8 if r==2 else 1).write(mut=catmap({'kernel':'mtia_ccp_events','cuda_runtime':'mtia_runtime'}))
truth('d7','privateuse1: privateuse1_runtime / privateuse1_driver w/ kernel'); run(Job('d7',4),8).write(mut=catmap({'kernel':'kernel','cuda_runtime':'privateuse1_runtime'}))
truth('d8','device events of unknown category "npu_task" without category for half; rank 2 slow'); run(Job('d8',4),8,f=lambda r,i:1.8 if r==2 else 1).write(mut=catmap({'kernel':'npu_task','cuda_runtime':'npu_runtime'}))
# Gaudi real: no cat, process "Device" etc
def gaudi(k,ev):
    out=[dict(ph='M',name='process_name',pid=999,tid=0,args={'name':'HPU Device 0'})]
    for e in ev:
        e=dict(e)
        if e.get('cat')=='kernel': e.pop('cat'); e['pid']=999
        elif e.get('cat')=='cuda_runtime': continue
        out.append(e)
    return out
truth('d9','no-category device events in process "HPU Device 0"; rank 2 slow'); run(Job('d9',4),8,f=lambda r,i:1.8 if r==2 else 1).write(mut=gaudi)
truth('d10','as d9 healthy'); run(Job('d10',4),8).write(mut=gaudi)
# TPU xplane
def tpu(k,ev):
    out=[dict(ph='M',name='process_name',pid=999,tid=0,args={'name':'/device:TPU:0'}),dict(ph='M',name='thread_name',pid=999,tid=2,args={'name':'XLA Ops'}),dict(ph='M',name='process_name',pid=1000,tid=0,args={'name':'/host:CPU'})]
    for e in ev:
        if e.get('cat')=='kernel':
            out.append(dict(ph='X',name='all-reduce.1' if 'nccl' in e['name'] else 'fusion.%d'%(len(out)%7),pid=999,tid=2,ts=e['ts'],dur=e['dur'],args={}))
        elif e.get('cat')=='user_annotation': out.append(dict(ph='X',name=e['name'],pid=1000,tid=1,ts=e['ts'],dur=e['dur']))
    return out
truth('d11','TPU xplane JSON 4 ranks, rank 2 slow'); 
J=run(Job('d11',4),8,f=lambda r,i:1.8 if r==2 else 1); J.write(mut=tpu)
# rocprof: ROCm
truth('d12','ROCm hip names rank 2 slow RCCL'); run(Job('d12',4,device='AMD Instinct MI300X'),8,f=lambda r,i:1.8 if r==2 else 1,collkw=dict(kname='ncclDevKernel_Generic(ncclDevComm*)',collargs=False)).write(mut=lambda k,ev:[dict(e,name=e['name'].replace('cudaLaunchKernelExC','hipExtLaunchKernel').replace('cudaLaunchKernel','hipLaunchKernel').replace('cudaStreamSynchronize','hipStreamSynchronize')) for e in ev])
# packing rank-constant
JJ=0.001
exec('def packed'+open('a5.py').read().split('def packed')[1].split("truth('b4'")[0].replace('jit=0.0','jit=JJ').replace("x=R.uniform(500,5500)","x=1000.*(k.r+1)"))
truth('d13','attn/moe split constant by rank (context parallel causal: rank r attention longer, moe shorter), total equal: healthy; nobody late'); packed('d13').write()
# sporadic: rank 0 15 ms every 4th, in named python function
def spor(name,stacks,every=4,us=15000,n=16,rank=0,all_=False):
    J=Job(name,4,stacks=stacks)
    run(J,n,hostslow=lambda r,i:us if (r==rank or all_) and i%every==every-1 else 0); return J
truth('d14','rank 0: 40 ms python (tokenize_again) every 4th step of 16, stacks: 25+ % of time'); spor('d14',True,us=40000).write()
truth('d15','same no stacks'); spor('d15',False,us=40000).write()
truth('d16','rank 1: every 2nd step 20 ms python; stacks'); spor('d16',True,every=2,us=20000,rank=1).write()
truth('d17','all ranks: every 4th step 60 ms (eval/checkpoint), stacks'); spor('d17',True,us=60000,all_=True).write()
truth('d18','loader stall on rank 0 every 5th step 50 ms (workers starve), 20 steps'); run(Job('d18',4),20,data=lambda r,i:50000 if r==0 and i%5==2 else 200).write()
truth('d19','loader stall on ALL every 5th step 60 ms'); run(Job('d19',4),20,data=lambda r,i:60000 if i%5==2 else 200).write()
truth('d20','thermal: rank 3 slow 1.8 only in last 7 of 20 steps'); run(Job('d20',4),20,f=lambda r,i:1.8 if r==3 and i>=13 else 1).write()
