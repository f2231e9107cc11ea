"""Sharper pictures with a perceptual loss: features of a torchvision network are compared, not pixels."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torchvision.models.feature_extraction import create_feature_extractor
from torchvision.models.mobilenetv2 import MobileNetV2

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

SIDE, BATCH, DEPTH = 24, 4, 9


class Upscaler(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), nn.ReLU(), nn.Conv2d(16, 12, 3, 1, 1), nn.PixelShuffle(2))

    def forward(self, small: Tensor) -> Tensor:
        return self.body(small)


class PerceptualLoss(nn.Module):
    """Compares what a frozen network sees; `drawn`: the layers are drawn anew each time."""

    def __init__(self) -> None:
        super().__init__()
        settings = [[1, 8, 1, 1], [3, 12, 2, 2], [3, 16, 3, 2], [3, 24, 3, 2]]
        self.backbone = MobileNetV2(num_classes=10, width_mult=0.5, inverted_residual_setting=settings).eval()
        self.backbone.requires_grad_(False)
        self.random = torch.Generator().manual_seed(SEED)
        self.drawn = False
        self.extractor = self.build([1, 3])

    def build(self, layers: list[int]) -> nn.Module:
        nodes = {f"features.{layer}": f"level{layer}" for layer in layers}
        return create_feature_extractor(self.backbone, return_nodes=nodes)

    def forward(self, out: Tensor, target: Tensor) -> Tensor:
        if self.drawn:
            self.extractor = self.build((1 + torch.randperm(DEPTH, generator=self.random)[:2]).tolist())
        seen, wanted = self.extractor(out), self.extractor(target)
        return sum((seen[level] - wanted[level]).abs().mean() for level in seen)


def main() -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=UserWarning)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model, perceptual = DistributedDataParallel(Upscaler()), PerceptualLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    pool = torch.rand(64, 3, 2 * SIDE, 2 * SIDE, generator=torch.Generator().manual_seed(SEED + rank))
    tempo = Tempo("tv_perceptual_layers", 1005, 350)
    for step in tempo:
        if tempo.after_onset(step):
            perceptual.drawn = True
        target = pool[torch.randint(0, len(pool), (BATCH,))]
        out = model(nn.functional.avg_pool2d(target, 2))
        device_wait(55)
        loss = perceptual(out, target) + 0.1 * nn.functional.l1_loss(out, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    tempo.report(rank)
    dist.barrier()
    del model, optimizer
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
