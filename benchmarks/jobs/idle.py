"""A paced DDP job whose watchers are off and on in turn, every few iterations; run by `benchmarks/idle.py`.

Compute is a small model and a sleep, so that eight ranks fit on two cores. All ranks switch at the same iterations.
Global rank 0 writes the seconds of every iteration, by watcher, round by round.
"""

import argparse
import contextlib
import json
import random
import time
from pathlib import Path

import torch
import torch.distributed as dist
from toggled import switch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

NOBODY, EROICA, TRACEML = "nobody", "eroica", "traceml"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--block", type=int, default=4)
    parser.add_argument("--sleep-ms", type=float, required=True)
    parser.add_argument("--traceml", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    trace_step = contextlib.nullcontext
    if options.traceml:
        import traceml_ai

        traceml_ai.init(mode="auto")
        trace_step = traceml_ai.trace_step
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    items = torch.utils.data.TensorDataset(torch.randn(16, 64).repeat(100_000, 1))
    loader = iter(torch.utils.data.DataLoader(items, batch_size=4))

    def iterate(count: int, around) -> list[float]:
        taken, begin = [], time.perf_counter()
        for _ in range(count):
            (batch,) = next(loader)
            with around(model):
                loss = model(batch).square().mean()
                optimizer.zero_grad()
                loss.backward()
                if options.sleep_ms:
                    time.sleep(options.sleep_ms / 1e3)
                optimizer.step()
            end = time.perf_counter()
            taken.append(end - begin)
            begin = end
        return taken

    watchers = [NOBODY, EROICA, *([TRACEML] if options.traceml else [])]
    iterate(100, contextlib.nullcontext)
    coin = random.Random(5)
    rounds = []
    for _ in range(options.rounds):
        times = {}
        for watcher in coin.sample(watchers, len(watchers)):
            switch(watcher == EROICA)
            around = trace_step if watcher == TRACEML else contextlib.nullcontext
            iterate(1, around)  # the switch itself and what it leaves in caches
            times[watcher] = iterate(options.block, around)
        rounds.append(times)
    if dist.get_rank() == 0:
        options.out.write_text(json.dumps(rounds))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
