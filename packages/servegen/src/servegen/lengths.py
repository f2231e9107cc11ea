"""Lengths of requests: draws from a client's histograms, with the coupling of fields that a workload names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from servegen.errors import BadRequest
from servegen.pool import MODALITIES, Floats, Histogram

Counts = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Coupling:
    """How the fields of one request depend on each other, given client and window.

    Attributes:
        kind: "independent"; "comonotone" (one random number for all fields, as the authors' code does); or "rank".
        rho: With "rank", the rank correlation of input (or text) and output tokens, -1 to 1.
    """

    kind: Literal["independent", "comonotone", "rank"] = "independent"
    rho: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Coupling:
        """Return the coupling of "independent", "comonotone" or "rank:RHO"."""
        kind, _, number = text.partition(":")
        try:
            rho = float(number) if kind == "rank" else 0.0
        except ValueError:
            rho = np.nan
        if kind not in ("independent", "comonotone", "rank") or (number and kind != "rank") or not -1 <= rho <= 1:
            raise BadRequest(
                f"coupling {text!r} is not known; use independent, comonotone or rank:RHO with RHO from -1 to 1"
            )
        return cls(kind, rho)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"rank:{self.rho:g}" if self.kind == "rank" else self.kind


@dataclass(frozen=True, slots=True)
class Items:
    """Sizes of the items (images, audios or videos) of N requests.

    Attributes:
        counts: Items of each request. int32 [N]
        tokens: Tokens of each item, request after request. int32 [sum of counts]
    """

    counts: Counts
    tokens: Counts

    def totals(self) -> Counts:
        """Return the tokens of all items of each request. int32 [N]."""
        ends = np.cumsum(self.counts)
        sums = np.concatenate([[0], np.cumsum(self.tokens, dtype=np.int64)])
        return np.asarray(sums[ends] - sums[ends - self.counts], dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Drawn:
    """Lengths of N requests of one client; `items` has an entry per modality of a multimodal pool."""

    input_tokens: Counts
    output_tokens: Counts
    reasoning_tokens: Counts | None
    text_tokens: Counts | None
    items: Mapping[str, Items]


def inverse(histogram: Histogram, u: Floats) -> Floats:
    """Return the value at each probability. float64 [N]."""
    place = np.searchsorted(histogram.cumulative, u, side="right")
    return np.asarray(histogram.values[np.minimum(place, len(histogram.values) - 1)])


def _whole(values: Floats) -> Counts:
    return np.rint(values).astype(np.int32)


def draw_lengths(histograms: Mapping[str, Histogram], size: int, rng: np.random.Generator, coupling: Coupling) -> Drawn:
    """Draw the lengths of requests of one client.

    Args:
        histograms: The client's histogram of each field of the pool.
        size: Number of requests, N.
        rng: Random stream.
        coupling: How the fields depend on each other.
    """
    uniforms = _Uniforms(rng, size, coupling)
    head = "text_tokens" if "text_tokens" in histograms else "input_tokens"
    first = np.maximum(_whole(inverse(histograms[head], uniforms.of("input"))), 0 if head == "text_tokens" else 1)
    output = np.maximum(_whole(inverse(histograms["output_tokens"], uniforms.of("output"))), 1)
    reasoning = None
    if "reason_ratio" in histograms:
        reasoning = _whole(output * inverse(histograms["reason_ratio"], uniforms.of("ratio")))
    items: dict[str, Items] = {}
    total = first
    if head == "text_tokens":
        for modality in MODALITIES:
            if f"{modality}_count" in histograms and f"{modality}_tokens" in histograms:
                counts = _whole(inverse(histograms[f"{modality}_count"], uniforms.of(modality)))
                sizes = _whole(inverse(histograms[f"{modality}_tokens"], rng.random(int(counts.sum()))))
                items[modality] = Items(counts, sizes)
                total = total + items[modality].totals()
        total = np.maximum(total, 1)
    return Drawn(total, output, reasoning, first if head == "text_tokens" else None, items)


class _Uniforms:
    """The random number of each field and request."""

    def __init__(self, rng: np.random.Generator, size: int, coupling: Coupling) -> None:
        self._rng, self._size = rng, size
        self._shared: dict[str, Floats] = {}
        self._one = rng.random(size) if coupling.kind == "comonotone" else None
        if coupling.kind == "rank":
            # A Gaussian copula with this correlation has the rank correlation rho.
            r = 2 * np.sin(np.pi * coupling.rho / 6)
            x = rng.standard_normal(size)
            y = r * x + np.sqrt(max(1 - r * r, 0.0)) * rng.standard_normal(size)
            self._shared = {"input": ndtr(x), "output": ndtr(y)}

    def of(self, field: str) -> Floats:
        if self._one is not None:
            return self._one
        return self._shared[field] if field in self._shared else self._rng.random(self._size)
