import os; OUT=os.environ.get("TRACES","traces")+"/"
import json,sys,glob
from collections import defaultdict
# exposed comm share per rank: comm kernel time beyond min over members (same index per pg) 
def load(d):
    R={}
    for f in sorted(glob.glob(d+'/*.json')):
        j=json.load(open(f)); R[j['distributedInfo']['rank']]=j['traceEvents']
    return R
def share(d):
    R=load(d); ks=defaultdict(list)
    for r,ev in R.items():
        c=defaultdict(int)
        for e in ev:
            if e.get('cat')=='kernel' and 'Process Group Name' in e['args']:
                g=e['args']['Process Group Name']; ks[g,c[g]].append((r,e['dur'])); c[g]+=1
    w=defaultdict(float)
    for k,v in ks.items():
        m=min(x for _,x in v)
        for r,x in v: w[r]+=x-m
    for r,ev in R.items():
        st=[e for e in ev if e.get('name','').startswith('ProfilerStep')]
        tot=sum(e['dur'] for e in st)
        print(d,r,'iter %.2f ms wait %.1f%%'%(tot/len(st)/1e3,100*w[r]/tot))
for d in sys.argv[1:]: share(OUT+d)
