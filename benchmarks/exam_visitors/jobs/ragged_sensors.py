"""Readings of sensors, of very uneven length, through a packed GRU on three ranks; nobody sorts them."""

import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

ITERS = int(os.environ.get("ITERS", "2600"))
ONSET = int(os.environ.get("ONSET", "1250"))
SEED = int(os.environ.get("SEED", "0"))


def readings(generator, batch=4):
    """Lengths are log-normal: most readings are short, some ten times longer; all ranks draw alike."""
    lengths = (14 * torch.exp(0.7 * torch.randn(batch, generator=generator))).clamp(3, 120).long()
    series = [torch.randn(int(n), 6, generator=generator).cumsum(0) for n in lengths]
    return pad_sequence(series, batch_first=True), lengths, torch.stack([s.std(0).mean() for s in series])


class Sensor(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.rnn = nn.GRU(6, width, batch_first=True)
        self.out = nn.Linear(width, 1)

    def forward(self, series, lengths):
        time.sleep(0.004 + 0.0003 * int(lengths.max()))
        packed = pack_padded_sequence(series, lengths, batch_first=True, enforce_sorted=False)
        _, last = self.rnn(packed)
        return self.out(last[-1]).squeeze(-1)


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model = DistributedDataParallel(Sensor())
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(SEED + 101 * rank)
    took, smooth = [], 0.0
    for step in range(ITERS):
        began = time.perf_counter()
        series, lengths, wanted = readings(generator)
        loss = nn.functional.smooth_l1_loss(model(series, lengths), wanted)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        time.sleep(0.005 + 0.0004 * int(lengths.max()))
        optimizer.step()
        smooth = 0.98 * smooth + 0.02 * loss.item()
        if rank == 0 and step % 500 == 0:
            print(f"step {step}: loss {smooth:.3f}", flush=True)
        took.append(time.perf_counter() - began)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        mean = lambda part: 1e3 * sum(part) / max(1, len(part))  # noqa: E731
        before, after = mean(took[min(10, ONSET // 2) : ONSET]), mean(took[ONSET:])
        print(json.dumps({"job": "ragged_sensors", "mean_ms_before": before, "mean_ms_after": after}), flush=True)


if __name__ == "__main__":
    main()
