"""A training whose parameters are stepped as soon as their gradients are there, inside the backward pass."""

import sys
import time

import torch

torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
optimizers = {parameter: torch.optim.SGD([parameter], lr=0.001) for parameter in model.parameters()}


def step(parameter: torch.Tensor) -> None:
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in optimizers:
    parameter.register_post_accumulate_grad_hook(step)
for _ in range(60):
    model(torch.ones(4, 8)).sum().backward()
    time.sleep(0.01)
sys.stdout.write("trained\n")
