"""Extra work around tokens and gradients: making items from text, checking gradients; and all that can be built in.

Nothing here runs unless somebody builds it in. `PARTS` names what can be built in, by place.
"""

from __future__ import annotations

from typing import Any

from eroica.demo.training import tokens

from .batching import CountedBatches, CutBatches, GrownBatches
from .bookkeeping import TokenHasher, TokenStatistics
from .reading import StoredTokens, TokensAhead
from .saving import CheckpointWriter, MetricsLog, WeightHistory
from .watching import Break, EagerExchange, GradientNorms, KernelChoice, TokenCensus


class TokenizedText:
    """A dataset whose items are made from text when they are asked for, in Python.

    Args:
        source: The dataset behind it.
        steps: Shared number: turns of the loop for each item; loader processes see it change.
    """

    def __init__(self, source: Any, steps: Any) -> None:
        self.source = source
        self.steps = steps

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Any:
        """Item `index` of the source."""
        self._split_text(int(self.steps.value))
        return self.source[index]

    @staticmethod
    def _split_text(steps: int) -> int:
        state = 1
        for step in range(steps):
            state = (state * 31 + step) % 65_521
        return state


class GradientScale:
    """Sums the squares of a gradient one value at a time during the backward pass.

    Args:
        values: How many values are visited.
    """

    def __init__(self, values: int) -> None:
        self.values = values
        self.scale = 0.0
        self.hook = self.scale_grad

    def scale_grad(self, _module: Any, _grad_input: Any, grad_output: Any) -> None:
        """Full backward hook of a module; leaves the gradient as it is."""
        numbers = grad_output[0].detach().flatten()[:1024].tolist()
        total = 0.0
        for position in range(self.values):
            number = numbers[position % len(numbers)]
            total += number * number
        self.scale = total**0.5


PARTS: dict[str, Any] = {
    **tokens.PARTS,
    "text": TokenizedText,
    "backward": GradientScale,
    "storage": StoredTokens,
    "ahead": TokensAhead,
    "statistics": TokenStatistics,
    "native": TokenHasher,
    "pairs": CountedBatches,
    "growth": GrownBatches,
    "lengths": CutBatches,
    "state": CheckpointWriter,
    "log": MetricsLog,
    "copies": WeightHistory,
    "norms": GradientNorms,
    "exchange": EagerExchange,
    "thread": TokenCensus,
    "tuning": KernelChoice,
    "break": Break,
}
