from gen import *
exec(open('a5.py').read().split('truth(\'b1\'')[0])
exec('def packed'+open('a5.py').read().split('def packed')[1].split("truth('b4'")[0].replace('jit=0.0','jit=JJ').replace("x=R.uniform(500,5500)","x=1000.*(k.r+1)"))
JJ=0.01
truth('e1','as d13 with 1 % jitter: total equal, healthy'); packed('e1').write()
def cpuonly(k,ev): return [e for e in ev if e.get('cat') not in('kernel','gpu_memcpy','cuda_runtime')]
truth('e2','GPU job, all 4 ranks recorded activities=[CPU] only; rank 2 slow 1.8: undetermined (device unseen)'); run(Job('e2',4),8,f=R2).write(mut=cpuonly)
truth('e3','as e2 all kernels lost but runtime calls remain (CUPTI failed) on all ranks'); run(Job('e3',4),8,f=R2).write(mut=lambda k,ev:[e for e in ev if e.get('cat')!='kernel'])
truth('e4','overlapped comm: async all-reduce on own stream during compute, long kernels, not exposed; healthy')
def ov(job,l): job.coll(dur=1500,join=False,tids={k.r:k.pid+1 for k in job.ranks})
run(Job('e4',4),8,coll=ov).write()
truth('e5','overlapped comm, rank 2 slow 1.5'); run(Job('e5',4),8,coll=ov,f=lambda r,i:1.5 if r==2 else 1).write()
truth('e6','8 ranks, straggler rank 5 +12 % only'); run(Job('e6',8),16,f=lambda r,i:1.12 if r==5 else 1).write()
truth('e7','8 ranks, two slow: 2 (1.6) and 6 (1.6)'); run(Job('e7',8),10,f=lambda r,i:1.6 if r in(2,6) else 1).write()
truth('e8','8 ranks, rank 2 slow 1.6 and rank 4 loader +10 ms'); run(Job('e8',8),10,f=lambda r,i:1.6 if r==2 else 1,data=lambda r,i:10000 if r==4 else 200).write()
truth('e9','uneven work: rank 3 runs 40 % more kernels (longer sequences)'); 
J=Job('e9',4); k3=J.ranks[3]; o=k3.op
def more(name,kernels=(),**kw): o(name,list(kernels)+[(a+'',b*.5) for a,b in kernels],**kw)
k3.op=more; run(J,8).write()
truth('e10','random heavy-tailed per rank per step (no worker), 8 ranks 16 steps: nobody'); R=random.Random(11); V={(r,i):1+R.expovariate(4) for r in range(8) for i in range(16)}
run(Job('e10',8),16,f=lambda r,i:V[r,i]).write()
truth('e11','AR(1): imbalance sticks few steps (rank 1 slow steps 0-3, rank 2 4-7, ...8 ranks 16 steps)'); run(Job('e11',8),16,f=lambda r,i:1.5 if r==i//2 else 1).write()
truth('e12','unmarked, 4 ranks, rank 1 trace half as long (first 4 of 8), rank 2 slow'); 
def half(k,ev):
    if k.r!=1: return ev
    x=[e for e in ev if e['ph']=='X' and e['cat']!='Trace']; t0=min(e['ts'] for e in x); t1=max(e['ts'] for e in x)
    return [e for e in ev if e['ph']!='X' or e['cat']=='Trace' or e['ts']+e['dur']<t0+(t1-t0)*.52]
run(Job('e12',4),8,f=R2,mark=False).write(mut=half)
truth('e13','unmarked, rank 1 started 2 steps later; rank 2 slow; no seq numbers'); 
def lateu(k,ev):
    if k.r!=1: return ev
    x=[e for e in ev if e['ph']=='X' and e['cat']!='Trace']; t0=min(e['ts'] for e in x); t1=max(e['ts'] for e in x)
    return [e for e in ev if e['ph']!='X' or e['cat']=='Trace' or e['ts']>t0+(t1-t0)*.3]
run(Job('e13',4),8,f=R2,mark=False).write(mut=lateu)
truth('e14','unmarked healthy, rank 1 started 2.3 steps later'); run(Job('e14',4),8,mark=False).write(mut=lateu)
truth('e15','marked, steps numbered differently per rank (10.. vs 0..) since rank 1 resumed profiler; same real time; healthy'); 
def renum(k,ev):
    if k.r!=1: return ev
    return [dict(e,name='ProfilerStep#%d'%(int(e['name'].split('#')[1])-10)) if e.get('name','').startswith('ProfilerStep') else e for e in ev]
run(Job('e15',4),8).write(mut=renum)
truth('e16','as e15 with rank 2 slow'); run(Job('e16',4),8,f=R2).write(mut=renum)
truth('e17','gloo CPU training 4 ranks, rank 2 slow: no device'); 
def gl(k,ev):
    out=[]
    for e in ev:
        if e.get('cat')=='cuda_runtime': continue
        if e.get('cat')=='kernel':
            if 'nccl' in e['name']: out.append(dict(ph='X',cat='user_annotation',name='gloo:all_reduce',pid=k.pid,tid=k.pid+5,ts=e['ts'],dur=e['dur'],args={'External id':9}))
            else: out.append(dict(ph='X',cat='cpu_op',name='aten::addmm',pid=k.pid,tid=k.pid+(1 if 0 else 0)+7,ts=e['ts'],dur=e['dur'],args={}))
            continue
        if e.get('cat')=='cpu_op' and ('aten::mm' in e['name'] or 'autograd' in e['name']or 'add' in e['name']): continue
        if e.get('name','').startswith('nccl:'): continue
        out.append(e)
    return out
run(Job('e17',4),8,f=R2).write(mut=gl,extra={'deviceProperties':[]})
