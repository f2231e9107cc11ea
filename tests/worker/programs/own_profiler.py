"""A user with a profiler of their own: it runs all the time, is prepared early, or starts in the middle."""

import sys
import time

import torch
from torch.profiler import ProfilerActivity, profile, schedule

parameter = torch.nn.Parameter(torch.ones(8, 8))
optimizer = torch.optim.SGD([parameter], lr=0.01)
when = sys.argv[1]
found = []


def keep(profiler) -> None:
    found.append(sum(1 for event in profiler.events() if event.name == "aten::mm"))


def step() -> None:
    (parameter @ parameter).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.01)


torch.set_num_threads(1)
if when == "during":
    for _ in range(50):
        step()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(5):
            step()
    keep(profiler)
    for _ in range(45):
        step()
else:
    plan = schedule(wait=0, warmup=1, active=49) if when == "running" else schedule(wait=0, warmup=49, active=5)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=keep) as profiler:
        for _ in range(60):
            step()
            profiler.step()
sys.stdout.write(f"{'profiled' if found and found[0] >= 15 else 'lost'} {found}\n")
