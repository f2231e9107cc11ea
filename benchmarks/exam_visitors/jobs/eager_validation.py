"""Sound events with DDP, a learning rate with a milestone and a validation whose interval follows the learning rate."""

import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ITERS = int(os.environ.get("ITERS", "1560"))
ONSET = int(os.environ.get("ONSET", "760"))
SEED = int(os.environ.get("SEED", "0"))
BASE_RATE, BASE_INTERVAL, HELD_OUT = 0.05, 40, 6


class Events(nn.Module):
    def __init__(self, bands=40, width=32, kinds=10):
        super().__init__()
        self.first = nn.Conv1d(bands, width, 5, padding=2)
        self.second = nn.Conv1d(width, width, 5, padding=2)
        self.head = nn.Linear(width, kinds)

    def forward(self, spectrum):
        time.sleep(0.026)
        h = torch.relu(self.first(spectrum))
        h = torch.relu(self.second(h))
        return self.head(h.mean(-1))


class Validator:
    """Looks at held-out sounds; as the learning rate falls it looks closer."""

    def __init__(self, generator):
        self.held_out = [clip(generator) for _ in range(HELD_OUT)]
        self.last = 0

    def due(self, step, rate):
        interval = max(1, round(BASE_INTERVAL * rate / BASE_RATE))
        if step - self.last < interval:
            return False
        self.last = step
        return True

    @torch.no_grad()
    def validate(self, model):
        model.eval()
        right = torch.zeros(2)
        for spectrum, kind in self.held_out:
            right[0] += (model(spectrum).argmax(-1) == kind).sum()
            right[1] += len(kind)
        dist.all_reduce(right)
        model.train()
        return (right[0] / right[1]).item()


def clip(generator, batch=8):
    kind = torch.randint(10, (batch,), generator=generator)
    spectrum = torch.randn(batch, 40, 60, generator=generator)
    spectrum[torch.arange(batch), kind * 4] += 1
    return spectrum, kind


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model = DistributedDataParallel(Events())
    optimizer = torch.optim.SGD(model.parameters(), lr=BASE_RATE, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [ONSET], gamma=0.1)
    generator = torch.Generator().manual_seed(SEED + 7 * rank)
    validator, best, took = Validator(generator), 0.0, []
    for step in range(ITERS):
        began = time.perf_counter()
        spectrum, kind = clip(generator)
        loss = nn.functional.cross_entropy(model(spectrum), kind)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        time.sleep(0.026)
        optimizer.step()
        scheduler.step()
        if validator.due(step, scheduler.get_last_lr()[0]):
            best = max(best, validator.validate(model))
        took.append(time.perf_counter() - began)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        mean = lambda part: 1e3 * sum(part) / max(1, len(part))  # noqa: E731
        before, after = mean(took[min(10, ONSET // 2) : ONSET]), mean(took[ONSET:])
        print(json.dumps({"job": "eager_validation", "mean_ms_before": before, "mean_ms_after": after}), flush=True)


if __name__ == "__main__":
    main()
