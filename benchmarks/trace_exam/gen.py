import json, gzip, random, os, contextlib, shutil
OUT=os.environ.get("TRACES","traces")+"/"
class Rank:
    def __init__(s, job, r):
        s.job=job; s.r=r; s.ev=[]; s.h=1000.0; s.st={}; s.off=job.t0+job.clock_off*(r*37%11); s.pid=4000+r; s.tid=s.pid; s.corr=1; s.eid=1; s.pyid=1; s.pystack=[]; s.rng=job.rng
        s.dev=r if job.local_dev is None else job.local_dev
        s.seqs={}; s.fields=[]
    def j(s,x): return x*(1+s.job.jit*s.rng.gauss(0,1)) if s.job.jit else x
    def emit(s,cat,name,ts,dur,tid=None,pid=None,args=None):
        s.ev.append(dict(ph='X',cat=cat,name=name,pid=s.pid if pid is None else pid,tid=s.tid if tid is None else tid,ts=round(s.off+ts,3),dur=round(dur,3),args=args or {}))
    @contextlib.contextmanager
    def span(s,cat,name,tid=None,**args):
        t=s.h; s.eid+=1; a={'External id':s.eid,'Record function id':s.eid,'Ev Idx':s.eid}; a.update(args)
        i=len(s.ev); s.ev.append(None)
        yield
        s.ev[i]=dict(ph='X',cat=cat,name=name,pid=s.pid,tid=tid or s.tid,ts=round(s.off+t,3),dur=round(s.h-t,3),args=a)
        s.h+=0.5
    @contextlib.contextmanager
    def py(s,name):
        if not s.job.stacks:
            yield; return
        t=s.h; me=s.pyid; s.pyid+=1; parent=s.pystack[-1] if s.pystack else None; s.pystack.append(me)
        i=len(s.ev); s.ev.append(None); s.h+=0.3
        yield
        s.h+=0.3
        s.ev[i]=dict(ph='X',cat='python_function',name=name,pid=s.pid,tid=s.tid,ts=round(s.off+t,3),dur=round(s.h-t,3),args={'Python id':me,'Python parent id':parent,'Ev Idx':me})
        s.pystack.pop(); s.h+=0.2
    def rt(s,name,dur,tid=None,**a):
        s.corr+=1; a2={'External id':s.eid,'cbid':211,'correlation':s.corr}; a2.update(a)
        s.emit('cuda_runtime',name,s.h,dur,tid=tid,args=a2); t=s.h; s.h+=dur; return t
    def launch(s,kname,dur,stream=7,tid=None,cat='kernel',call='cudaLaunchKernel',cost=4.0,after=None,args=None):
        t=s.rt(call,s.j(cost),tid=tid)
        st=max(s.st.get(stream,0)+1.0,t+cost+2,after or 0)
        d=dur
        a={'External id':s.eid,'queued':0,'device':s.dev,'context':1,'stream':stream,'correlation':s.corr,'grid':[108,1,1],'block':[256,1,1]}
        if args:a.update(args)
        s.emit(cat,kname,st,d,tid=stream,pid=s.dev,args=a)
        s.st[stream]=st+d
        return st
    def op(s,name,kernels=(),host=8.0,tid=None,stream=7,after=None):
        with s.span('cpu_op',name,tid=tid):
            s.h+=s.j(host)/2
            for k,d in kernels: s.launch(k,s.j(d),stream=stream,tid=tid,after=after); after=None
            s.h+=s.j(host)/2
    def busy(s,us): s.h+=us
    def sync(s,name='cudaDeviceSynchronize'):
        end=max(s.st.values() or [0]); t=s.h; d=max(5.0,end+3-s.h); s.rt(name,d)
