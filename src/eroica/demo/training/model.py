"""A small decoder-only transformer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class ModelSize:
    """How large the model is; `width` must be a multiple of `heads`."""

    vocabulary: int = 512
    width: int = 96
    heads: int = 4
    layers: int = 2
    length: int = 48


class Block(nn.Module):  # type: ignore[misc]  # torch is not typed here
    """Attention and feed-forward, each behind a layer norm and beside a residual path."""

    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.heads = size.heads
        self.attention_norm = nn.LayerNorm(size.width)
        self.queries_keys_values = nn.Linear(size.width, 3 * size.width)
        self.projection = nn.Linear(size.width, size.width)
        self.feed_norm = nn.LayerNorm(size.width)
        self.expand = nn.Linear(size.width, 4 * size.width)
        self.contract = nn.Linear(4 * size.width, size.width)

    def forward(self, states: Tensor) -> Tensor:
        """One layer. Args: states: float32 [batch, length, width]. Returns: the same shape."""
        states = states + self._attend(self.attention_norm(states))
        hidden = functional.gelu(self.expand(self.feed_norm(states)))
        return states + self.contract(hidden)

    def _attend(self, states: Tensor) -> Tensor:
        batch, length, width = states.shape
        parts = self.queries_keys_values(states).view(batch, length, 3, self.heads, width // self.heads)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return cast(Tensor, self.projection(mixed.transpose(1, 2).reshape(batch, length, width)))


class LanguageModel(nn.Module):  # type: ignore[misc]
    """Tokens in, logits of the next token out; `first` and `last` say which ends a pipeline stage has.

    Args:
        size: Size of the whole model.
        layers: Blocks in this part.
        first: It takes tokens (else states).
        last: It gives logits (else states).
    """

    def __init__(self, size: ModelSize, layers: int | None = None, first: bool = True, last: bool = True) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width) if first else None
        self.positions = nn.Embedding(size.length, size.width) if first else None
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers if layers is None else layers))
        self.norm = nn.LayerNorm(size.width) if last else None
        self.logits = nn.Linear(size.width, size.vocabulary) if last else None

    def forward(self, inputs: Tensor) -> Tensor:
        """Tokens int64 [batch, length] or states float32 [batch, length, width] in.

        Returns:
            States of the same shape, or logits float32 [batch * length, vocabulary].
        """
        states = inputs if self.tokens is None else self._embed(inputs)
        for block in self.blocks:
            states = block(states)
        if self.norm is None or self.logits is None:
            return states
        return cast(Tensor, self.logits(self.norm(states).flatten(0, 1)))

    def _embed(self, tokens: Tensor) -> Tensor:
        assert self.tokens is not None and self.positions is not None
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return cast(Tensor, self.tokens(tokens) + self.positions(places))


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Cross entropy of each next token.

    Args:
        logits: float32 [batch * length, vocabulary].
        tokens: int64 [batch, length + 1]; the first column is only input.
    """
    return functional.cross_entropy(logits, tokens[:, 1:].flatten())
