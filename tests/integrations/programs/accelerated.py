"""Sixty steps of 50 ms with Accelerate on CPUs; one process says how many there were."""

import json
import sys
import time

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(8, 8)
model, optimizer, loader = accelerator.prepare(
    model, torch.optim.SGD(model.parameters(), 0.1), DataLoader(torch.randn(60 * 2 * accelerator.num_processes, 8), 2)
)
for batch in loader:
    time.sleep(0.05)
    accelerator.backward(model(batch).square().mean())
    optimizer.step()
    optimizer.zero_grad()
if accelerator.is_main_process:
    sys.stdout.write(json.dumps({"job": "accelerated", "iters": len(loader)}) + "\n")
accelerator.end_training()
