"""How items become a batch: padded with statistics, repeated, or cut to a common length.

Nothing here runs unless somebody builds it in; see `PARTS` of `parts`. What steers them is a shared number, which
loader processes see change.
"""

from __future__ import annotations

import random
from typing import Any


class CountedBatches:
    """Counts pairs of neighboring tokens in Python while it puts a batch together.

    Args:
        collate: What makes a batch of items.
        pairs: Shared number: pairs that are counted in each item; 0 = none.
    """

    def __init__(self, collate: Any, pairs: Any) -> None:
        self.collate = collate
        self.pairs = pairs

    def __call__(self, items: list[Any]) -> Any:
        """A batch."""
        wanted = int(self.pairs.value)
        if wanted:
            for item in items:
                self._count_pairs(item, wanted)
        return self.collate(items)

    @staticmethod
    def _count_pairs(item: Any, wanted: int) -> dict[tuple[int, int], int]:
        tokens = item.tolist()
        counts: dict[tuple[int, int], int] = {}
        for position in range(wanted):
            pair = (tokens[position % len(tokens) - 1], tokens[position % len(tokens)])
            counts[pair] = counts.get(pair, 0) + 1
        return counts


class GrownBatches:
    """Batches whose items come several times.

    Args:
        collate: What makes a batch of items.
        times: Shared number: how often; 0 = once.
        number: This worker's number.
        numbers: Only one worker of so many repeats, drawn anew for each batch, the same draw everywhere; 1 = all do.
        every: Batches after which they are repeated once more, up to `times`; 0 = at once.
    """

    def __init__(self, collate: Any, times: Any, number: int = 0, numbers: int = 1, every: int = 0) -> None:
        self.collate = collate
        self.times = times
        self.number = number
        self.numbers = numbers
        self.every = every
        self.batches = 0
        self.grown = 0

    def __call__(self, items: list[Any]) -> Any:
        """A batch."""
        self.batches += 1
        batch, times = self.collate(items), int(self.times.value)
        if times and self.every:
            self.grown += 1
            times = min(times, 1 + self.grown // self.every)
        mine = random.Random(self.batches).randrange(self.numbers) == self.number % self.numbers
        return batch.repeat(times, 1) if times > 1 and mine else batch


class CutBatches:
    """Batches cut to a length that changes, the same on all workers.

    Args:
        collate: What makes a batch of items.
        shortest: Shared number: the shortest length as a share of the whole; 0 = nothing is cut.
    """

    def __init__(self, collate: Any, shortest: Any) -> None:
        self.collate = collate
        self.shortest = shortest
        self.batches = 0

    def __call__(self, items: list[Any]) -> Any:
        """A batch."""
        self.batches += 1
        batch, shortest = self.collate(items), float(self.shortest.value)
        if not shortest:
            return batch
        share = shortest + (1 - shortest) * random.Random(self.batches).random()
        return batch[:, : max(2, round(share * batch.shape[1]))]
