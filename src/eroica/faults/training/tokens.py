"""Extra work around tokens and gradients: reading windows from storage, scoring, indexing, checking gradients.

Nothing here runs unless somebody builds it in. `PARTS` names what can be built in, by place.
"""

from __future__ import annotations

import gc
import random
import time
from typing import Any

from .batching import CountedBatches, CutBatches, GrownBatches
from .bookkeeping import ScaleAgreement, TokenHasher, TokenStatistics
from .reading import StoredTokens, TokensAhead
from .saving import CheckpointWriter, MetricsLog, WeightHistory
from .watching import Break, EagerExchange, GradientNorms, KernelChoice, TokenCensus


class TokenWindows:
    """A dataset read through block storage that answers after `latency.value` seconds.

    Args:
        source: The dataset behind it.
        latency: Shared number, seconds per item; loader processes see it change.
    """

    def __init__(self, source: Any, latency: Any) -> None:
        self.source = source
        self.latency = latency

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Any:
        """Item `index` of the source, once its block is there."""
        return self._read_block(index)

    def _read_block(self, index: int) -> Any:
        due = time.monotonic() + self.latency.value
        item = self.source[index]
        left = due - time.monotonic()
        if left > 0:
            time.sleep(left)
        return item


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


class TokenScorer:
    """Scores tokens one by one in Python before each forward pass.

    Args:
        tokens: How many are scored.
    """

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.score = 0

    def __call__(self, _module: Any, _inputs: Any) -> None:
        """Forward pre-hook of a module."""
        self._score_tokens()

    def _score_tokens(self) -> None:
        score = 0
        for token in range(self.tokens):
            score += (token * 31 + score) % 97
        self.score = score


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


class TokenIndex:
    """Keeps an index of linked entries and now and then throws it away and collects.

    Args:
        entries: Entries of the index; each is a small cycle.
        number: This worker's number.
        numbers: One number below this is drawn each time, the same everywhere; who has it, has its turn.
    """

    def __init__(self, entries: int, number: int, numbers: int) -> None:
        self.number = number
        self.numbers = numbers
        self.turns = 0
        self.entries = [self._entry(number) for number in range(entries)]

    def __call__(self, _module: Any, _inputs: Any) -> None:
        """Forward pre-hook of a module."""
        self.turns += 1
        if random.Random(self.turns).randrange(self.numbers) == self.number:
            self.refresh()

    def refresh(self) -> None:
        """Replace a tenth of the entries, then collect the old ones."""
        share = len(self.entries) // 10
        start = random.Random(self.turns).randrange(10) * share
        self.entries[start : start + share] = [self._entry(number) for number in range(share)]
        gc.collect()

    @staticmethod
    def _entry(number: int) -> dict[str, Any]:
        entry: dict[str, Any] = {"number": number}
        entry["near"] = [entry]
        return entry


PARTS: dict[str, Any] = {
    "dataset": TokenWindows,
    "text": TokenizedText,
    "forward": TokenScorer,
    "backward": GradientScale,
    "objects": TokenIndex,
    "storage": StoredTokens,
    "ahead": TokensAhead,
    "statistics": TokenStatistics,
    "native": TokenHasher,
    "agreement": ScaleAgreement,
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
