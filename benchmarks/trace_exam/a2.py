from gen import *
T=open('truth-again.txt','a')
def truth(n,t): T.write(n+': '+t+'\n')
R2=lambda r,i:1.8 if r==2 else 1
# point 1
def nokern(lost):
    def m(k,ev): return [e for e in ev if not(k.r==lost and e.get('cat')=='kernel')] 
    return m
truth('p1a','rank1 file has no kernels; all healthy -> healthy of the rest or left out'); run(Job('p1a',4)).write(mut=nokern(1))
truth('p1b','rank1 lacks kernels; rank2 slow 1.8'); run(Job('p1b',4),f=R2).write(mut=nokern(1))
def nocoll(lost):
    return lambda k,ev:[e for e in ev if not(k.r==lost and e.get('cat')=='kernel' and 'nccl' in e['name'])]
truth('p1c','rank2 slow AND rank 2 lacks nccl kernels -> rank 2 left out; the others wait for nobody recorded: undetermined'); run(Job('p1c',4),f=R2).write(mut=nocoll(2))
def firsthalf(lost,frac):
    def m(k,ev):
        if k.r!=lost: return ev
        x=[e for e in ev if e['ph']=='X' and e['cat']!='Trace']; t0=min(e['ts'] for e in x); t1=max(e['ts'] for e in x)
        return [e for e in ev if e['ph']!='X' or e['cat']=='Trace' or e['ts']+e['dur']<t0+(t1-t0)*frac]
    return m
truth('p1d','rank1 recording ends after 1.5 of 8 steps; rank2 slow'); run(Job('p1d',4),f=R2).write(mut=firsthalf(1,.19))
truth('p1e','rank1 recording ends after half a step (0.5 of 8); all healthy'); run(Job('p1e',4)).write(mut=firsthalf(1,.06))
def kernfirst(lost,frac):
    def m(k,ev):
        if k.r!=lost: return ev
        x=[e for e in ev if e['ph']=='X' and e['cat']!='Trace']; t0=min(e['ts'] for e in x); t1=max(e['ts'] for e in x)
        return [e for e in ev if e.get('cat')!='kernel' or e['ts']+e['dur']<t0+(t1-t0)*frac]
    return m
truth('p1f','kernels of rank1 only for the first half of steps (CUPTI buffer full); rank3 slow by 1.5 all the time'); run(Job('p1f',4),f=lambda r,i:1.5 if r==3 else 1).write(mut=kernfirst(1,.5))
truth('p1g','rank 1 loses kernels randomly (20%) ; healthy'); 
def rnd(lost,p,seed=3):
    def m(k,ev):
        R=random.Random(seed)
        return [e for e in ev if not(k.r==lost and e.get('cat')=='kernel' and R.random()<p)]
    return m
run(Job('p1g',4)).write(mut=rnd(1,.2))
truth('p1h','rank1 loses 5 % kernels incl. some nccl; rank2 slow');run(Job('p1h',4),f=R2).write(mut=rnd(1,.05))
truth('p1i','rank 2 (slow) file truncated at 60 % bytes; 8 steps'); d=run(Job('p1i',4),f=R2).write(); b=open(d+'/rank2.json','rb').read(); open(d+'/rank2.json','wb').write(b[:int(len(b)*.6)])
truth('p1j','one rank gz truncated 50%; healthy'); d=run(Job('p1j',4)).write(gz=True); b=open(d+'/rank2.json.gz','rb').read(); open(d+'/rank2.json.gz','wb').write(b[:int(len(b)*.5)])
truth('p1k','single rank file truncated at 50%, healthy'); d=run(Job('p1k',1)).write(); b=open(d+'/rank0.json','rb').read(); open(d+'/rank0.json','wb').write(b[:int(len(b)*.5)])
truth('p1l','one file empty, 3 healthy'); d=run(Job('p1l',4)).write(); open(d+'/rank3.json','w')
truth('p1m','rank1 started steps 3 later (13-17 recorded with different step ids) ; rank 2 slow at only steps 10-11 (before) -> healthy on common')
def late(k,ev):
    if k.r!=1: return ev
    s=min(e['ts'] for e in ev if e.get('name')=='ProfilerStep#13')
    return [e for e in ev if e['ph']!='X' or e['cat']=='Trace' or e['ts']>=s-1]
run(Job('p1m',4),f=lambda r,i:3 if r==2 and i<2 else 1).write(mut=late)
truth('p1n','negative durs/huge ts in one rank (some bad events), healthy')
def bad(k,ev):
    if k.r!=1: return ev
    ev=[dict(e) for e in ev]
    for n,e in enumerate(ev):
        if e.get('cat')=='kernel' and n%40==0: e['dur']=-5
        if e.get('cat')=='kernel' and n%41==0: e['ts']=1e30
    return ev
run(Job('p1n',4)).write(mut=bad)
truth('p1o','duplicate: the same rank recorded twice by copying the file with other name'); d=run(Job('p1o',4)).write(); shutil.copy(d+'/rank1.json',d+'/copy_of_rank1.json')
truth('p1p','all ranks same rank in distributedInfo=0 (no dist init in info), filenames ranks 0..3, rank 2 slow'); 
def d0(k,ev): return ev
run(Job('p1p',4,dist=False),f=R2).write()
truth('p1q','NaN/null/strings ts'); 
def bad2(k,ev):
    if k.r!=1: return ev
    ev=[dict(e) for e in ev]
    for n,e in enumerate(ev):
        if n%50==0: e['ts']=None
        if n%51==0: e['dur']='abc'
        if n%53==0: e['args']=[1]
        if n%57==0: e['name']=None
        if n%59==0: e['ts']=float('nan')
    ev.insert(5,None); ev.insert(9,[1,2]); ev.insert(11,'x')
    return ev
run(Job('p1q',4)).write(mut=bad2)
