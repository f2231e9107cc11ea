"""Arrivals of many clients, block by block.

A block is a part of a window in which all rates are constant. In operational time, which runs at a client's rate, gaps
have mean 1. Each client carries the rest of its open gap from block to block. Where the next block has another
distribution, the rest moves to the same quantile of that distribution's residual time. So every block begins in its
own stationary state: the expected count is rate times length in each block, and a gap survives a window's border.

Array shapes use C for clients and N for arrivals.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from servegen.pool import GAMMA, POISSON, WEIBULL, Floats

Processes = NDArray[np.int8]

US = 1_000_000
#: What a random stream is for; a part of its seed.
STATE, GAPS, LENGTHS, SESSIONS = range(4)


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of time in which all clients' rates are constant."""

    start_us: int  #: Microseconds from the workload's start
    length_us: int  #: Its length
    pool_s: int  #: Seconds from the pool's start at which the block's window begins
    rate: Floats  #: Requests per second. [C]
    process: Processes  #: POISSON, GAMMA or WEIBULL. [C]
    shape: Floats  #: Shape parameters. [C]


#: What clients carry from one block to the next, a row each: the rest of the open gap in operational time, and the
#: process and shape that it belongs to.
STATE_TYPE = np.dtype([("residual", np.float64), ("process", np.int8), ("shape", np.float64)])
State = NDArray[np.void]


def client_key(name: str) -> int:
    """Return a client's number for seeding, which depends on its name only."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def generator(seed: int, purpose: int, client: int, start_us: int) -> np.random.Generator:
    """Return the random stream of one client, block and purpose."""
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence([seed, purpose, client, start_us])))


def draw_gaps(rng: np.random.Generator, process: int, shape: float, size: int) -> Floats:
    """Draw gaps of mean 1. float64 [size]."""
    if process == GAMMA:
        return rng.standard_gamma(shape, size) / shape
    if process == WEIBULL:
        return np.asarray(rng.weibull(shape, size) / special.gamma(1 + 1 / shape))
    return rng.standard_exponential(size)


def gap_cv(process: int, shape: float) -> float:
    """Return the CV of gaps that follows from a shape."""
    if process == GAMMA:
        return float(shape**-0.5)
    if process == WEIBULL:
        return float(np.sqrt(np.expm1(special.gammaln(1 + 2 / shape) - 2 * special.gammaln(1 + 1 / shape))))
    return 1.0


def residual_of(process: int, shape: Floats | float, x: Floats) -> Floats:
    """Return the distribution function of the residual time of a stationary renewal process with mean gap 1.

    It is the integral of the gaps' survival function from 0 to x. float64 [N]
    """
    if process == GAMMA:
        return np.asarray(x * special.gammaincc(shape, shape * x) + special.gammainc(shape + 1, shape * x))
    if process == WEIBULL:
        with np.errstate(over="ignore", under="ignore"):
            power = (x * special.gamma(1 + 1 / shape)) ** shape
        return np.asarray(x * np.exp(-power) + special.gammainc(1 + 1 / shape, power))
    return np.asarray(-np.expm1(-x))


def residual_cdf(process: Processes, shape: Floats, x: Floats) -> Floats:
    """Return `residual_of` for each client's own process and shape. All arrays [C]."""
    result = np.empty(len(x))
    for kind in (POISSON, GAMMA, WEIBULL):
        rows = process == kind
        result[rows] = np.clip(residual_of(kind, shape[rows], x[rows]), 0.0, 1.0)
    return result


def residual_quantile(process: Processes, shape: Floats, u: Floats) -> Floats:
    """Return the residual time at each probability, by bisection of its logarithm. All arrays [C]."""
    low, high = np.full(len(u), -50.0), np.full(len(u), 25.0)
    for _ in range(56):
        middle = 0.5 * (low + high)
        below = residual_cdf(process, shape, np.exp(middle)) < u
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray(np.exp(0.5 * (low + high)))


def first_state(seed: int, clients: Sequence[int]) -> State:
    """Return the stationary state at the workload's start; `clients` are keys."""
    state = np.zeros(len(clients), STATE_TYPE)
    level = np.array([generator(seed, STATE, key, 0).random() for key in clients])
    state["residual"], state["process"], state["shape"] = -np.log1p(-level), POISSON, 1.0
    return state


def enter(state: State, block: Block) -> State:
    """Return the state with each active client's residual moved to the block's own distribution."""
    other_shape = (state["shape"] != block.shape) & (block.process != POISSON)
    rows = np.flatnonzero((block.rate > 0) & ((state["process"] != block.process) | other_shape))
    old, moved = state[rows], state.copy()
    process, shape = block.process[rows], block.shape[rows]
    level = residual_cdf(old["process"], old["shape"], old["residual"])
    moved["process"][rows], moved["shape"][rows] = process, shape
    moved["residual"][rows] = residual_quantile(process, shape, level)
    return moved


def renewal(seed: int, clients: Sequence[int], state: State, block: Block) -> tuple[list[Floats], State]:
    """Draw each client's arrivals in a block, and the state after it.

    Args:
        seed: The workload's seed.
        clients: Keys of the clients. [C]
        state: The state at the block's start.
        block: The block.

    Returns:
        Per client the arrival times in seconds from the block's start, float64 [N], and the next state.
    """
    state = enter(state, block)
    span = block.rate * (block.length_us / US)
    residual = state["residual"]
    times: list[Floats] = []
    for c, key in enumerate(clients):
        if residual[c] >= span[c]:
            residual[c] -= span[c]
            times.append(np.empty(0))
            continue
        process, shape = int(block.process[c]), float(block.shape[c])
        rng = generator(seed, GAPS, key, block.start_us)
        ends = _until(rng, process, shape, float(residual[c]), float(span[c]))
        count = int(np.searchsorted(ends, span[c]))
        residual[c] = ends[count] - span[c]
        times.append(ends[:count] / block.rate[c])
    return times, state


def _until(rng: np.random.Generator, process: int, shape: float, first: float, span: float) -> Floats:
    """Return arrivals in operational time from the first one until one lies at or beyond the span."""
    parts, last = [np.array([first])], first
    while last < span:
        expected = span - last
        size = int(expected + 3 * min(gap_cv(process, shape), 30.0) * np.sqrt(expected)) + 8
        ends = draw_gaps(rng, process, shape, size)
        np.cumsum(ends, out=ends)
        ends += last
        parts.append(ends)
        last = float(ends[-1])
    return np.concatenate(parts)


def exact(seed: int, clients: Sequence[int], block: Block) -> list[Floats]:
    """Draw each client's arrivals with a fixed count per window, as the authors' code does.

    ceil(rate * T) gaps are stretched so that they sum to T. The last arrival would lie on the edge and is cut.
    """
    seconds = block.length_us / US
    times = []
    for c, key in enumerate(clients):
        count = int(np.ceil(block.rate[c] * seconds))
        if count <= 1:
            times.append(np.empty(0))
            continue
        rng = generator(seed, GAPS, key, block.start_us)
        ends = np.cumsum(draw_gaps(rng, int(block.process[c]), float(block.shape[c]), count))
        ends *= seconds / max(ends[-1], 1e-300)
        times.append(np.minimum(ends[:-1], np.nextafter(seconds, 0)))
    return times
