from gen import *
exec(open('a5.py').read().split('truth(\'b1\'')[0])
R=random.Random(301); V={(r,i):1+R.expovariate(3) for r in range(4) for i in range(6)}
for r in range(4): print(r,[round(V[r,i],2) for i in range(6)])
for i in range(6): print(i,max(range(4),key=lambda r:V[r,i]))
# sporadic set: count fraction and worker
truth('k1','worker 2 stalls 40 ms in python in 3 of 10 steps random, nostacks'); run(Job('k1',4),10,data=lambda r,i:40000 if r==2 and i in(1,4,8) else 200).write()
truth('k2','worker 2 stalls 15 ms in loader in 3 of 10 steps'); run(Job('k2',4),10,data=lambda r,i:15000 if r==2 and i in(1,4,8) else 200).write()
truth('k3','worker 2 stalls 15 ms in loader in 4 of 16 steps'); run(Job('k3',4),16,data=lambda r,i:15000 if r==2 and i%4==1 else 200).write()
truth('k4','worker 2 GPU slow 3x in 4 of 16 steps (throttle bursts)'); run(Job('k4',4),16,f=lambda r,i:3 if r==2 and i%4==1 else 1).write()
truth('k5','1 rank: loader stalls 60 ms in every 4th of 16 steps (num_workers=4)'); run(Job('k5',1),16,data=lambda r,i:60000 if i%4==1 else 200,ncoll=0).write()
truth('k6','collective slow sporadically: all-reduce takes 30 ms in 4 of 16 steps (network congestion)'); 
J=Job('k6',4)
for i in range(16): step(J,i,colldur=15000 if i%4==2 else 800)
J.write()
truth('k7','40 steps, worker 2 stall 40 ms every 5th'); run(Job('k7',4),40,data=lambda r,i:40000 if r==2 and i%5==1 else 200,layers=3).write()
