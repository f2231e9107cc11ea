"""Accelerate lets the optimizer step once for two batches; one process says what it counted.

An epoch has 41 batches: its last step has one of them.
"""

import json
import sys
import time

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = torch.nn.Linear(8, 8)
model, optimizer, loader = accelerator.prepare(
    model, torch.optim.SGD(model.parameters(), 0.1), DataLoader(torch.randn(41 * 2 * accelerator.num_processes, 8), 2)
)
steps = batches = 0
for _ in range(4):
    for batch in loader:
        with accelerator.accumulate(model):
            time.sleep(0.05)
            accelerator.backward(model(batch).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        batches += 1
        steps += accelerator.sync_gradients
if accelerator.is_main_process:
    sys.stdout.write(json.dumps({"job": "accelerated", "steps": steps, "batches": batches}) + "\n")
accelerator.end_training()
