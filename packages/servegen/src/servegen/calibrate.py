"""Finds the engine parameters under which the simulation repeats the latencies of a replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from scipy import optimize

from servegen.engine import Engine, simulate
from servegen.errors import BadRequest
from servegen.pool import Floats
from servegen.replay import CANCELLED, Record

#: Parameters that are fitted, in this order.
FITTED = ("fixed_s", "per_sequence_s", "per_prefill_token_s", "per_cached_token_s", "overhead_s")
#: Requests that a calibration needs.
LEAST_REQUESTS = 30


class Agreement(msgspec.Struct, frozen=True):
    """The simulation against the real engine on the same requests: pairs of real and simulated times in seconds.

    `ttft_s` and `per_token_s` are medians, `ttft_p90_s` is the 90th percentile.
    """

    requests: int
    ttft_s: tuple[float, float]
    per_token_s: tuple[float, float]
    ttft_p90_s: tuple[float, float]

    def errors(self) -> dict[str, float]:
        """Return the relative error of each quantity."""
        pairs = {"ttft": self.ttft_s, "per_token": self.per_token_s, "ttft_p90": self.ttft_p90_s}
        return {name: simulated / real - 1 for name, (real, simulated) in pairs.items()}


class _Real:
    """What a replay's records say of the real engine: its load, and the times of requests that succeeded."""

    def __init__(self, records: Sequence[Record]) -> None:
        sent = sorted((r for r in records if r.error != CANCELLED), key=lambda r: r.sent_s)
        self.good = [i for i, r in enumerate(sent) if not r.error]
        if len(self.good) < LEAST_REQUESTS:
            raise BadRequest(f"the records hold {len(self.good)} successful requests; it needs {LEAST_REQUESTS}")
        self.instances = len({r.url for r in sent})
        self.times_s = np.array([r.sent_s for r in sent]) - sent[0].sent_s
        self.inputs = [r.input_counted or r.input_asked for r in sent]
        self.outputs = [max(r.output_asked if r.error else r.output_counted, 1) for r in sent]
        self.ttft_s = np.array([(sent[i].first_s or 0) - sent[i].sent_s for i in self.good])
        self.per_token_s = np.array([sent[i].per_token_s or np.nan for i in self.good])

    def simulated(self, engine: Engine) -> tuple[Floats, Floats]:
        """Return time to the first token and per token of the successful requests, on a simulated engine."""
        served = simulate(engine, self.instances, self.times_s, self.inputs, self.outputs)
        return served.ttft_s[self.good], served.per_token_s[self.good]


def calibrate(records: Sequence[Record], base: Engine) -> Engine:
    """Fit the times of an engine to the records of a replay.

    Args:
        records: Of a replay against instances that were used in turn; it should hold idle and busy moments.
        base: Sizes of the engine, which stay, and first guesses of its times.

    Raises:
        BadRequest: Too few requests succeeded.
    """
    real = _Real(records)
    alone = float(np.nanquantile(real.per_token_s, 0.1))
    start = msgspec.structs.replace(base, fixed_s=0.8 * alone, per_sequence_s=0.1 * alone)
    first = np.log([max(getattr(start, name), 1e-9) for name in FITTED])

    def engine(logs: Floats) -> Engine:
        return msgspec.structs.replace(base, **dict(zip(FITTED, np.exp(np.clip(logs, -25, 3)).tolist(), strict=True)))

    def loss(logs: Floats) -> float:
        total = 0.0
        for simulated, seen in zip(real.simulated(engine(logs)), (real.ttft_s, real.per_token_s), strict=True):
            miss = np.log(np.maximum(simulated, 1e-6) / np.maximum(seen, 1e-6))
            total += float(np.nanmean(np.abs(miss)) + abs(np.nanmedian(miss)))
            total += abs(float(np.log(np.nanmedian(simulated) / np.nanmedian(seen))))
        return total

    simplex = np.vstack([first, first + np.eye(len(FITTED))])
    options: Any = {"maxiter": 400, "xatol": 0.01, "fatol": 1e-3, "initial_simplex": simplex}
    found: optimize.OptimizeResult = optimize.minimize(loss, first, method="Nelder-Mead", options=options)
    return engine(np.asarray(found.x))


def agreement(engine: Engine, records: Sequence[Record]) -> Agreement:
    """Return how well the simulation of an engine repeats the records of a replay."""
    real = _Real(records)
    ttft, per_token = real.simulated(engine)

    def pair(quantile: float, seen: Floats, simulated: Floats) -> tuple[float, float]:
        return float(np.nanquantile(seen, quantile)), float(np.nanquantile(simulated, quantile))

    times = pair(0.5, real.ttft_s, ttft), pair(0.5, real.per_token_s, per_token), pair(0.9, real.ttft_s, ttft)
    return Agreement(len(real.good), *times)
