"""All-reduce beside gloo's, in turn within one run: `torchrun --nproc-per-node 4 benchmarks/all_reduce.py`."""

import json
import statistics
import time

import torch
import torch.distributed as dist

import trainmover  # noqa: F401 - makes the backend known

dist.init_process_group("trainmover")
groups = {"trainmover": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
torch.set_num_threads(1)
for n_bytes in (4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20):
    took_s: dict[str, list[float]] = {name: [] for name in groups}
    values = torch.randn(n_bytes // 4)
    for turn in range(12):
        for name, group in groups.items():
            dist.barrier()
            began = time.perf_counter()
            dist.all_reduce(values, group=group)
            if turn > 1:
                took_s[name].append(time.perf_counter() - began)
    if dist.get_rank() == 0:
        medians = {f"{name}_ms": round(statistics.median(times) * 1e3, 2) for name, times in took_s.items()}
        print(
            json.dumps(
                {"n_bytes": n_bytes, **medians, "speed": round(medians["gloo_ms"] / medians["trainmover_ms"], 2)}
            ),
            flush=True,
        )
dist.destroy_process_group()
