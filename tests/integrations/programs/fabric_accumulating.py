"""A loop with Lightning Fabric that steps once for two batches; one process says what it counted.

An epoch has 41 batches: its last step has one of them.
"""

import json
import sys
import time

import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader

fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
net = torch.nn.Linear(8, 8)
model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), 0.1))
loader = fabric.setup_dataloaders(DataLoader(torch.randn(41 * 2 * 2, 8), 2))
steps = batches = 0
for _ in range(4):
    for number, batch in enumerate(loader, 1):
        last = number % 2 == 0 or number == len(loader)
        with fabric.no_backward_sync(model, enabled=not last):
            time.sleep(0.05)
            fabric.backward(model(batch).square().mean())
        batches += 1
        if last:
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
if fabric.is_global_zero:
    sys.stdout.write(json.dumps({"job": "fabric", "steps": steps, "batches": batches}) + "\n")
