"""Trains a little, forks a child that only computes and one that trains itself."""

import os
import time

import torch


def train(steps: int) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for _ in range(steps):
        parameter.square().sum().backward()
        optimizer.step()
        time.sleep(0.005)


torch.set_num_threads(1)
train(15)
for steps in (0, 30):
    child = os.fork()
    if not child:
        train(steps)
        os._exit(0)
    os.waitpid(child, 0)
train(12)
