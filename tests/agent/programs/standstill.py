"""Three ranks that train; then one waits for a queue, one for a collective, one sleeps with the interpreter lock."""

import ctypes
import queue
import sys
import threading
import time

import torch
import torch.distributed as dist

LAST = 30

torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=sys.argv[1], rank=int(sys.argv[2]), world_size=3)
rank = dist.get_rank()
pair = dist.new_group([0, 1])
parameter = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([parameter], lr=0.01)
batches: "queue.Queue[int]" = queue.Queue()
threading.Thread(target=time.sleep, args=(300,), name="feeder", daemon=True).start()


def next_batch() -> int:
    return batches.get()


for iteration in range(1, 1000):
    if iteration > LAST and rank == 0:
        next_batch()
    if iteration > LAST and rank == 2:
        ctypes.PyDLL(None).sleep(300)
    parameter.grad = torch.ones(4)
    dist.all_reduce(parameter.grad)
    if rank < 2:
        dist.all_reduce(torch.ones(5), group=pair)
    optimizer.step()
    time.sleep(0.02)
