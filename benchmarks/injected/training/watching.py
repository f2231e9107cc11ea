"""What a training does after a step besides the step: norms over all workers, a count in a thread, tuning, a break.

Nothing here runs unless somebody builds it in; see `PARTS` of `parts`.
"""

from __future__ import annotations

import threading
import time
from typing import Any


class GradientNorms:
    """Adds norms up over all workers, each of `tensors` in a collective of its own.

    Args:
        tensors: How many there are.
    """

    def __init__(self, tensors: int) -> None:
        import torch
        import torch.distributed as dist

        self.reduce = dist.all_reduce
        self.norms = [torch.zeros(1) for _ in range(tensors)]

    def __call__(self, _step: int) -> None:
        """After each step, on all workers."""
        self.reduce_norms()

    def reduce_norms(self) -> None:
        """One after another."""
        for norm in self.norms:
            self.reduce(norm)


class EagerExchange:
    """Has the gradients of every backward pass exchanged at once, summed up or not."""

    def __call__(self, module: Any, _inputs: Any) -> None:
        """Forward pre-hook of the wrapper that exchanges them."""
        if hasattr(module, "set_requires_gradient_sync"):
            module.set_requires_gradient_sync(True)
        else:
            module.require_backward_grad_sync = True


class TokenCensus:
    """Counts in Python, in a thread of its own, for as long as it is not closed."""

    def __init__(self) -> None:
        self.counting = True
        self.count = 0
        threading.Thread(target=self._count_on, daemon=True).start()

    def _count_on(self) -> None:
        while self.counting:
            self.count = (self.count * 31 + 7) % 65_521

    def close(self) -> None:
        """Let the thread end."""
        self.counting = False


class KernelChoice:
    """Tries kernels after the first steps: much work after the first one, none any more after `steps`.

    Args:
        steps: Steps in which something is tried.
        tries: Products that are computed after the first step.
    """

    def __init__(self, steps: int, tries: int) -> None:
        import torch

        self.multiply = torch.mm
        self.steps = steps
        self.tries = tries
        self.step = 0
        self.matrix = torch.zeros(256, 256)

    def __call__(self, _step: int) -> None:
        """After each step."""
        left = max(0, self.steps - self.step)
        self.step += 1
        for _ in range(self.tries * left // max(1, self.steps)):
            self.multiply(self.matrix, self.matrix)


class Break:
    """Stops once for some seconds, as a job does that waits for its scheduler.

    Args:
        seconds: How long.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, _step: int) -> None:
        """After each step."""
        seconds, self.seconds = self.seconds, 0.0
        if seconds:
            time.sleep(seconds)
