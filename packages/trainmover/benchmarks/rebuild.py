"""Two-phase exchange of a member's connections beside a full rebuild: `torchrun ... benchmarks/rebuild.py`.

The last rank plays the joiner for itself. Groups: the world, and five more of all ranks (as of a job with several
kinds of parallelism). "prepare" runs while training goes on, "switch" is the pause; "rebuild" closes and opens
everything and is all pause.
"""

import json
import statistics
import time

import torch
import torch.distributed as dist

import trainmover  # noqa: F401 - makes the backend known
from trainmover.context import context

dist.init_process_group("trainmover")
for _ in range(5):
    dist.new_group(list(range(dist.get_world_size())))
owner, rank, size = context(), dist.get_rank(), dist.get_world_size()
groups = list(owner.groups.values())
meeting = dist.new_group(backend="gloo")
took: dict[str, list[float]] = {"prepare_s": [], "switch_s": [], "rebuild_s": []}


def timed(name: str, action) -> None:
    dist.barrier(group=meeting)
    began = time.perf_counter()
    action()
    mine = torch.tensor(time.perf_counter() - began)
    dist.all_reduce(mine, op=dist.ReduceOp.MAX, group=meeting)
    took[name].append(mine.item())


def rebuild(generation: int) -> None:
    for group in groups:
        group.disconnect()
    dist.barrier(group=meeting)
    for group in groups:
        group.prepare(owner.directory, generation, time.monotonic() + 30)
        group.switch(generation)


for turn in range(1, 8):
    joiners = {size - 1: owner.directory[size - 1]}
    timed("prepare_s", lambda: [group.prepare(joiners, 2 * turn, time.monotonic() + 30) for group in groups])  # noqa: B023
    timed("switch_s", lambda: [group.switch(2 * turn) for group in groups])  # noqa: B023
    timed("rebuild_s", lambda: rebuild(2 * turn + 1))  # noqa: B023
    dist.all_reduce(torch.ones(1))
if rank == 0:
    medians = {name: round(statistics.median(times), 5) for name, times in took.items()}
    print(json.dumps({"ranks": size, "groups": len(groups), **medians}), flush=True)
dist.barrier(group=meeting)
dist.destroy_process_group()
