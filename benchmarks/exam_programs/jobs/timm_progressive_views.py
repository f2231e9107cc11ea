"""ViT of timm with stages of training (as for EfficientNetV2): later stages augment the pictures more strongly."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy
import timm
import torch
import torch.distributed as dist
from PIL import Image, ImageFilter
from timm.data.auto_augment import rand_augment_transform
from timm.utils import AverageMeter
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

FULL, SIDE, KINDS, BATCH = 224, 64, 10, 12


class Views(Dataset[tuple[Tensor, int]]):
    """Views of pictures; in the second stage they are turned, recoloured and blurred before they are made smaller."""

    def __init__(self, seed: int, count: int) -> None:
        random = numpy.random.default_rng(seed)
        pixels = random.integers(0, 256, (32, FULL, FULL, 3), dtype=numpy.uint8)
        self.pictures = [Image.fromarray(one) for one in pixels]
        self.count, self.stage = count, 1
        self.strong = rand_augment_transform("rand-m9-n4-p1.0", {"translate_const": 40, "img_mean": (124, 116, 104)})
        self.blur = ImageFilter.GaussianBlur(2)

    def __len__(self) -> int:
        return self.count

    def augment(self, picture: Image.Image) -> Image.Image:
        if self.stage == 1:
            return picture
        return self.strong(picture).filter(self.blur)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        small = self.augment(self.pictures[index % 32]).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        return torch.from_numpy(numpy.array(small)).permute(2, 0, 1).float() / 255, index % KINDS


def train_updates(tempo: Tempo, model: nn.Module, views: Views, loader: DataLoader[tuple[Tensor, int]]) -> float:
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.05)
    loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1)
    losses = AverageMeter()
    batches = iter(loader)
    for update in tempo:
        if tempo.after_onset(update):
            views.stage = 2
        images, target = next(batches)
        output = model(images)
        device_wait(45)
        loss = loss_fn(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.update(loss.item(), len(images))
    return losses.avg


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    tempo = Tempo("timm_progressive_views", 970, 360)
    views = Views(SEED + rank, BATCH * tempo.iters)
    model = timm.create_model(
        "vit_tiny_patch16_224", pretrained=False, img_size=SIDE, embed_dim=48, depth=2, num_heads=3, num_classes=KINDS
    )
    train_updates(tempo, DistributedDataParallel(model), views, DataLoader(views, BATCH))
    tempo.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
