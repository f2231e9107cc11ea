"""Three workers that exchange a number each iteration, with real collectives; one of them has the fault `hang`.

python desynchronized.py PLAN ITERATIONS STORE_FILE
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import torch.distributed as dist

from support.faults import inject, read_plans

WORKERS = 3


def exchange(gradient: Any) -> None:
    dist.all_reduce(gradient)


def work(rank: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=WORKERS)
    model = torch.nn.Linear(2, 2)
    with inject(*read_plans(sys.argv[1]), worker=rank, workers=WORKERS) as faults:
        for iteration in range(int(sys.argv[2])):
            faults.iteration(iteration, model)
            model(torch.ones(1, 2))
            exchange(torch.ones(100))
            os.write(1, f"{rank} {iteration}\n".encode())
    dist.barrier()
    os._exit(0)


def main() -> None:
    children = []
    for rank in range(WORKERS):
        child = os.fork()
        if child == 0:
            work(rank)
        children.append(child)
    os.write(1, f"workers {' '.join(map(str, children))}\n".encode())
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
