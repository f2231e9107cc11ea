"""A perceptron trained by DeepSpeed's engine, ZeRO stage 1 on CPUs (torchrun, DS_ACCELERATOR=cpu).

a  from step 150 on: rank 0 rewrites its whole history of losses after each step
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import deepspeed
import torch
from steps import Steps
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

BATCH, WIDTH = 8, 512
steps = Steps("deepspeed_mlp")
CONFIG = {
    "train_micro_batch_size_per_gpu": BATCH,
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
}


class Ones(Dataset[Tensor]):
    def __len__(self) -> int:
        return 2 * BATCH * (steps.count + 1)

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((WIDTH,), index % 7 / 7)


def rewrite_history(file: Path, losses: list[float]) -> None:
    rows = [{"step": number, "loss": loss, "smooth": sum(losses[:number][-50:])} for number, loss in enumerate(losses)]
    file.write_text(json.dumps(rows * 8))
    handle = os.open(file, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def main() -> None:
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    net = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())])
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=CONFIG)
    file, losses = Path(tempfile.mkdtemp()) / "history.json", [1.0] * 400
    loader = DataLoader(Ones(), BATCH, sampler=torch.utils.data.DistributedSampler(Ones()))
    for batch in loader:
        loss = (engine(batch) - batch).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
        if steps.faulty(0):
            rewrite_history(file, losses)
        steps.end()
        if steps.done == steps.count:
            break
    steps.report()


if __name__ == "__main__":
    main()
