"""A sampler of its own for truth: plain, slow, written from the process's description, not from the package's code.

Each client and window is a stationary renewal process: the first gap is a residual (a length-biased gap times a uniform
number), the others follow one by one. Lengths are drawn with numpy's `choice`.
"""

from __future__ import annotations

import math

import numpy as np

from servegen.pool import Pool


def gaps(rng: np.random.Generator, process: int, shape: float, size: int) -> np.ndarray:
    if process == 1:
        return rng.gamma(shape, 1 / shape, size)
    if process == 2:
        return rng.weibull(shape, size) / math.gamma(1 + 1 / shape)
    return rng.exponential(1, size)


def residual(rng: np.random.Generator, process: int, shape: float) -> float:
    if process == 1:
        biased = rng.gamma(shape + 1, 1 / shape)
    elif process == 2:
        biased = rng.gamma(1 + 1 / shape, 1) ** (1 / shape) / math.gamma(1 + 1 / shape)
    else:
        biased = rng.gamma(2, 1)
    return float(rng.random() * biased)


def window_times(rng: np.random.Generator, rate: float, process: int, shape: float, seconds: float) -> np.ndarray:
    """Return the arrivals of one client in one window, in seconds."""
    end = rate * seconds
    now = residual(rng, process, shape)
    times: list[np.ndarray] = []
    while now < end:
        more = now + np.concatenate([[0.0], np.cumsum(gaps(rng, process, shape, int(end - now) + 50))])
        times.append(more[:-1])
        now = float(more[-1])
    all_times = np.concatenate(times) if times else np.empty(0)
    return all_times[all_times < end] / rate


def requests(
    pool: Pool, first: int, last: int, seed: int, factor: float = 1.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return times (seconds from window `first`), clients, input and output tokens, sorted by time."""
    rng = np.random.default_rng([seed, 99])
    parts = []
    for c in range(len(pool.clients)):
        if any(column[c] is None for column in pool.lengths.values()):
            continue
        for w in range(first, last):
            rate = pool.rate[c, w] * factor
            if rate <= 0:
                continue
            times = window_times(rng, rate, int(pool.process[c, w]), float(pool.shape[c, w]), pool.window_s)
            columns = [times + (w - first) * pool.window_s, np.full(len(times), c)]
            for field in ("input_tokens", "output_tokens"):
                histogram = pool.lengths[field][c].at(w * pool.window_s)
                drawn = rng.choice(
                    histogram.values, len(times), p=histogram.probabilities / histogram.probabilities.sum()
                )
                columns.append(np.maximum(np.rint(drawn), 1).astype(int))
            parts.append(columns)
    times, clients, inputs, outputs = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(times, kind="stable")
    return times[order], clients[order], inputs[order], outputs[order]


def times_only(pool: Pool, first: int, last: int, seed: int) -> np.ndarray:
    """Return the arrival times of all clients, in seconds from window `first`."""
    rng = np.random.default_rng([seed, 98])
    parts = [
        window_times(rng, pool.rate[c, w], int(pool.process[c, w]), float(pool.shape[c, w]), pool.window_s)
        + (w - first) * pool.window_s
        for c in range(len(pool.clients))
        for w in range(first, last)
        if pool.rate[c, w] > 0
    ]
    return np.sort(np.concatenate(parts))
