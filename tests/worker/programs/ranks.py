"""Distributed trainings over gloo, one per `--kind`. Each rank writes its losses, bit by bit, into `--out`."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((16,), index / 400), torch.tensor([index / 400])


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 1))


def batches(options: argparse.Namespace):
    context = "spawn" if options.spawn_loader and options.loader_workers else None
    loader = DataLoader(Numbers(), 4, num_workers=options.loader_workers, multiprocessing_context=context)
    while True:
        yield from loader


def train_ddp(options: argparse.Namespace) -> float:
    net = torch.nn.parallel.DistributedDataParallel(model())
    optimizer = torch.optim.AdamW(net.parameters())
    source = batches(options)
    for _ in range(options.iterations):
        for _ in range(options.accumulate):
            x, y = next(source)
            loss = torch.nn.functional.mse_loss(net(x), y)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(options.pause)
    return loss.item()


def train_chain(options: argparse.Namespace) -> float:
    """One stage for each rank, all in the default group: two micro-batches, one after the other."""
    net = model()[0] if dist.get_rank() == 0 else torch.nn.Linear(32, 32)
    optimizer = torch.optim.AdamW(net.parameters())
    value = 0.0
    for _ in range(options.iterations):
        for _ in range(2):
            value = pass_on(net, dist.get_rank(), dist.get_world_size() - 1)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(options.pause)
    return value


def pass_on(net: torch.nn.Module, rank: int, last: int) -> float:
    x = torch.ones(4, 32 if rank else 16)
    if rank:
        dist.recv(x, rank - 1)
        x.requires_grad_()
    out = net(x)
    gradient = torch.ones_like(out)
    if rank < last:
        dist.send(out.detach(), rank + 1)
        dist.recv(gradient, rank + 1)
    out.backward(gradient)
    if rank:
        dist.send(x.grad, rank - 1)
    return float(gradient.sum())


KINDS = {"ddp": train_ddp, "chain": train_chain}


def rank_main(rank: int, world: int, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    method = f"file://{options.out}/rendezvous" if options.mp_spawn else "env://"
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=world)
    value = KINDS[options.kind](options)
    (Path(options.out) / f"loss-{rank}").write_text(value.hex())
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=KINDS, default="ddp")
    parser.add_argument("--out", required=True)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--loader-workers", type=int, default=0)
    parser.add_argument("--spawn-loader", action="store_true")
    parser.add_argument("--mp-spawn", action="store_true")
    parser.add_argument("--pause", type=float, default=0.01)
    options = parser.parse_args()
    if options.mp_spawn:
        torch.multiprocessing.spawn(rank_main, (2, options), nprocs=2)
    else:
        rank_main(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), options)


if __name__ == "__main__":
    main()
