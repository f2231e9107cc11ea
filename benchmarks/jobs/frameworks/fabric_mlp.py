"""A perceptron in Lightning Fabric, with a loop of its own (torchrun).

a  from step 150 on: rank 1's dataset draws each sample's augmentation pixel by pixel
"""

from __future__ import annotations

import random

import torch
from lightning.fabric import Fabric
from steps import Steps
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

BATCH, WIDTH = 8, 512
steps = Steps("fabric_mlp")


class Noisy(Dataset[Tensor]):
    def __len__(self) -> int:
        return 2 * BATCH * (steps.count + 1)

    def draw_pixels(self, sample: Tensor) -> Tensor:
        for pixel in range(200):
            sample[pixel] += random.gauss(0, 0.01)
        return sample

    def __getitem__(self, index: int) -> Tensor:
        sample = torch.ones(WIDTH)
        return self.draw_pixels(sample) if steps.faulty(1) else sample


def main() -> None:
    torch.set_num_threads(1)
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    net = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())])
    model, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), 1e-3))
    loader = fabric.setup_dataloaders(DataLoader(Noisy(), BATCH))
    for batch in loader:
        loss = (model(batch) - batch).square().mean()
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        steps.end()
        if steps.done == steps.count:
            break
    steps.report()


if __name__ == "__main__":
    main()
