from gen import *
import sqlite3
exec(open('a5.py').read().split('truth(\'b1\'')[0])
def nsys(J,name,procs=None,onefile=True,nvtx=True,nccl_nvtx=True):
    d=OUT+name; shutil.rmtree(d,ignore_errors=True); os.makedirs(d)
    def mk(path,ranks):
        c=sqlite3.connect(path); S={}
        c.executescript('''create table StringIds(id INTEGER PRIMARY KEY, value TEXT);
        create table CUPTI_ACTIVITY_KIND_KERNEL(start INT,end INT,deviceId INT,contextId INT,greenContextId INT,streamId INT,correlationId INT,globalPid INT,demangledName INT,shortName INT,mangledName INT,launchType INT,cacheConfig INT,registersPerThread INT,gridX INT,gridY INT,gridZ INT,blockX INT,blockY INT,blockZ INT,staticSharedMemory INT,dynamicSharedMemory INT,graphId INT,graphNodeId INT);
        create table CUPTI_ACTIVITY_KIND_RUNTIME(start INT,end INT,eventClass INT,globalTid INT,correlationId INT,nameId INT,returnValue INT,callchainId INT);
        create table CUPTI_ACTIVITY_KIND_MEMCPY(start INT,end INT,deviceId INT,contextId INT,streamId INT,correlationId INT,globalPid INT,bytes INT,copyKind INT,srcKind INT,dstKind INT);
        create table NVTX_EVENTS(start INT,end INT,eventType INT,rangeId INT,category INT,color INT,text TEXT,globalTid INT,endGlobalTid INT,textId INT,domainId INT,uint64Value INT,int64Value INT,doubleValue REAL,uint32Value INT,int32Value INT,floatValue REAL,jsonTextId INT,jsonText TEXT);
        create table TARGET_INFO_GPU(id INT,name TEXT,busLocation TEXT,cuDevice INT);
        create table ThreadNames(nameId INT,priority INT,globalTid INT);
        create table PROCESSES(globalPid INT,pid INT,name TEXT);
        create table META_DATA_EXPORT(name TEXT,value TEXT);
        create table TARGET_INFO_SYSTEM_ENV(globalVid INT,devStateName TEXT,name TEXT,nameEnum INT,value TEXT);
        create table ANALYSIS_DETAILS(globalVid INT,duration INT,startTime INT,stopTime INT);
        create table ENUM_CUDA_MEMCPY_OPER(id INT,name TEXT,label TEXT);''')
        c.execute("insert into META_DATA_EXPORT values('EXPORT_PRODUCT_VERSION','2024.5.1')")
        def sid(s):
            if s not in S: S[s]=len(S)+1; c.execute('insert into StringIds values(?,?)',(S[s],s))
            return S[s]
        t0=5_000_000_000.0
        for k in ranks:
            gp=(k.pid<<24); 
            c.execute('insert into PROCESSES values(?,?,?)',(gp,k.pid,'python3')); c.execute('insert into TARGET_INFO_GPU values(?,?,?,?)',(k.r,J.device,'0',k.r))
            for e in k.ev:
                if not e: continue
                s=int((e['ts']-t0)*1000); en=s+int(e['dur']*1000); a=e['args']
                if e['cat']=='kernel': c.execute('insert into CUPTI_ACTIVITY_KIND_KERNEL(start,end,deviceId,contextId,streamId,correlationId,globalPid,demangledName,shortName) values(?,?,?,?,?,?,?,?,?)',(s,en,k.r,1,a['stream'],a['correlation'],gp,sid(e['name']),sid(e['name'].split('(')[0].split('<')[0])))
                elif e['cat']=='cuda_runtime': c.execute('insert into CUPTI_ACTIVITY_KIND_RUNTIME(start,end,eventClass,globalTid,correlationId,nameId,returnValue) values(?,?,0,?,?,?,0)',(s,en,gp|e['tid'],a['correlation'],sid(e['name']+'_v7000')))
                elif nvtx and e['cat'] in('user_annotation','cpu_op'): c.execute('insert into NVTX_EVENTS(start,end,eventType,text,globalTid,domainId) values(?,?,59,?,?,0)',(s,en,e['name'].replace('ProfilerStep#','iteration '),gp|e['tid']))
        c.commit(); c.close()
    if onefile: mk(d+'/report.sqlite',J.ranks)
    else:
        for k in J.ranks: mk(d+'/report_rank%d.sqlite'%k.r,[k])
truth('g1','nsys one file 4 procs healthy'); nsys(run(Job('g1',4),8),'g1')
truth('g2','nsys 4 files rank 2 slow 1.8'); nsys(run(Job('g2',4),8,f=R2),'g2',onefile=False)
truth('g3','nsys no nvtx, rank 2 slow'); nsys(run(Job('g3',4),8,f=R2),'g3',onefile=False,nvtx=False)
truth('g4','nsys one process, host-bound training'); nsys(run(Job('g4',1),8,us=2,layers=60,colldur=60,ncoll=0,data=lambda r,i:50),'g4')
# FR
def fr(name,world=4,n=20,mut=None,skip=(),pgs=None,fmt='_dump_{}'):
    d=OUT+name; shutil.rmtree(d,ignore_errors=True); os.makedirs(d)
    for r in range(world):
        if r in skip: continue
        ents=[]
        for q in range(1,n+1):
            ents.append({'frames':[{'name':'all_reduce','filename':'distributed_c10d.py','line':2500},{'name':'train','filename':'train.py','line':40}],'record_id':q,'pg_id':0,'process_group':['0','default_pg'],'collective_seq_id':q,'p2p_seq_id':0,'op_id':q,'profiling_name':'nccl:all_reduce','time_created_ns':1700000000000000000+q*1000000,'input_sizes':[[10]],'input_dtypes':['Float'],'output_sizes':[[10]],'output_dtypes':['Float'],'state':'completed','time_discovered_started_ns':1700000000000000000+q*1000000+10,'time_discovered_completed_ns':1700000000000000000+q*1000000+900,'retired':True,'timeout_ms':600000,'is_p2p':False})
        doc={'version':'2.4','entries':ents,'pg_config':{'0':{'name':'0','desc':'default_pg','ranks':str(list(range(world)))}},'pg_status':{'0':{'last_enqueued_collective':n,'last_started_collective':n,'last_completed_collective':n}}}
        if mut: doc=mut(r,doc)
        json.dump(doc,open(d+'/'+fmt.format(r),'w'))
