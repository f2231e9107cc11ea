from gen import *
exec(open('a5.py').read().split('truth(\'b1\'')[0])
src=open('a3.py').read(); exec('def pp_job'+src.split('def pp_job')[1].split("truth('p2a'")[0].replace('kn=SR',"kn='ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)'")); exec('def hsdp'+src.split('def hsdp')[1].split("truth('p2j'")[0])
src=open('a11.py').read(); exec('def tpinf'+src.split('def tpinf')[1].split("tpinf('h15'")[0])
truth('j1','HSDP pairs, iid noise sigma .35 8 ranks seeds: nobody'); 
for s in range(4):
    R=random.Random(100+s); V={(r,i):1+abs(R.gauss(0,.35)) for r in range(8) for i in range(8)}
    hsdp('j1_%d'%s,lambda r,i:V[r,i],n=8,W=8).write()
    R=random.Random(200+s); V={(r,i):1+R.expovariate(3) for r in range(4) for i in range(6)}
    hsdp('j2_%d'%s,lambda r,i:V[r,i],n=6,W=4).write()
    R=random.Random(300+s); V={(r,i):1+R.expovariate(3) for r in range(4) for i in range(6)}
    run(Job('j3_%d'%s,4),6,f=lambda r,i:V[r,i]).write()
truth('j4','TP4 inference rank 1 file lacks kernels; rank 2 slow'); tpinf('j4',lambda r,i:1.7 if r==2 else 1).write(mut=lambda k,ev:[e for e in ev if not(k.r==1 and e.get('cat')=='kernel')])
truth('j5','pp 2x2 one step last stage long? dup'); 
truth('j6','pp 4x2 one step, rank 2 slow 1.8'); pp_job('j6',stages=4,dp=2,n=1,mb=6,fr=lambda r,i:1.8 if r==2 else 1).write()
truth('j7','HSDP pairs, one step, rank 1 slow 1.6'); hsdp('j7',lambda r,i:1.6 if r==1 else 1,n=1).write()
truth('j8','pp 2x2 2 steps only rank 3 slow 1.7'); pp_job('j8',n=2,fr=lambda r,i:1.7 if r==3 else 1).write()
truth('j9','first marked step contains compile 3 s on all; plus rank 2 slow 1.5 in 6 steps'); run(Job('j9',4),6,f=lambda r,i:1.5 if r==2 else 1,hostslow=lambda r,i:3e6 if i==0 else 0).write()
truth('j10','first marked step contains 3 s compile ONLY on rank 3 (cache miss), else healthy'); run(Job('j10',4),6,hostslow=lambda r,i:3e6 if i==0 and r==3 else 0).write()
truth('j11','all steps warm; rank 3 recompiles (1 s) in step 4 of 8, stacks: TorchDynamo frames');
J=Job('j11',4,stacks=True); run(J,8,hostslow=lambda r,i:1e6 if i==4 and r==3 else 0).write()
truth('j12','SP: blocking copy in training on all ranks 8 ms of pageable H2D'); 
def bc(name,ranks,us=8000,stacks=False,n=8):
    J=Job(name,4,stacks=stacks)
    for k in J.ranks:
        if k.r in ranks:
            o=k.span
            def mk(k,o):
                @__import__('contextlib').contextmanager
                def sp(cat,nm,tid=None,**a):
                    with o(cat,nm,tid=tid,**a): yield
                    if nm.startswith('enumerate'):
                        with o('cpu_op','aten::to'):
                            with o('cpu_op','aten::copy_'):
                                t=k.h; k.launch('Memcpy HtoD (Pageable -> Device)',us,cat='gpu_memcpy',call='cudaMemcpyAsync',cost=us+10,args={'bytes':int(us*3000)})
                                e=[x for x in k.ev if x and x['cat']=='gpu_memcpy'][-1]; e['ts']-=us; k.st[7]-=us
                k.span=sp
            mk(k,o)
    run(J,n); return J
bc('j12',[0,1,2,3]).write()
truth('j13','blocking copy on rank 1 only'); bc('j13',[1]).write()
truth('j14','MoE all-to-all: rank 3 hot expert: 1.5x grouped gemm; nccl SendRecv alltoall with args'); run(Job('j14',4),8,f=lambda r,i:1.5 if r==3 else 1,collkw=dict(kname='ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)',coll='all_to_allv',op='nccl:all_to_allv')).write()
truth('j15','alltoallv with different sizes per rank; healthy slow transfer none'); run(Job('j15',4),8,collkw=dict(kname='ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)',coll='all_to_allv',op='nccl:all_to_allv')).write(mut=lambda k,ev:[dict(e,args=dict(e['args'],**{'In msg nelems':1000000+k.r*1000+int(e['ts'])%777})) if e.get('cat')=='kernel' and 'Collective name' in e['args'] else e for e in ev])
truth('j16','as j15 rank 2 slow'); run(Job('j16',4),8,f=R2,collkw=dict(kname='ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)',coll='all_to_allv',op='nccl:all_to_allv')).write(mut=lambda k,ev:[dict(e,args=dict(e['args'],**{'In msg nelems':1000000+k.r*1000+int(e['ts'])%777})) if e.get('cat')=='kernel' and 'Collective name' in e['args'] else e for e in ev])
