"""A training in which something of Eroica breaks after a while."""

import sys
import time

import torch

from eroica.worker import plain

parameter = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([parameter], lr=0.1)
torch.set_num_threads(1)
for number in range(40):
    parameter.square().sum().backward()
    optimizer.step()
    time.sleep(0.005)
    if number == 20:

        def monotonic_ns() -> int:
            raise RuntimeError("no such luck")

        plain.monotonic_ns = monotonic_ns
sys.stdout.write("trained\n")
