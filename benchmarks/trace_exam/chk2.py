import os; OUT=os.environ.get("TRACES","traces")+"/"
import json,sys,glob
for d in sys.argv[1:]:
  for f in sorted(glob.glob(OUT+d+'/*.json'))[:2]:
    ev=json.load(open(f))['traceEvents']
    k=sorted((e['ts'],e['ts']+e['dur']) for e in ev if e.get('cat') in('kernel','gpu_memcpy'))
    idle=0; end=k[0][1]
    for a,b in k[1:]:
        idle+=max(0,a-end); end=max(end,b)
    span=end-k[0][0]
    opt=[e['ts'] for e in ev if e.get('name','').startswith('Optimizer.step')]
    st=[e for e in ev if e.get('name','').startswith('ProfilerStep')]
    print(d,f[-10:],'span %.1f ms idle %.1f%%'%(span/1e3,100*idle/span), 'opt distance', (opt[-1]-opt[0])/(len(opt)-1)/1e3 if len(opt)>1 else None, len(opt),'steps',len(st), [round(e['dur']/1e3,1) for e in st][:20])
