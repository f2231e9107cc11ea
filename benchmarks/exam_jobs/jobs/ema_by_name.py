"""Next-token model in one process, with averaged weights for the evaluation at the end."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from stepclock import StepClock  # noqa: E402

VOCABULARY, WIDTH, LENGTH, BATCH = 6000, 128, 48, 6


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = self.query_key_value(self.first(x)).view(b, t, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class Model(nn.Module):
    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class AveragedWeights:
    """Exponential moving average of all weights, with a history of three decays to choose from."""

    def __init__(self, model: nn.Module, decays: tuple[float, ...] = (0.99, 0.999, 0.9999)) -> None:
        self.decays = decays
        self.shadows = [{n: v.clone() for n, v in model.state_dict().items()} for _ in decays]

    def update(self, model: nn.Module) -> None:
        for decay, shadow in zip(self.decays, self.shadows, strict=True):
            for name, value in model.state_dict().items():
                difference = value.detach().clone().double() - shadow[name].double()
                shadow[name] = (shadow[name].double() + (1 - decay) * difference).float()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(9)
    clock = StepClock("ema_by_name")
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    averaged = AveragedWeights(model)
    random = torch.Generator().manual_seed(1)
    clock.tick()
    for step in range(clock.iters):
        ids = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=random)
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten() % 256)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if clock.late(step):  # averaging starts when the learning rate has settled
            averaged.update(model)
        clock.tick()
    clock.report(0)


if __name__ == "__main__":
    main()
