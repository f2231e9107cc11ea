import random
exec(open('a3.py').read().split("truth('p2a'")[0].replace("open('truth-again.txt','a')","open('/dev/null','w')"))
src=open('a3.py').read(); exec('def hsdp'+src.split('def hsdp')[1].split("truth('p2j'")[0])
R=random.Random(5); V={(r,i):1+abs(R.gauss(0,.35)) for r in range(8) for i in range(12)}
for r in range(8): print(r, sum(V[r,i] for i in range(12))/12, [round(V[r,i],2) for i in range(12)])
import statistics
def it(J):
    return sum(e['dur'] for e in J.ranks[0].ev if e and e['name'].startswith('ProfilerStep'))/12/1e3
a=it(hsdp('x',lambda r,i:V[r,i],W=8))
for q in range(8):
    b=it(hsdp('x',lambda r,i:V[r,i] if r!=q else statistics.median(V[s,i] for s in range(8) if s!=q),W=8)); print('without',q,a,b,1-b/a)
