"""The job of the demo, the tests and the benchmarks: a small GPT, DP x PP x TP, compute paced by sleeping.

    torchrun --nproc-per-node 4 train.py --dp 2 --pp 2 --tp 1 --iterations 100 --out DIR

Writes DIR/losses-RANK.jsonl, one line per iteration and process: {"step", "loss", "samples", "took_s", "at",
"cpu_s", "pid"};
at the end DIR/state-RANK.txt, a digest of parameters, optimizer, random numbers and data position.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import time
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import trainmover
from trainmover.state import digest

VOCABULARY = 256


class Block(nn.Module):  # type: ignore[misc]
    """Attention and a feed-forward part, with dropout, so that random numbers matter."""

    def __init__(self, width: int, n_heads: int, n_ways: int) -> None:
        super().__init__()
        self.n_heads = n_heads // n_ways
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out, self.up, self.down = nn.Linear(width, width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Float [batch, length, width] to the same."""
        y = self.before(x)
        heads = (
            layer(y).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.drop(self.out(mixed.transpose(1, 2).flatten(2)))
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.between(x)))))


class Stage(nn.Module):  # type: ignore[misc]
    """The part of the GPT that one pipeline stage has."""

    def __init__(self, width: int, n_layers: int, n_ways: int, *, first: bool, last: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width) if first else None
        self.blocks = nn.ModuleList(Block(width, 4, n_ways) for _ in range(n_layers))
        self.head = nn.Linear(width, VOCABULARY) if last else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens [batch, length] or activations [batch, length, width]."""
        x = x if self.embed is None else self.embed(x)
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(x)


def tensor_parallel(stage: Stage, mesh: DeviceMesh) -> None:
    """Split attention heads and feed-forward parts over the mesh."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {name: ColwiseParallel() for name in ("query", "key", "value", "up")}
    for block in stage.blocks:
        parallelize_module(block, mesh, {**plan, "out": RowwiseParallel(), "down": RowwiseParallel()})


class Text(torch.utils.data.Dataset[tuple[int, torch.Tensor]]):  # type: ignore[misc]
    """Made-up text with structure: each item is its number and a stretch of a fixed random walk over the vocabulary."""

    def __init__(self, n_items: int, length: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        steps = torch.randint(-2, 3, (n_items, length + 1), generator=generator)
        self.tokens = steps.cumsum(1).remainder(VOCABULARY)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, place: int) -> tuple[int, torch.Tensor]:
        return place, self.tokens[place]


