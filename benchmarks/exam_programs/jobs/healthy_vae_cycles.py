"""A variational auto-encoder: the weight of the divergence rises in cycles, pictures and the best weights are saved."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchvision.utils import save_image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

SIDE, CODE, BATCH, CYCLE = 16, 10, 12, 160


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU(), nn.Flatten(),
            nn.Linear(24 * 16, 2 * CODE),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            nn.Linear(CODE, 24 * 16), nn.Unflatten(1, (24, 4, 4)), nn.ConvTranspose2d(24, 12, 2, 2), nn.ReLU(),
            nn.ConvTranspose2d(12, 1, 2, 2), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_spread = self.encoder(x).chunk(2, 1)
        code = mean + torch.randn_like(mean) * (0.5 * log_spread).exp()
        return self.decoder(code), mean, log_spread


def vae_loss(x: Tensor, out: Tensor, mean: Tensor, log_spread: Tensor, weight: float) -> Tensor:
    divergence = -0.5 * (1 + log_spread - mean.square() - log_spread.exp()).sum(1).mean()
    return nn.functional.binary_cross_entropy(out, x, reduction="sum") / len(x) + weight * divergence


@torch.no_grad()
def evaluate(model: nn.Module, held_out: Tensor) -> float:
    model.eval()
    total = torch.zeros(())
    for batch in held_out.split(16):
        device_wait(12)
        total += vae_loss(batch, *model(batch), 1.0)
    model.train()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    bare = Vae()
    average, model = AveragedModel(bare, multi_avg_fn=get_ema_multi_avg_fn(0.99)), DistributedDataParallel(bare)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.7, patience=2)
    pool = torch.rand(256, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(SEED + rank))
    held_out = torch.rand(64, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(SEED + 50))
    best = float("inf")
    tempo = Tempo("healthy_vae_cycles", 1050, None)
    with tempfile.TemporaryDirectory(prefix="vae-") as name:
        for step in tempo:
            x = pool[torch.randint(0, len(pool), (BATCH,))]
            out, mean, log_spread = model(x)
            device_wait(62 + 12 * torch.rand(()).item())
            loss = vae_loss(x, out, mean, log_spread, min(1.0, 2 * (step % CYCLE) / CYCLE))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average.update_parameters(bare)
            if step % 80 == 79:
                score = evaluate(average.module, held_out)
                plateau.step(score)
                if rank == 0 and score < best:
                    torch.save(average.state_dict(), Path(name, "best.pt"))
                best = min(best, score)
            if step % CYCLE == CYCLE - 1 and rank == 0:
                save_image(out[:12].detach(), Path(name, "pictures.png"), nrow=4)
    tempo.report(rank)
    dist.barrier()
    del model, optimizer
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
