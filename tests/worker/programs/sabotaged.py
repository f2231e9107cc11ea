"""A training in which something of Eroica breaks after a while."""

import sys
import time

import torch

from eroica.worker import attach
from eroica.worker.pristine import monotonic_ns

parameter = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([parameter], lr=0.1)
torch.set_num_threads(1)
for number in range(40):
    parameter.square().sum().backward()
    optimizer.step()
    time.sleep(0.005)
    if number == 20:

        def broken() -> int:
            raise RuntimeError("no such luck")

        for hook in attach._attachment.guest.hooks[:2]:
            hook.__defaults__ = tuple(broken if value is monotonic_ns else value for value in hook.__defaults__)
sys.stdout.write("trained\n")
