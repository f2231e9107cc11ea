from gen import *
# baseline 1: healthy  2: slow rank 2
run(Job('s01_healthy',4)).write()
run(Job('s02_slow2',4),f=lambda r,i:1.8 if r==2 else 1).write()
# stacks
run(Job('s03_slowhost1_stacks',4,stacks=True),hostslow=lambda r,i:9000 if r==1 else 0).write()
run(Job('s04_slowhost1_nostacks',4,stacks=False),hostslow=lambda r,i:9000 if r==1 else 0).write()
