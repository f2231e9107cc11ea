from gen import *
exec(open('a5.py').read().split('truth(\'b1\'')[0])
src=open('a3.py').read(); exec('def pp_job'+src.split('def pp_job')[1].split("truth('p2a'")[0].replace('kn=SR',"kn='ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)'"))
def gam(name,f=lambda r,i:1,n=12,W=4,sync=True,stacks=False):
    J=Job(name,W,stacks=stacks)
    for i in range(n): step(J,i,f=f,ncoll=3 if i%4==3 else 0,opt=i%4==3,sync=sync or i%4==3,layers=3)
    return J
R1=lambda r,i:1.6 if r==1 else 1
truth('i1','prof.step per microbatch with loss.item() each; accumulate 4; rank 1 slow 1.6 -> worker 1, ~35 %'); gam('i1',R1,n=16).write()
truth('i2','variable sequence length per step (same on all ranks; 0.4-2.5), rank 1 slow 1.6 always'); R=random.Random(3); L=[R.uniform(.4,2.5) for _ in range(12)]
run(Job('i2',4),12,f=lambda r,i:L[i]*(1.6 if r==1 else 1)).write()
truth('i3','var seq len, healthy'); run(Job('i3',4),12,f=lambda r,i:L[i]).write()
truth('i4','var length per rank (bucketing) + rank 1 slow 1.5'); R=random.Random(8); V={(r,i):R.uniform(.6,1.4) for r in range(4) for i in range(16)}
run(Job('i4',4),16,f=lambda r,i:V[r,i]*(1.5 if r==1 else 1)).write()
truth('i5','rank 1: one 9 ms python block before everything each step, stacks');
def oneblock(name,stacks,us=9000):
    J=Job(name,4,stacks=stacks)
    run(J,8,data=lambda r,i:us if r==1 else 200,loader=True); return J
J=Job('i5',4,stacks=True)
o=J.ranks[1].py
import contextlib
@contextlib.contextmanager
def py2(n):
    with o(n):
        if n.startswith('train.py(41)'):
            with o('preproc.py(7): build_masks'): J.ranks[1].busy(9000)
        yield
J.ranks[1].py=py2; run(J,8).write()
truth('i6','same, no stacks'); J6=Job('i6',4); o6=J6.ranks[1].py
@contextlib.contextmanager
def py3(n):
    if n.startswith('train.py(41)'): J6.ranks[1].busy(9000)
    yield
J6.ranks[1].py=py3; run(J6,8).write()
truth('i7','pp 2x2 rank 3 slow AND rank 3 lacks kernels in half of the steps'); 
def kf(lost,frac):
    def m(k,ev):
        if k.r!=lost: return ev
        x=[e for e in ev if e['ph']=='X' and e['cat']!='Trace']; t0=min(e['ts'] for e in x); t1=max(e['ts'] for e in x)
        return [e for e in ev if e.get('cat')!='kernel' or e['ts']+e['dur']<t0+(t1-t0)*frac]
    return m
pp_job('i7',fr=lambda r,i:1.7 if r==3 else 1).write(mut=kf(3,.5))
truth('i8','pp 2x2 balanced; rank 1 file missing'); pp_job('i8').write(only=[0,2,3])
truth('i9','pp 4x1 balanced no dp reduce (dp=1): fine-bubbles'); 
truth('i10','pp 2x2, last stage long 1.6 and rank 1 missing'); pp_job('i10',fs=lambda s,i:1.6 if s==1 else 1).write(only=[0,2,3])
truth('i11','pp 2x2 last stage long 1.6 & rank 2 slow another 1.4 -> worker 2 (and stage)'); pp_job('i11',fs=lambda s,i:1.6 if s==1 else 1,fr=lambda r,i:1.4 if r==2 else 1).write()
truth('i12','pp 2x4: rank 5 slow 1.5 in stage 1'); pp_job('i12',dp=4,fr=lambda r,i:1.5 if r==5 else 1).write()
truth('i13','pp 2x2 no pg args and no pg_config (older torch)'); 
def strip(k,ev): return [dict(e,args={a:b for a,b in e['args'].items() if not a.startswith('Process Group')}) if e.get('cat')=='kernel' else e for e in ev]
pp_job('i13',fs=lambda s,i:1.6 if s==1 else 1).write(mut=strip,extra={'distributedInfo':None})
truth('i14','pp 2x2 jit; p2p via coalesced, one-step'); pp_job('i14',n=1,fs=lambda s,i:1.6 if s==1 else 1).write()
truth('i15','pp 2x2 one step, rank 3 slow 1.7'); pp_job('i15',n=1,fr=lambda r,i:1.7 if r==3 else 1).write()
truth('i16','8 ranks groups of two (EP/TP pairs), rank 0 first in pair always by structure? rank even runs router 1.3x: structural in all pairs');
def pairs(name,f,n=10,W=8,final=False):
    pgs={'0':('default_pg',list(range(W)))}
    for s in range(W//2): pgs['t%d'%s]=('TENSOR_MODEL_PARALLEL_GROUP',[2*s,2*s+1])
    J=Job(name,W,pgs=pgs)
    def cl(job,l):
        for s in range(W//2): job.coll(dur=200.,pg='t%d'%s,tids={k.r:k.pid+1 for k in job.ranks})
        if final and l==5: job.coll(dur=400.,pg='0')
    run(J,n,f=f,coll=cl); return J
pairs('i16',lambda r,i:1.3 if r%2==0 else 1,final=True).write()
truth('i17','pairs only, no global collective, one rank (4) slow 1.5'); pairs('i17',lambda r,i:1.5 if r==4 else 1).write()
truth('i18','pairs, rank 4 slow 1.5, partner 5 file missing -> worker 4 computes slower than its peers (1.5) even so'); pairs('i18',lambda r,i:1.5 if r==4 else 1,final=True).write(only=[0,1,2,3,4,6,7])