class Job:
    def __init__(s,name,world=4,jit=0.01,stacks=False,clock_off=0.0,seed=1,local_dev=0,dist=True,device='NVIDIA H100 80GB HBM3',pgs=None,seqnum=False,collargs=True):
        s.name=name; s.world=world; s.jit=jit; s.stacks=stacks; s.clock_off=clock_off; s.t0=5_000_000_000.0; s.rng=random.Random(seed); s.local_dev=local_dev
        s.device=device; s.pgs=pgs or {'0':('default_pg',list(range(world)))}; s.dist=dist; s.seqnum=seqnum; s.collargs=collargs; s.seqc={}
        s.ranks=[Rank(s,r) for r in range(world)]
    def coll(s,kname='ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)',dur=1000.0,pg='0',coll='allreduce',nelems=1000000,stream=20,op='nccl:all_reduce',wait=True,tids=None,args=None,join=True,collargs=None,ends_jit=2.0,cat='kernel'):
        desc,members=s.pgs[pg]; starts={}; pend={}
        sq=s.seqc[pg]=s.seqc.get(pg,0)+1
        for r in members:
            k=s.ranks[r]
            with k.span('user_annotation' if op.startswith('nccl:') else 'cpu_op',op,tid=(tids or {}).get(r)):
                k.h+=6
                t=k.rt('cudaLaunchKernelExC',5.0,tid=(tids or {}).get(r))
                st=max(k.st.get(stream,0)+1,t+8,(k.st.get(7,0)+2 if wait else 0)); starts[r]=st; pend[r]=(k.corr,k.eid)
                k.h+=3
        end=max(starts.values())+(s.ranks[members[0]].j(dur))
        for r in members:
            k=s.ranks[r]; c,e=pend[r]; en=end+s.rng.random()*ends_jit
            a={'External id':e,'queued':0,'device':k.dev,'context':1,'stream':stream,'correlation':c,'grid':[24,1,1],'block':[640,1,1]}
            if (s.collargs if collargs is None else collargs):
                a.update({'Collective name':coll,'In msg nelems':nelems,'Out msg nelems':nelems,'Group size':len(members),'dtype':'Float','In split size':'[]','Out split size':'[]','Process Group Name':pg,'Process Group Description':desc,'Process Group Ranks':str(members)})
                if s.seqnum: a['Seq']=sq
            if args:a.update(args)
            k.emit(cat,kname,starts[r],en-starts[r],tid=stream,pid=k.dev,args=a)
            k.st[stream]=en
            if join: k.st[7]=max(k.st.get(7,0),en+1)
        return end
    def write(s,gz=False,only=None,fmt='rank{r}.json',mut=None,extra=None,dirname=None):
        d=OUT+(dirname or s.name)
        if not dirname: shutil.rmtree(d,ignore_errors=True)
        os.makedirs(d,exist_ok=True)
        for k in s.ranks:
            if only is not None and k.r not in only: continue
            ev=[e for e in k.ev if e]
            ev.append({'name':'process_name','ph':'M','ts':s.t0,'pid':k.pid,'tid':0,'args':{'name':'python3'}})
            t0=min(e['ts'] for e in ev if e['ph']=='X'); t1=max(e['ts']+e['dur'] for e in ev if e['ph']=='X')
            ev.append({'ph':'X','cat':'Trace','ts':t0-20,'dur':t1-t0+40,'pid':'Spans','tid':'PyTorch Profiler','name':'PyTorch Profiler (0)','args':{'Op count':0}})
            doc={'schemaVersion':1,'deviceProperties':[{'id':k.dev,'name':s.device,'totalGlobalMem':85029158912,'computeMajor':9,'computeMinor':0,'numSms':132}],'cuda_runtime_version':12040,'traceName':'x'}
            if s.dist: doc['distributedInfo']={'backend':'nccl','rank':k.r,'world_size':s.world,'pg_count':len(s.pgs),'pg_config':[{'pg_name':p,'pg_desc':de,'backend_config':'cuda:nccl','pg_size':len(m),'ranks':m} for p,(de,m) in s.pgs.items() if k.r in m],'nccl_version':'2.21.5'}
            if extra: doc.update(extra)
            if mut: ev=mut(k,ev)
            doc['traceEvents']=ev
            p=os.path.join(d,fmt.format(r=k.r))
            if gz: gzip.open(p+'.gz','wt').write(json.dumps(doc))
            else: open(p,'w').write(json.dumps(doc))
        return d
GEMM='sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas'
ELT='void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)'
ADAM='void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<4>, FusedAdam>()'
def step(job,i,f=lambda r,i:1.0,layers=6,us=900.0,mark=True,coll=None,ncoll=3,colldur=800.0,opt=True,data=lambda r,i:200.0,hostslow=lambda r,i:0.0,bwd=True,sync=True,loader=True,loaderop='enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__',first=10,collkw=None,users=None,opthost=lambda r,i:0.0):
    import contextlib as C
    st=[]
    for k in job.ranks:
        s=C.ExitStack(); st.append(s)
        if mark: s.enter_context(k.span('user_annotation','ProfilerStep#%d'%(i+first)))
        s.enter_context(k.py('train.py(88): main'))
        if loader:
            with k.py('torch/utils/data/dataloader.py(700): __next__'):
                with k.span('user_annotation',loaderop): k.busy(k.j(data(k.r,i)))
        with k.py('train.py(41): forward_pass'):
            with k.py('nn.Module: Transformer_0'):
                for l in range(layers):
                    if hostslow(k.r,i):
                        with k.py('model.py(12): tokenize_again'): k.busy(k.j(hostslow(k.r,i)/layers))
                    k.op('aten::mm',[(GEMM,us*f(k.r,i))]); k.op('aten::add',[(ELT,us*.1*f(k.r,i))])
    if bwd:
        per=max(1,layers//max(1,ncoll))
        for l in range(layers):
            for k in job.ranks:
                k.op('autograd::engine::evaluate_function: MmBackward0',[(GEMM,us*1.0*f(k.r,i)),(GEMM,us*.9*f(k.r,i))],tid=k.pid+1)
            if ncoll and (l+1)%per==0:
                job.coll(**{"dur":colldur,"tids":{k.r:k.pid+1 for k in job.ranks},**(collkw or {})}) if not coll else coll(job,l)
    for k,s in zip(job.ranks,st):
        if opt:
            with k.py('torch/optim/adamw.py(200): step'):
                with k.span('user_annotation','Optimizer.step#AdamW.step'):
                    k.busy(opthost(k.r,i))
                    k.op('aten::_fused_adamw_',[(ADAM,us*.3)])
        if sync:
            with k.py('train.py(60): log_loss'):
                with k.span('cpu_op','aten::item'): k.sync('cudaStreamSynchronize')
    for s in st: s.close()
def run(job,n=8,**kw):
    for i in range(n): step(job,i,**kw)
    return job
