"""What requests hold: lengths from a client's histograms, with a coupling of fields, and turns of conversations.

Columns have one entry per request. Lists of item sizes are Arrow arrays, all other columns numpy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import ndtr

from servegen.arrivals import US
from servegen.errors import BadRequest
from servegen.pool import MODALITIES, MOST_VALUE, Floats, Histogram
from servegen.workload import Sessions

Column = Any


#: Kind and rank correlation: see `parse_coupling`.
Coupling = tuple[str, float]


def parse_coupling(text: str) -> Coupling:
    """Return how the fields of one request depend on each other, given client and window.

    "independent"; "comonotone", one random number for all fields, as the authors' code does; or "rank:RHO", where RHO
    is the rank correlation of input (or text) and output tokens.
    """
    kind, _, number = text.partition(":")
    try:
        rho = float(number) if kind == "rank" else 0.0
    except ValueError:
        rho = np.nan
    if kind not in ("independent", "comonotone", "rank") or (number and kind != "rank") or not -1 <= rho <= 1:
        known = "use independent, comonotone or rank:RHO with RHO from -1 to 1"
        raise BadRequest(f"coupling {text!r} is not known; {known}")
    return kind, rho


def inverse(histogram: Histogram, u: Floats) -> Floats:
    """Return the value at each probability. float64 [N]."""
    place = np.searchsorted(histogram.cumulative, u, side="right")
    return np.asarray(histogram.values[np.minimum(place, len(histogram.values) - 1)])


def pick(column: Column, rows: NDArray[np.int64]) -> Column:
    """Return some rows of a column."""
    return column.take(pa.array(rows)) if isinstance(column, pa.Array) else column[rows]


def joined(columns: Sequence[Column]) -> Column:
    """Return columns one after the other."""
    return pa.concat_arrays(columns) if isinstance(columns[0], pa.Array) else np.concatenate(columns)


def draw_lengths(
    histograms: Mapping[str, Histogram], size: int, rng: np.random.Generator, coupling: Coupling
) -> dict[str, Column]:
    """Draw the lengths of requests of one client.

    Args:
        histograms: The client's histogram of each field of the pool.
        size: Number of requests, N.
        rng: Random stream.
        coupling: How the fields depend on each other.

    Returns:
        Columns of tokens as docs/files.md names them: int32 [N], and per modality a list of the sizes of N requests.
    """
    uniforms = _uniforms(rng, size, coupling)

    def draw(field: str) -> NDArray[np.int32]:
        return np.rint(inverse(histograms[field], uniforms(field))).astype(np.int32)

    columns: dict[str, Column] = {}
    total = draw("text_tokens" if "text_tokens" in histograms else "input_tokens").astype(np.int64)
    output = np.maximum(draw("output_tokens"), 1)
    if "reason_ratio" in histograms:
        ratio = inverse(histograms["reason_ratio"], uniforms("reason_ratio"))
        columns["reasoning_tokens"] = np.rint(output * ratio).astype(np.int32)
    if "text_tokens" in histograms:
        columns["text_tokens"] = total.astype(np.int32)
    for modality in MODALITIES:
        count, tokens = f"{modality}_count", f"{modality}_tokens"
        if count in histograms and tokens in histograms:
            ends = np.concatenate([[0], np.cumsum(draw(count))])
            sizes = np.rint(inverse(histograms[tokens], rng.random(int(ends[-1])))).astype(np.int32)
            columns[tokens] = pa.ListArray.from_arrays(ends.astype(np.int32), sizes)
            total += np.diff(np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])[ends])
    return {"input_tokens": np.clip(total, 1, MOST_VALUE).astype(np.int32), "output_tokens": output, **columns}


def _uniforms(rng: np.random.Generator, size: int, coupling: Coupling) -> Callable[[str], Floats]:
    """Return the function from a field to its random number in each request."""
    kind, rho = coupling
    if kind == "comonotone":
        one = rng.random(size)
        return lambda _: one
    if kind == "independent":
        return lambda _: rng.random(size)
    # A Gaussian copula with this correlation has the rank correlation rho.
    r = 2 * np.sin(np.pi * rho / 6)
    x = rng.standard_normal(size)
    y = r * x + np.sqrt(max(1 - r * r, 0.0)) * rng.standard_normal(size)
    coupled = {"input_tokens": ndtr(x), "text_tokens": ndtr(x), "output_tokens": ndtr(y)}
    return lambda field: coupled[field] if field in coupled else rng.random(size)


def draw_turns(settings: Sessions, starts_us: NDArray[np.int64], rng: np.random.Generator) -> dict[str, Column]:
    """Draw the turns of one client's conversations, conversation after conversation.

    Args:
        settings: Share, number and distance of turns.
        starts_us: Sorted times of the first turns. int64 [S]
        rng: Random stream.

    Returns:
        time_us, when each of N turns is sent; session, a number of 63 bits; turn, from 0. Each [N]
    """
    size = len(starts_us)
    turns = np.ones(size, np.int64)
    several = rng.random(size) < settings.multi_turn
    # Turns beyond the second are geometric with the mean that is left.
    turns[several] = 1 + rng.geometric(1 / (settings.turns - 1), int(several.sum()))
    first = np.cumsum(turns) - turns
    turn = np.arange(int(turns.sum())) - np.repeat(first, turns)
    gaps = np.exp(rng.normal(np.log(settings.gap_s), settings.gap_sigma, len(turn))) * US
    gaps[turn == 0] = 0
    time_us = np.repeat(starts_us, turns) + _since_first(gaps, turn).astype(np.int64)
    session = rng.integers(0, 2**63 - 1, size)
    return {"time_us": time_us, "session": np.repeat(session, turns), "turn": turn.astype(np.int32)}


def _since_first(values: NDArray[Any], turn: NDArray[Any]) -> NDArray[Any]:
    """Return the sums of values since each conversation's first turn, without the first turn's own value."""
    sums, first = np.cumsum(values), np.flatnonzero(turn == 0)
    return np.asarray(sums - np.repeat(sums[first], np.diff([*first, len(turn)])))


def grow(settings: Sessions, columns: Mapping[str, Column]) -> dict[str, Column]:
    """Return turns with the context of earlier turns and the system prompt added to their input.

    Conversations are cut before the first turn whose input exceeds the longest context. A first turn stays.
    """
    turn, own, output = (columns[name] for name in ("turn", "input_tokens", "output_tokens"))
    answer = output - columns.get("reasoning_tokens", 0)
    total = own.astype(np.int64) + settings.system_tokens
    if settings.growth:
        # The first turn has none before it, and the second one all of the first.
        before = np.concatenate([[0], (own.astype(np.int64) + answer)[:-1]])[: len(turn)]
        total += _since_first(before, turn)
    broken = (total > settings.max_context) & (turn > 0)
    kept = np.flatnonzero(_since_first(broken.astype(np.int64), turn) == 0)
    grown = {**columns, "input_tokens": np.minimum(total, MOST_VALUE).astype(np.int32)}
    if settings.system_tokens:
        grown["shared_tokens"] = np.full(len(turn), settings.system_tokens, np.int32)
    return {name: pick(column, kept) for name, column in grown.items()}
