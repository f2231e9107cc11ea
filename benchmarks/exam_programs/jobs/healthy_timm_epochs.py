"""timm: epochs with mixed-up pictures, averaged weights, a cosine schedule, a round of validation and a checkpoint."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import timm
import torch
import torch.distributed as dist
from timm.data.mixup import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, ModelEmaV3, accuracy
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

SIDE, KINDS, BATCH, EPOCH = 48, 10, 8, 70


def validate(model: nn.Module, pool: Tensor) -> float:
    top1 = AverageMeter()
    model.eval()
    with torch.no_grad():
        for batch in pool[:48].split(8):
            device_wait(14)
            target = torch.arange(len(batch)) % KINDS
            top1.update(accuracy(model(batch), target)[0].item(), len(batch))
    model.train()
    return top1.avg


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    bare = timm.create_model(
        "vit_tiny_patch16_224", pretrained=False, img_size=SIDE, embed_dim=48, depth=2, num_heads=3, num_classes=KINDS
    )
    average, model = ModelEmaV3(bare, decay=0.99), DistributedDataParallel(bare)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    schedule = CosineLRScheduler(
        optimizer, t_initial=350, lr_min=1e-5, warmup_t=70, warmup_lr_init=1e-5, cycle_limit=10, t_in_epochs=False
    )
    mixup = Mixup(mixup_alpha=0.4, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=KINDS)
    loss_fn = SoftTargetCrossEntropy()
    pool = torch.randn(128, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(SEED + rank))
    losses, best = AverageMeter(), 0.0
    tempo = Tempo("healthy_timm_epochs", 1250, None)
    with tempfile.TemporaryDirectory(prefix="timm-") as name:
        for update in tempo:
            rows = torch.randint(0, len(pool), (BATCH,))
            images, target = mixup(pool[rows].clone(), rows % KINDS)
            output = model(images)
            device_wait(50 + 8 * torch.rand(()).item())
            loss = loss_fn(output, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average.update(bare)
            schedule.step_update(update + 1)
            losses.update(loss.item(), BATCH)
            if update % EPOCH == EPOCH - 1:
                best = max(best, validate(average.module, pool))
                if rank == 0:
                    torch.save({"model": bare.state_dict(), "best": best}, Path(name, "last.pt"))
                losses.reset()
    tempo.report(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
