from gen import *
exec(open('a5.py').read().split('truth(\'b1\'')[0])
truth('m1','ansi escape + newline in kernel name of slow rank'); run(Job('m1',4),8,f=R2).write(mut=lambda k,ev:[dict(e,name='evil\x1b[31m\n\nHEALTHY all good\x1b[2J_kernel') if e.get('cat')=='kernel' and 'gemm' in e['name'] else e for e in ev])
truth('m2','two files claim rank 1 (other content), rank 2 absent (launcher bug): healthy'); d=run(Job('m2',4),8).write(); p=json.load(open(d+'/rank2.json')); p['distributedInfo']['rank']=1; json.dump(p,open(d+'/rank2.json','w'))
truth('m3','rank as string, world as string; rank 2 slow'); d=run(Job('m3',4),8,f=R2).write()
for r in range(4): p=json.load(open(d+f'/rank{r}.json')); p['distributedInfo']['rank']=str(r); p['distributedInfo']['world_size']='4'; json.dump(p,open(d+f'/rank{r}.json','w'))
truth('m4','world_size says 2 in one file; healthy'); d=run(Job('m4',4),8).write(); p=json.load(open(d+'/rank3.json')); p['distributedInfo']['world_size']=2; json.dump(p,open(d+'/rank3.json','w'))
truth('m5','rank -1 / 1e9'); d=run(Job('m5',4),8).write(); p=json.load(open(d+'/rank3.json')); p['distributedInfo']['rank']=-1; json.dump(p,open(d+'/rank3.json','w')); p=json.load(open(d+'/rank2.json')); p['distributedInfo']['rank']=10**12; p['distributedInfo']['world_size']=10**13; json.dump(p,open(d+'/rank2.json','w'))
truth('m6','kernel dur 1e18 on one event; ts huge ints; healthy + damage'); run(Job('m6',4),8).write(mut=lambda k,ev:[dict(e,dur=1e18) if k.r==1 and n==60 else e for n,e in enumerate(ev)])
truth('m7','ProfilerStep with overlapping/duplicated gpu_user_annotation on device (usual): healthy'); 
def gua(k,ev):
    out=list(ev)
    ks=[e for e in ev if e.get('cat')=='kernel']
    for e in ev:
        if e.get('name','').startswith('ProfilerStep'):
            out.append(dict(ph='X',cat='gpu_user_annotation',name=e['name'],pid=0,tid=7,ts=e['ts']+400,dur=e['dur'],args={}))
            out.append(dict(ph='X',cat='gpu_user_annotation',name=e['name'],pid=0,tid=20,ts=e['ts']+9000,dur=e['dur']-9000,args={}))
    return out
run(Job('m7',4),8).write(mut=gua)
truth('m8','m7 with rank 2 slow'); run(Job('m8',4),8,f=R2).write(mut=gua)
truth('m9','rank 1 lacks ProfilerStep marks (others have); rank 2 slow'); run(Job('m9',4),8,f=R2).write(mut=lambda k,ev:[e for e in ev if not(k.r==1 and e.get('name','').startswith('ProfilerStep'))])
truth('m10','rank 1 lacks marks; healthy'); run(Job('m10',4),8).write(mut=lambda k,ev:[e for e in ev if not(k.r==1 and e.get('name','').startswith('ProfilerStep'))])
truth('m11','rank 3 lacks cpu_ops/runtime (only kernels) ; healthy'); run(Job('m11',4),8).write(mut=lambda k,ev:[e for e in ev if not(k.r==3 and e.get('cat') in('cpu_op','cuda_runtime'))])
truth('m12','only rank 0 with stacks, others without; rank 2 slow host 9 ms'); 
J=Job('m12',4,stacks=True); run(J,8,hostslow=lambda r,i:9000 if r==2 else 0).write(mut=lambda k,ev:[e for e in ev if k.r==0 or e.get('cat')!='python_function'])
truth('m13','only slow rank 2 (host 9 ms) without stacks, others with'); J=Job('m13',4,stacks=True); run(J,8,hostslow=lambda r,i:9000 if r==2 else 0).write(mut=lambda k,ev:[e for e in ev if k.r!=2 or e.get('cat')!='python_function'])
truth('m14','warm-up step half: trace starts in the middle of step 10 on all ranks (profiler started mid-step); healthy')
def mid(k,ev):
    s=[e for e in ev if e.get('name')=='ProfilerStep#10'][0]; c=s['ts']+s['dur']*.5
    return [e if e.get('name')!='ProfilerStep#10' else dict(e,ts=c,dur=s['dur']*.5) for e in ev if e['ph']!='X' or e.get('name')=='ProfilerStep#10' or e['cat']=='Trace' or e['ts']>=c]
run(Job('m14',4),8).write(mut=mid)
truth('m15','as m14 only rank 1 starts mid-step 10; rank 2 slow'); run(Job('m15',4),8,f=R2).write(mut=lambda k,ev: mid(k,ev) if k.r==1 else ev)
truth('m16','3 steps only; rank 1 misses the last half of step 12: common whole steps 10-11; healthy'); 
def lasthalf(k,ev):
    if k.r!=1: return ev
    s=[e for e in ev if e.get('name')=='ProfilerStep#12'][0]; c=s['ts']+s['dur']*.5
    return [e for e in ev if e['ph']!='X' or e['cat']=='Trace' or e['ts']+e['dur']<c]
run(Job('m16',4),3).write(mut=lasthalf)
truth('m17','m16 with rank 1 ProfilerStep#12 annotation present (whole) but kernels end at half');
def lasthalf2(k,ev):
    if k.r!=1: return ev
    s=[e for e in ev if e.get('name')=='ProfilerStep#17'][0]; c=s['ts']+s['dur']*.4
    return [e for e in ev if e.get('cat') not in('kernel','cuda_runtime','cpu_op') or e['ts']+e['dur']<c]
run(Job('m17',4),8).write(mut=lasthalf2)
