"""Video denoiser, gradients averaged by a DDP hook; the clips become longer by the plan of the training."""

import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

ITERS = int(os.environ.get("ITERS", "360"))
ONSET = int(os.environ.get("ONSET", "170"))
SEED = int(os.environ.get("SEED", "0"))
CLIP_PLAN = ((0, 8), (ONSET, 12), ((ONSET + ITERS) // 2, 16))


def frames_at(step):
    return max(frames for start, frames in CLIP_PLAN if start <= step)


class Denoiser(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.enter = nn.Conv3d(3, width, (1, 4, 4), stride=(1, 4, 4))
        self.space = nn.Conv3d(width, width, (1, 3, 3), padding=(0, 1, 1))
        self.time = nn.Conv3d(width, width, (3, 1, 1), padding=(1, 0, 0))
        self.leave = nn.ConvTranspose3d(width, 3, (1, 4, 4), stride=(1, 4, 4))

    def forward(self, clip):
        time.sleep(0.009 * clip.shape[2])
        h = torch.relu(self.enter(clip))
        h = h + torch.relu(self.space(h))
        h = h + torch.relu(self.time(h))
        return self.leave(h)


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model = DistributedDataParallel(Denoiser())
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(SEED + 3 * rank)
    frames, took = 0, []
    for step in range(ITERS):
        began = time.perf_counter()
        if frames_at(step) != frames:
            frames = frames_at(step)
            if rank == 0:
                print(f"step {step}: clips of {frames} frames from here on", flush=True)
        clip = torch.rand(1, 3, frames, 32, 32, generator=generator)
        noise = 0.2 * torch.randn(clip.shape, generator=generator)
        loss = nn.functional.mse_loss(model(clip + noise), noise)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        time.sleep(0.016 * frames)
        optimizer.step()
        took.append(time.perf_counter() - began)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        mean = lambda part: 1e3 * sum(part) / max(1, len(part))  # noqa: E731
        before, after = mean(took[min(10, ONSET // 2) : ONSET]), mean(took[ONSET:])
        print(json.dumps({"job": "clip_growth", "mean_ms_before": before, "mean_ms_after": after}), flush=True)


if __name__ == "__main__":
    main()
