"""Stands in for an accelerator: the time a device would take for its part of an iteration."""

from __future__ import annotations

import time

from torch import Tensor, nn


class Device(nn.Module):
    """Passes its input on after the time that the kernels of a real device would need."""

    def __init__(self, milliseconds: float) -> None:
        super().__init__()
        self.seconds = milliseconds / 1e3

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.seconds)
        return x
