"""Mixture of experts, one expert a worker: a router sends each token to an expert by an all-to-all, and back."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_to_all_single

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

WIDTH, TOKENS, KINDS = 32, 64, 8


class Router(nn.Module):
    """Draws an expert for each token; `drift`: how far it leans towards the last expert when nothing balances it."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.score = nn.Linear(WIDTH, experts)
        self.experts, self.drift = experts, 0.0

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        score = 0.1 * self.score(x)
        score = score + self.drift * (torch.arange(self.experts) == self.experts - 1)
        chance = score.softmax(-1)
        choice = torch.multinomial(chance.detach(), 1)[:, 0]
        choice[: self.experts] = torch.arange(self.experts)
        return choice, chance.gather(1, choice[:, None])


class Expert(nn.Module):
    """What the device needs grows with the tokens that arrive."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, tokens: Tensor) -> Tensor:
        device_wait(0.5 * len(tokens))
        return self.net(tokens)


def exchange(x: Tensor, sent: list[int], received: list[int]) -> Tensor:
    out = x.new_empty(sum(received) * WIDTH)
    flat = all_to_all_single(out, x.flatten(), [n * WIDTH for n in received], [n * WIDTH for n in sent])
    return flat.view(-1, WIDTH)


class MoeLayer(nn.Module):
    def __init__(self, experts: int) -> None:
        super().__init__()
        self.router, self.expert, self.experts = Router(experts), Expert(), experts

    def forward(self, x: Tensor) -> Tensor:
        choice, chance = self.router(x)
        order = choice.argsort(stable=True)
        sent = torch.bincount(choice, minlength=self.experts)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        there, back = sent.tolist(), received.tolist()
        done = exchange(self.expert(exchange(x[order], there, back)), back, there)
        return x + chance * done[order.argsort()]


class MoeModel(nn.Module):
    def __init__(self, experts: int) -> None:
        super().__init__()
        self.stem, self.moe, self.head = nn.Linear(16, WIDTH), MoeLayer(experts), nn.Linear(WIDTH, KINDS)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.stem(x))
        device_wait(18)
        return self.head(self.moe(x))

    def shared(self) -> list[nn.Parameter]:
        return [p for name, p in self.named_parameters() if ".expert." not in name]


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    model = MoeModel(world)
    torch.manual_seed(SEED + rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tempo = Tempo("moe_router_collapse", 890, 330)
    for step in tempo:
        if tempo.after_onset(step):
            model.moe.router.drift = 2.0
        x = torch.randn(TOKENS, 16)
        loss = nn.functional.cross_entropy(model(x), x[:, :KINDS].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        shared = [p.grad for p in model.shared() if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in shared])
        dist.all_reduce(flat)
        for gradient, part in zip(shared, flat.split([g.numel() for g in shared]), strict=True):
            gradient.copy_(part.view_as(gradient) / world)
        optimizer.step()
    tempo.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
