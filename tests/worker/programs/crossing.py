"""Two ranks that begin a collective each, in iteration 40, which the other one enters a second later."""

import sys
import time

import torch
import torch.distributed as dist

CROSSING, LATER, ITERATIONS = 40, 140, 160

torch.set_num_threads(1)
dist.init_process_group("gloo")
mine = dist.get_rank()
groups = [dist.new_group([0, 1]) for _ in range(2)]
parameter = torch.nn.Parameter(torch.ones(8, 8))
optimizer = torch.optim.SGD([parameter], lr=0.01)
summed = [torch.ones(1000), torch.ones(1000)]
works = []
dist.barrier()
for iteration in range(1, ITERATIONS + 1):
    (parameter @ parameter).sum().backward()
    if iteration in (CROSSING, LATER):
        number = mine if iteration == CROSSING else 1 - mine
        works.append(dist.all_reduce(summed[number], group=groups[number], async_op=True))
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.01)
for work in works:
    work.wait()
sys.stdout.write(f"{[float(tensor.sum()) for tensor in summed]}\n")
dist.barrier()
dist.destroy_process_group()
