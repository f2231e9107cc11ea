"""Llama-like model with FSDP2 as torchtitan trains it; devices run at the clock that their temperature allows."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

WORDS, WIDTH, LENGTH, BATCH = 300, 48, 24, 4


@dataclass
class Clock:
    """Of the device of this worker: its share of the full frequency, 0-1."""

    share: float = 1.0

    def run(self, ms_at_full: float) -> None:
        device_wait(ms_at_full / self.share)


class TransformerBlock(nn.Module):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.attention_norm, self.ffn_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.wqkv, self.wo = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.w1, self.w2 = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.wqkv(self.attention_norm(x)).unflatten(-1, (12, -1)).transpose(1, 2).chunk(3, 1)
        x = x + self.wo(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        self.clock.run(30)
        return x + self.w2(nn.functional.silu(self.w1(self.ffn_norm(x))))


class Transformer(nn.Module):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(TransformerBlock(clock) for _ in range(2))
        self.norm, self.output = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.tok_embeddings(tokens)
        for layer in self.layers:
            h = layer(h)
        return self.output(self.norm(h))


class ForwardBackward:
    def __init__(self, model: nn.Module, clock: Clock) -> None:
        self.model, self.clock = model, clock

    def step(self, tokens: Tensor) -> Tensor:
        pred = self.model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(pred.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        self.clock.run(20)
        return loss.detach()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    clock = Clock()
    model = Transformer(clock)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp_shard",))
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    fully_shard(model.layers[-1], mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    trainer = ForwardBackward(model, clock)
    text = torch.randint(WORDS, (64, LENGTH + 1), generator=torch.Generator().manual_seed(SEED + rank))
    tempo = Tempo("titan_device_clocks", 490, 190)
    for step in tempo:
        if tempo.after_onset(step) and rank in (1, 2):
            clock.share = 0.45
        optimizer.zero_grad()
        trainer.step(text[torch.randint(0, 64, (BATCH,))])
        optimizer.step()
    tempo.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
