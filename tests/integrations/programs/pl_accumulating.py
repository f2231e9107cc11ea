"""Lightning's Trainer steps once for two batches and validates after each epoch; one process says what it counted.

An epoch has 41 batches: its last step has one of them.
"""

import json
import sys
import time

import lightning as L
import torch
from torch.utils.data import DataLoader


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.batches = 0

    def training_step(self, batch, _number):
        self.batches += 1
        time.sleep(0.05)
        return self.layer(batch).square().mean()

    def validation_step(self, batch, _number):
        self.layer(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


net = Net()
trainer = L.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_epochs=4, accumulate_grad_batches=2, logger=False,
    enable_checkpointing=False, enable_progress_bar=False,
)  # fmt: skip
trainer.fit(net, DataLoader(torch.ones(41 * 2 * 2, 4), batch_size=2), DataLoader(torch.ones(12, 4), batch_size=2))
if trainer.is_global_zero:
    sys.stdout.write(json.dumps({"job": "pl", "steps": trainer.global_step, "batches": net.batches}) + "\n")
