"""A field fitted with L-BFGS and a line search on one rank; at times the fit is looked at on a grid."""

import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn

ITERS = int(os.environ.get("ITERS", "490"))
ONSET = int(os.environ.get("ONSET", "240"))
SEED = int(os.environ.get("SEED", "0"))
LOOK_EVERY = 50


class Field(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.enter = nn.Linear(2, width)
        self.middle = nn.Linear(width, width)
        self.drop = nn.Dropout(0.05)
        self.leave = nn.Linear(width, 1)

    def forward(self, place):
        time.sleep(0.018)
        h = torch.tanh(self.enter(place))
        h = self.drop(torch.tanh(self.middle(h)))
        return self.leave(h)


def points(generator, count=256):
    place = 2 * torch.rand(count, 2, generator=generator) - 1
    return place, torch.sin(3 * place[:, :1]) * torch.cos(2 * place[:, 1:])


class Fit:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.LBFGS(
            model.parameters(), lr=1.0, max_iter=4, max_eval=12, line_search_fn="strong_wolfe"
        )

    def step(self, place, value):
        def closure():
            self.optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.mse_loss(self.model(place), value)
            loss.backward()
            time.sleep(0.018)
            return loss

        return self.optimizer.step(closure)

    @torch.no_grad()
    def look(self, generator, spread=False):
        """The error on fresh points; with `spread`, how far dropout moves the answer, which needs dropout to be on."""
        place, value = points(generator)
        error = nn.functional.l1_loss(self.model(place), value).item()
        if not spread:
            return error, 0.0
        self.model.train()
        tries = torch.stack([self.model(place) for _ in range(4)])
        return error, tries.std(0).mean().item()


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model = Field()
    model.eval()  # dropout is for the spread only
    fit = Fit(model)
    generator = torch.Generator().manual_seed(SEED)
    took, errors = [], []
    for step in range(ITERS):
        began = time.perf_counter()
        if step % LOOK_EVERY == 0 or step == ONSET:
            errors.append(fit.look(generator, spread=step >= ONSET))
        place, value = points(generator)
        fit.step(place, value)
        took.append(time.perf_counter() - began)
    dist.destroy_process_group()
    mean = lambda part: 1e3 * sum(part) / max(1, len(part))  # noqa: E731
    before, after = mean(took[min(10, ONSET // 2) : ONSET]), mean(took[ONSET:])
    print(json.dumps({"job": "lbfgs_field", "mean_ms_before": before, "mean_ms_after": after}), flush=True)


if __name__ == "__main__":
    main()
