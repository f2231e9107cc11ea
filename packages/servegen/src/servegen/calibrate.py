"""Finds the engine parameters under which the simulation repeats the latencies of a replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from scipy import optimize

from servegen.engine import Engine, simulate
from servegen.errors import BadRequest
from servegen.pool import Floats
from servegen.replay import Record

#: Parameters that are fitted, in this order.
FITTED = ("fixed_s", "per_sequence_s", "per_prefill_token_s", "per_cached_token_s", "overhead_s")
#: Requests that a calibration needs.
LEAST_REQUESTS = 30


@dataclass(frozen=True)
class Agreement:
    """The simulation against the real engine on the same requests.

    Attributes:
        requests: Requests that succeeded.
        ttft_s: Median time to the first token: real, simulated.
        per_token_s: Median time per output token: real, simulated.
        ttft_p90_s: 90th percentile of the time to the first token: real, simulated.
    """

    requests: int
    ttft_s: tuple[float, float]
    per_token_s: tuple[float, float]
    ttft_p90_s: tuple[float, float]

    def errors(self) -> dict[str, float]:
        """Return the relative error of each quantity."""
        pairs = {"ttft": self.ttft_s, "per_token": self.per_token_s, "ttft_p90": self.ttft_p90_s}
        return {name: simulated / real - 1 for name, (real, simulated) in pairs.items()}


@dataclass(frozen=True)
class _Requests:
    times_s: Floats
    inputs: list[int]
    outputs: list[int]
    instances: int
    good: list[int]
    ttft_s: Floats
    per_token_s: Floats


def _requests(records: Sequence[Record]) -> _Requests:
    sent = sorted((r for r in records if r.error != "cancelled"), key=lambda r: r.sent_s)
    urls = list(dict.fromkeys(r.url for r in sent))
    good = [i for i, r in enumerate(sent) if not r.error and r.first_s is not None]
    if len(good) < LEAST_REQUESTS:
        raise BadRequest(f"the records hold {len(good)} successful requests; a calibration needs {LEAST_REQUESTS}")
    return _Requests(
        np.array([r.sent_s for r in sent]) - sent[0].sent_s,
        [r.input_counted or r.input_asked for r in sent],
        [max(r.output_counted if not r.error else r.output_asked, 1) for r in sent],
        len(urls),
        good,
        np.array([(sent[i].first_s or 0) - sent[i].sent_s for i in good]),
        np.array([sent[i].per_token_s or np.nan for i in good]),
    )


def calibrate(records: Sequence[Record], base: Engine) -> tuple[Engine, Agreement]:
    """Fit the times of an engine to the records of a replay.

    Args:
        records: Of a replay against instances that were used in turn; it should hold idle and busy moments.
        base: Sizes of the engine, which stay, and first guesses of its times.

    Raises:
        BadRequest: Too few requests succeeded.
    """
    real = _requests(records)
    alone = float(np.nanquantile(real.per_token_s, 0.1))
    start = base.__class__(**{**msgspec.structs.asdict(base), "fixed_s": 0.8 * alone, "per_sequence_s": 0.1 * alone})
    first = np.log([max(getattr(start, name), 1e-9) for name in FITTED])

    def engine(logs: Floats) -> Engine:
        return msgspec.structs.replace(base, **dict(zip(FITTED, np.exp(np.clip(logs, -25, 3)).tolist(), strict=True)))

    def loss(logs: Floats) -> float:
        served = simulate(engine(logs), real.instances, real.times_s, real.inputs, real.outputs)
        parts = [(served.ttft_s[real.good], real.ttft_s), (served.per_token_s[real.good], real.per_token_s)]
        total = 0.0
        for simulated, seen in parts:
            miss = np.log(np.maximum(simulated, 1e-6) / np.maximum(seen, 1e-6))
            miss = miss[np.isfinite(miss)]
            total += float(np.abs(miss).mean() + abs(np.median(miss)))
            total += abs(float(np.log(np.nanmedian(simulated) / np.nanmedian(seen))))
        return total

    simplex = np.vstack([first, *(first + 1.0 * np.eye(len(FITTED))[i] for i in range(len(FITTED)))])
    options: Any = {"maxiter": 400, "xatol": 0.01, "fatol": 1e-3, "initial_simplex": simplex}
    found: optimize.OptimizeResult = optimize.minimize(loss, first, method="Nelder-Mead", options=options)
    best = engine(np.asarray(found.x))
    return best, agreement(best, records)


def agreement(engine: Engine, records: Sequence[Record]) -> Agreement:
    """Return how well the simulation of an engine repeats the records of a replay."""
    real = _requests(records)
    served = simulate(engine, real.instances, real.times_s, real.inputs, real.outputs)
    simulated = served.ttft_s[real.good]
    return Agreement(
        len(real.good),
        (float(np.median(real.ttft_s)), float(np.median(simulated))),
        (float(np.nanmedian(real.per_token_s)), float(np.nanmedian(served.per_token_s[real.good]))),
        (float(np.quantile(real.ttft_s, 0.9)), float(np.quantile(simulated, 0.9))),
    )