def st(doc,last_enq,last_done):
    doc['entries']=[e for e in doc['entries'] if e['collective_seq_id']<=last_enq]
    for e in doc['entries']:
        if e['collective_seq_id']>last_done: e.update(state='started',retired=False,time_discovered_completed_ns=None)
    doc['pg_status']['0']=dict(last_enqueued_collective=last_enq,last_started_collective=last_enq,last_completed_collective=last_done)
    return doc
truth('g5','FR all completed: nothing hangs'); fr('g5')
truth('g6','FR rank 2 did not enter 20'); fr('g6',mut=lambda r,d:st(d,20 if r!=2 else 19,19))
truth('g7','FR rank 3 missing, others wait at 20'); fr('g7',mut=lambda r,d:st(d,20,19),skip=(3,))
truth('g8','FR all entered 20, none completed: network/transfer hang, nobody behind'); fr('g8',mut=lambda r,d:st(d,20,19))
def mism(r,d):
    d=st(d,20,19)
    if r==1: d['entries'][-1]['profiling_name']='nccl:all_gather'
    return d
truth('g9','FR rank 1 calls all_gather where others all_reduce: desync'); fr('g9',mut=mism)
def sz(r,d):
    d=st(d,20,19)
    if r==1: d['entries'][-1]['input_sizes']=[[11]]; d['entries'][-1]['output_sizes']=[[11]]
    return d
truth('g10','FR rank 1 size mismatch at 20'); fr('g10',mut=sz)
def wrap(r,d):
    d=st(d,20,19); 
    d['entries']=d['entries'][-3:] if r!=0 else d['entries'][-2:-1]
    if r==0: d['pg_status']['0'].update(last_enqueued_collective=19,last_started_collective=19,last_completed_collective=19)
    return d
truth('g11','FR ring buffers wrapped; rank 0 one behind'); fr('g11',mut=wrap)
truth('g12','FR rank 0 ahead: rank 0 entered 21 async, all others in 20? rank 3 behind at 19'); fr('g12',mut=lambda r,d:st(d,{0:20,1:20,2:20,3:18}[r],18))
# gloo proper
def gloo(name,f,n=8,W=4):
    J=Job(name,W)
    import contextlib as C
    for i in range(n):
        st_=[C.ExitStack() for _ in J.ranks]
        for k,s in zip(J.ranks,st_): s.enter_context(k.span('user_annotation','ProfilerStep#%d'%(i+10)))
        for k in J.ranks:
            for l in range(4):
                with k.span('cpu_op','aten::linear'):
                    with k.span('cpu_op','aten::addmm'): k.busy(k.j(1500*f(k.r,i)))
            for l in range(4):
                with k.span('cpu_op','autograd::engine::evaluate_function: AddmmBackward0'):
                    with k.span('cpu_op','aten::mm'): k.busy(k.j(3000*f(k.r,i)))
        E=max(k.h for k in J.ranks)+900
        for k in J.ranks:
            with k.span('cpu_op','gloo:all_reduce',tid=k.pid+9): k.h=E+k.rng.random()*20
            with k.span('user_annotation','Optimizer.step#SGD.step'):
                with k.span('cpu_op','aten::add_'): k.busy(300)
        for s in st_: s.close()
    return J
truth('g13','gloo CPU rank 2 slow 1.8'); gloo('g13',R2).write(extra={'deviceProperties':[]})
truth('g14','gloo CPU healthy'); gloo('g14',lambda r,i:1).write(extra={'deviceProperties':[]})
truth('g15','two jobs in one folder (a slow, b healthy)'); run(Job('g15',4),8,f=R2).write(); J=run(Job('g15b',2,seed=9),8); J.t0+=9e9; 
for k in J.ranks: k.off+=9e12
J.write(dirname='g15',fmt='b_rank{r}.json')
truth('g16','same job, two captures: steps 10-17 (healthy), 100-107 (rank 1 slow)'); run(Job('g16',4),8).write(fmt='r{r}_a.json'); J=Job('g16x',4,seed=3)
for k in J.ranks: k.off+=5e7
run(J,8,f=lambda r,i:1.8 if r==1 else 1,first=100).write(dirname='g16',fmt='r{r}_b.json')
truth('g17','recompile in step 5 of 10 on all ranks (2 s dynamo)'); 
J=Job('g17',4)
for i in range(10):
    if i==5:
        for k in J.ranks:
            pass
    step(J,i,hostslow=(lambda r,i_: 2e6 if i_==5 else 0))
J.write()
