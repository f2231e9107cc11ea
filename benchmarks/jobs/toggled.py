"""A DDP job that takes Eroica's hooks off and on again every few iterations; run by `benchmarks/overhead.py`.

Every rank toggles at the same iterations, so on- and off-blocks are interleaved inside one job and its drift cancels.
Global rank 0 writes per-block iteration times and the time spent in each hooked event.
"""

import argparse
import json
import random
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from eroica.worker import attach
from eroica.worker.import_watch import LOADERS, OPTIMIZERS


def empty(*_arguments):
    """What a call costs that does nothing."""


def timed(hook, spent, alone):
    """A hook that writes down how long half of its calls take, and an empty one in its place the other half."""
    coin = random.Random(7)

    def measured(*arguments):
        target, times = (hook, spent) if coin.random() < 0.5 else (empty, alone)
        begin = time.perf_counter_ns()
        target(*arguments)
        times.append(time.perf_counter_ns() - begin)
        if target is empty:
            hook(*arguments)

    return measured


def switch(on: bool) -> None:
    attachment = attach._attachment
    if on:
        attachment.attach(LOADERS)
        attachment.attach(OPTIMIZERS)
        return
    for undo in attachment._undo.values():
        undo()
    attachment._undo = {}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=1500)
    parser.add_argument("--block", type=int, default=4)
    parser.add_argument("--time-events", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    spent: dict[str, list[int]] = {"loaded": [], "stepped": []}
    alone: dict[str, list[int]] = {"loaded": [], "stepped": []}
    if options.time_events:  # a run of its own: the timing costs more than what it times
        switch(False)
        guest = attach._attachment.guest
        guest.hooks = guest.hooks._replace(
            stepped=timed(guest.hooks.stepped, spent["stepped"], alone["stepped"]),
            loaded=timed(guest.hooks.loaded, spent["loaded"], alone["loaded"]),
        )
        switch(True)
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, dropout=0.0)
    model = DistributedDataParallel(nn.TransformerEncoder(layer, 4, enable_nested_tensor=False))
    optimizer = torch.optim.AdamW(model.parameters())
    loader = iter(
        torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(200_000, 32, 128)), batch_size=4)
    )

    def iterate(count: int) -> float:
        begin = time.perf_counter()
        for _ in range(count):
            (batch,) = next(loader)
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return (time.perf_counter() - begin) / count

    iterate(60)
    coin = random.Random(5)
    pairs = []
    for _ in range(0 if options.time_events else options.pairs):
        first = coin.random() < 0.5
        times = {}
        for on in (first, not first):
            switch(on)
            iterate(1)  # the switch itself and what it leaves in caches
            times[on] = iterate(options.block)
        pairs.append((times[True], times[False]))
    if options.time_events:
        iterate(2000)
    if dist.get_rank() == 0:
        options.out.write_text(json.dumps({"pairs": pairs, "events_ns": spent, "empty_ns": alone}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
