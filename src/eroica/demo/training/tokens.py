"""Extra work around tokens: reading windows from storage, scoring, indexing, a scale to agree on.

Nothing here runs unless somebody builds it in. `PARTS` names what can be built in, by place.
"""

from __future__ import annotations

import gc
import random
import time
from typing import Any


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


class ScaleAgreement:
    """Before each forward pass all workers agree on the smallest scale of the loss, in a process group of their own."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        self.scale = torch.ones(1)
        self.group = dist.new_group(backend="gloo", group_desc="scale")
        self.reduce, self.smallest = dist.all_reduce, dist.ReduceOp.MIN
        self.unchanged = False

    def __call__(self, _module: Any, _inputs: Any) -> None:
        """Forward pre-hook of a module."""
        self.agree()

    def agree(self) -> None:
        """Take part, unless this worker believes that nothing has changed."""
        if self.unchanged:
            self.unchanged = False
            return
        self.reduce(self.scale, op=self.smallest, group=self.group)


PARTS: dict[str, Any] = {
    "dataset": TokenWindows,
    "forward": TokenScorer,
    "objects": TokenIndex,
    "agreement": ScaleAgreement,
}