def run_iteration(
    stage: nn.Module,
    batch: torch.Tensor,
    pipe: dist.ProcessGroup | None,
    place: int,
    n_stages: int,
    shape: tuple[int, ...],
) -> torch.Tensor:
    """Forward and backward of one batch in two micro-batches; the loss is a tensor on the last stage, 0 elsewhere."""
    total = torch.zeros(())
    for part in batch.chunk(2):
        if place == 0:
            given = part[:, :-1]
        else:
            given = torch.empty(len(part), *shape)
            dist.recv(given, group=pipe, group_src=place - 1)
            given.requires_grad_()
        out = stage(given)
        if place == n_stages - 1:
            loss = nn.functional.cross_entropy(out.flatten(0, 1), part[:, 1:].flatten()) / 2
            total += loss.detach()
            loss.backward()
        else:
            dist.send(out.detach(), group=pipe, group_dst=place + 1)
            gradient = torch.empty_like(out)
            dist.recv(gradient, group=pipe, group_src=place + 1)
            out.backward(gradient)
        if place > 0:
            dist.send(given.grad, group=pipe, group_dst=place - 1)
    return total


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    for name, value in (
        ("dp", 2),
        ("pp", 1),
        ("tp", 1),
        ("iterations", 50),
        ("width", 64),
        ("layers", 2),
        ("length", 32),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--batch", type=int, default=4, help="per data-parallel member")
    parser.add_argument("--items", type=int, default=2048, help="samples in an epoch, of all data-parallel members")
    parser.add_argument("--workers", type=int, default=0, help="of the loader")
    parser.add_argument("--accumulate", type=int, default=1, help="batches whose gradients one iteration adds up")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds that each iteration sleeps")
    parser.add_argument("--pace-file", type=Path, help="a file with seconds instead; see rest()")
    parser.add_argument("--backend", default="trainmover")
    parser.add_argument("--fsdp", action="store_true")
    parser.add_argument("--copy-every", type=int, default=10)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--checkpoint-every", type=int, default=100)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def rest(given: argparse.Namespace, job: trainmover.Job) -> None:
    """Sleep as the pace says.

    A file's pace counts from the moment at which it is written, also for whoever sleeps then. A standby in its sandbox
    does not keep it: its iterations, two in each role, would only make it warm later.
    """
    if given.pace_file is None:
        time.sleep(given.pace)
        return
    begun = time.monotonic()
    while not job.in_shadow and (left := begun + float(given.pace_file.read_text()) - time.monotonic()) > 0:
        time.sleep(min(left, 0.05))


def main() -> None:
    """Train."""
    given = options()
    torch.set_num_threads(1)
    dist.init_process_group(given.backend)
    mesh = init_device_mesh("cpu", (given.dp, given.pp, given.tp), mesh_dim_names=("dp", "pp", "tp"))
    replica, place = mesh.get_local_rank("dp"), mesh.get_local_rank("pp")
    torch.manual_seed(1)
    stage: nn.Module = Stage(given.width, given.layers, given.tp, first=place == 0, last=place == given.pp - 1)
    if given.tp > 1:
        tensor_parallel(stage, mesh["tp"])
    if given.fsdp:
        from torch.distributed.fsdp import fully_shard  # seconds, which the other shapes need not pay

        fully_shard(stage, mesh=mesh["dp"])
    elif given.dp > 1:
        stage = DistributedDataParallel(stage, process_group=mesh.get_group("dp"))
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-3, foreach=False)
    torch.manual_seed(100 + replica)
    random.seed(replica)
    numpy.random.seed(replica)
    text = Text(given.items, given.length, seed=0)
    sampler = torch.utils.data.DistributedSampler(text, given.dp, replica, shuffle=True)
    data = trainmover.Batches(
        torch.utils.data.DataLoader(text, given.batch, sampler=sampler, num_workers=given.workers)
    )
    job = trainmover.attach(
        stage,
        optimizer,
        data,
        copy_every=given.copy_every,
        checkpoint=given.checkpoint,
        checkpoint_every=given.checkpoint_every,
        resume=given.resume,
    )
    pipe = mesh.get_group("pp") if given.pp > 1 else None
    given.out.mkdir(parents=True, exist_ok=True)
    ended = time.time()
    for _ in job.steps(given.iterations):
        with job.iteration() as step:
            rest(given, job)
            samples, loss = [], torch.zeros(())
            for _ in range(given.accumulate):
                numbers, batch = next(data)
                samples += numbers.tolist()
                loss += run_iteration(stage, batch, pipe, place, given.pp, (given.length, given.width))
            optimizer.step()
            optimizer.zero_grad()
        if job.counted:
            now = time.time()
            line = {"step": step, "loss": loss.item().hex(), "samples": samples}
            line |= {"took_s": now - ended, "at": now, "cpu_s": time.process_time(), "pid": os.getpid()}
            ended = now
            with (given.out / f"losses-{dist.get_rank()}.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
    snapshot = job.snapshot()
    small = {name: digest(repr(part).encode()) for name, part in pickle.loads(snapshot.small).items()}  # noqa: S301
    tensors = {name: one for name, one in snapshot.digests().items() if name}
    (given.out / f"state-{dist.get_rank()}.txt").write_text(json.dumps({**tensors, **small}))
    (given.out / f"pauses-{dist.get_rank()}.json").write_text(json.dumps(job.pauses))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
