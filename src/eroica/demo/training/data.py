"""Random token sequences, the same for the same seed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate


class RandomTokens(Dataset):  # type: ignore[misc]  # torch is not typed here
    """`items` sequences of `length + 1` tokens, each made from its own number.

    Args:
        items: How many there are.
        length: Tokens the model sees; one more is the last target.
        vocabulary: Number of different tokens.
        seed: Same seed, same tokens.
    """

    def __init__(self, items: int, length: int, vocabulary: int, seed: int) -> None:
        self.items = items
        self.length = length
        self.vocabulary = vocabulary
        self.seed = seed

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, index: int) -> Tensor:
        """Sequence `index`, int64 [length + 1]; a noisy walk, so that there is something to learn."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        steps = torch.randint(0, 4, (self.length + 1,), generator=generator)
        return steps.cumsum(0) % self.vocabulary


def make_loader(dataset: Any, batch: int, loader_workers: int = 0, collate: Any = default_collate) -> Any:
    """An ordinary loader over `dataset`, in order; its workers stay alive between epochs."""
    return DataLoader(
        dataset,
        batch_size=batch,
        num_workers=loader_workers,
        collate_fn=collate,
        drop_last=True,
        persistent_workers=loader_workers > 0,
    )
