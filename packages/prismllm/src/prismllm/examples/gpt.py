"""A small GPT in any layout: `torchrun --nproc-per-node 8 gpt.py --pp 2 --tp 2` trains with data parallelism 2.

Data parallelism is DDP (without tensor parallelism), FSDP2, or averaged by hand; tensor parallelism is a DeviceMesh
with `parallelize_module`; pipelines are torch's schedules. `--pace` lets each block last so long in forward and twice
as long in backward, mostly by sleeping, so that many ranks fit on few cores.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel


class Paced(torch.autograd.Function):  # type: ignore[misc]
    """Identity that sleeps: in forward until so long after `begun`, in backward twice as long as such."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, begun: float, pace: float) -> Tensor:
        """Sleep until the pace is over."""
        ctx.pace = pace
        time.sleep(max(0.0, begun + pace - time.perf_counter()))
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Sleep; what backward computes comes on top."""
        time.sleep(2 * ctx.pace)
        return gradient, None, None


class Block(nn.Module):  # type: ignore[misc]
    """Attention and a perceptron."""

    def __init__(self, width: int, heads: int, pace: float) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.pace = pace

    def forward(self, x: Tensor) -> Tensor:
        """Hidden states of the next block; no pace goes across a call of tensor parallelism."""
        begun = time.perf_counter()
        y = self.before(x)
        batch, length, _ = y.shape
        q, k, v = (
            one(y).view(batch, length, -1, y.shape[-1] // self.heads).transpose(1, 2)
            for one in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(self.paced(y.transpose(1, 2).reshape(batch, length, -1), begun))
        begun = time.perf_counter()
        y = F.gelu(self.up(self.between(x)))
        return x + self.down(self.paced(y, begun))

    def paced(self, x: Tensor, begun: float) -> Tensor:
        """The same tensor, not before half of the pace is over."""
        return Paced.apply(x, begun, self.pace / 2) if self.pace else x


class Part(nn.Module):  # type: ignore[misc]
    """The layers of one pipeline stage."""

    def __init__(self, options: argparse.Namespace, stage: int, layers: int) -> None:
        super().__init__()
        width = options.width
        self.embed = nn.Embedding(options.vocabulary, width) if stage == 0 else None
        self.blocks = nn.ModuleList(Block(width, options.heads, options.pace) for _ in range(layers))
        self.head = nn.Linear(width, options.vocabulary, bias=False) if stage == options.pp - 1 else None

    def forward(self, x: Tensor) -> Tensor:
        """What the next stage gets, or logits."""
        if self.embed is not None:
            x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(x)


def layers_of(options: argparse.Namespace, stage: int) -> int:
    """Layers of a stage; `--uneven` gives the last one more."""
    each: int = options.layers // options.pp
    return each + options.uneven if stage == options.pp - 1 else each


def main() -> None:
    """Train for some iterations."""
    parser = argparse.ArgumentParser()
    for name, value in (("pp", 1), ("tp", 1), ("layers", 4), ("width", 64), ("heads", 4), ("vocabulary", 256),
                        ("length", 32), ("batch", 4), ("microbatches", 4), ("accumulate", 1), ("iterations", 8),
                        ("uneven", 0)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--data", choices=("ddp", "fsdp", "mean"), default="ddp")
    parser.add_argument("--schedule", choices=("1f1b", "gpipe"), default="1f1b")
    parser.add_argument("--slow", default="", help="rank:factor, which takes so many times its pace")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    dp = world // (options.pp * options.tp)
    mesh = init_device_mesh("cpu", (dp, options.pp, options.tp), mesh_dim_names=("dp", "pp", "tp"))
    stage = mesh["pp"].get_local_rank()
    if options.slow and int(options.slow.split(":")[0]) == dist.get_rank():
        options.pace *= float(options.slow.split(":")[1])
    torch.manual_seed(stage)
    model: nn.Module = Part(options, stage, layers_of(options, stage))
    if options.tp > 1:
        for block in model.blocks:
            parallelize_module(block, mesh["tp"], {
                "q": ColwiseParallel(), "k": ColwiseParallel(), "v": ColwiseParallel(), "out": RowwiseParallel(),
                "up": ColwiseParallel(), "down": RowwiseParallel(),
            })  # fmt: skip
    inner = model
    if dp > 1 and options.data == "fsdp":
        for block in model.blocks:
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
    elif dp > 1 and options.data == "ddp" and options.tp == 1 and options.pp == 1:
        model = DistributedDataParallel(model, process_group=mesh["dp"].get_group(), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    train(options, mesh, model, inner, optimizer, by_hand=dp > 1 and inner is model and options.data != "fsdp")
    dist.destroy_process_group()


def train(
    options: argparse.Namespace, mesh: Any, model: nn.Module, inner: nn.Module, optimizer: Any, by_hand: bool
) -> None:
    """The loop."""
    stage, rows = mesh["pp"].get_local_rank(), options.batch * options.microbatches
    random = torch.Generator().manual_seed(mesh["dp"].get_local_rank())
    schedule = None
    if options.pp > 1:
        one = torch.zeros(options.batch, options.length, dtype=torch.long)
        hidden = torch.zeros(options.batch, options.length, options.width, requires_grad=True)
        logits = torch.zeros(options.batch, options.length, options.vocabulary, requires_grad=True)
        part = PipelineStage(
            model, stage, options.pp, torch.device("cpu"), group=mesh["pp"].get_group(),
            input_args=(one if stage == 0 else hidden,), output_args=(logits if stage == options.pp - 1 else hidden,),
        )  # fmt: skip
        make = Schedule1F1B if options.schedule == "1f1b" else ScheduleGPipe
        schedule = make(part, options.microbatches, loss_fn=loss_of)
    for _ in range(options.iterations):
        tokens = torch.randint(options.vocabulary, (rows, options.length + 1), generator=random)
        x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        if schedule is not None:
            if stage == 0:
                schedule.step(x)
            elif stage == options.pp - 1:
                schedule.step(target=y, losses=[])
            else:
                schedule.step()
        else:
            accumulate(options, model, x, y)
        if by_hand:
            average(model, mesh["dp"].get_group())
        stepped = time.perf_counter()
        optimizer.step()
        optimizer.zero_grad()
        if options.pace:
            time.sleep(max(0.0, stepped + options.pace - time.perf_counter()))


def accumulate(options: argparse.Namespace, model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Forward and backward, in so many pieces; only the last one is reduced."""
    pieces = options.accumulate
    for number, (xs, ys) in enumerate(zip(x.chunk(pieces), y.chunk(pieces), strict=True)):
        is_last = number == pieces - 1
        if isinstance(model, DistributedDataParallel):
            model.require_backward_grad_sync = is_last
        (loss_of(model(xs), ys) / pieces).backward()


def loss_of(logits: Tensor, target: Tensor) -> Tensor:
    """Cross entropy."""
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def average(model: nn.Module, group: Any) -> None:
    """Gradients averaged over the data-parallel group, in one call."""
    gradients = [one.grad for one in model.parameters() if one.grad is not None]
    local = [one.to_local() if hasattr(one, "to_local") else one for one in gradients]
    flat = torch.cat([one.flatten() for one in local])
    dist.all_reduce(flat, group=group)
    flat /= dist.get_world_size(group)
    at = 0
    for one in local:
        one.copy_(flat[at : at + one.numel()].view_as(one))
        at += one.numel()


if __name__ == "__main__":
    if "RANK" not in os.environ:
        raise SystemExit("start with torchrun")
    main()
