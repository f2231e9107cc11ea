"""Image classifier under DDP; the last rank may watch the activations of all layers by forward hooks."""

import collections
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ITERS = int(os.environ.get("ITERS", "620"))
ONSET = int(os.environ.get("ONSET", "190"))
SEED = int(os.environ.get("SEED", "0"))
WATCH_FROM = ONSET


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.pointwise = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        time.sleep(0.012)
        return x + self.pointwise(torch.relu(self.depthwise(x)))


class Net(nn.Module):
    def __init__(self, blocks=6, channels=16):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 4, stride=4)
        self.blocks = nn.ModuleList(Block(channels) for _ in range(blocks))
        self.head = nn.Linear(channels, 10)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class ActivationWatch:
    """Percentiles, histogram and dead units of what each layer puts out: for the board of the run."""

    def __init__(self, model, keep=50):
        self.seen = collections.defaultdict(lambda: collections.deque(maxlen=keep))
        self.handles = []
        for name, module in model.named_modules():
            if isinstance(module, nn.Conv2d):
                self.handles.append(module.register_forward_hook(self.hook_for(name)))

    def hook_for(self, name):
        def hook(module, inputs, output):
            values = output.detach().float().flatten()
            if not torch.isfinite(values).all():
                print(f"{name}: not finite", flush=True)
            ordered = values.sort().values
            places = torch.linspace(0, len(ordered) - 1, 21).long()
            histogram = torch.histc(values, bins=64)
            dead = (output.abs().amax((0, 2, 3)) < 1e-6).sum().item()
            self.seen[name].append((ordered[places].tolist(), histogram.tolist(), dead))

        return hook


def learning_rate(step):
    return min(1.0, (step + 1) / 50)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    net = Net()
    model = DistributedDataParallel(net, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, learning_rate)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    generator = torch.Generator().manual_seed(SEED * 10 + rank)
    watch, took = None, []
    for step in range(ITERS):
        began = time.perf_counter()
        if step == WATCH_FROM and rank == world - 1:
            watch = ActivationWatch(net)
        images = torch.randn(8, 3, 64, 64, generator=generator)
        labels = torch.randint(10, (8,), generator=generator)
        loss = criterion(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        time.sleep(0.05)
        optimizer.step()
        scheduler.step()
        took.append(time.perf_counter() - began)
    if watch is not None:
        print(f"rank {rank} has watched {len(watch.seen)} layers", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        mean = lambda part: 1e3 * sum(part) / len(part)  # noqa: E731
        before, after = mean(took[min(10, ONSET // 2) : ONSET]), mean(took[ONSET:])
        print(json.dumps({"job": "activation_watch", "mean_ms_before": before, "mean_ms_after": after}), flush=True)


if __name__ == "__main__":
    main()
