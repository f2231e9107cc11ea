"""Compares a log with a pool: which client's rate or lengths changed, by how much, and how surely.

Counts of a bursty client vary more than Poisson counts. The variance of a count is the expected count times the
client's own dispersion: the squared CV of its gaps, or what its days differ by, whichever is larger. All p-values of
one comparison pass Holm's correction together, and a change must also reach a least size.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy import special, stats

from servegen.arrivals import gap_cv
from servegen.errors import BadRequest
from servegen.logs import Log
from servegen.pool import REST, Floats, Histogram, Pool

#: Version of the JSON that `to_json` writes.
SCHEMA = "servegen.compare/1"
DAY_S = 86_400
#: Requests that a client needs before its lengths are compared.
LEAST_LENGTHS = 20
#: Expected requests, in units of the client's dispersion, below which its rate is not judged.
LEAST_EXPECTED = 4.0
#: Kolmogorov-Smirnov distance from which a change of a distribution's form counts, if its mean stays.
LEAST_KS = 0.1


@dataclass(frozen=True)
class CompareOptions:
    """How to compare.

    Attributes:
        align: "time-of-day" lays the log on the pool's same times of day; "start" lays both starts on each other;
            "auto" uses the time of day where both have one.
        start_hour: With "start", the pool's hour at which the log begins.
        relative: Compare rates after the total's change is taken out.
        alpha: Chance of naming anybody in unchanged traffic.
        least_rate: Smallest change of a rate that is named, as a factor.
        least_length: Smallest change of a length that is named, as a factor.
    """

    align: Literal["auto", "time-of-day", "start"] = "auto"
    start_hour: float = 0.0
    relative: bool = False
    alpha: float = 0.01
    least_rate: float = 1.2
    least_length: float = 1.1


@dataclass(frozen=True, slots=True)
class Finding:
    """One quantity of one client, in the log against the pool.

    Attributes:
        client: Its name.
        quantity: "rate", "input_tokens" or "output_tokens".
        changed: Whether it is named as changed.
        factor: Log over pool: of the counts, or of the geometric mean of the lengths. None for a client that is new.
        low: Lower end of the factor's 95 % interval.
        high: Upper end of the interval.
        p_value: After Holm's correction over all findings.
        requests: Requests of the client in the log.
        expected: Requests that the pool expects, None for lengths.
        ks: Kolmogorov-Smirnov distance of the lengths, None for rates.
        extra_tokens_per_s: How much the change adds to the tokens per second of this client.
    """

    client: str
    quantity: str
    changed: bool
    factor: float | None
    low: float
    high: float
    p_value: float
    requests: int
    expected: float | None
    ks: float | None
    extra_tokens_per_s: float


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison.

    Attributes:
        verdict: "demand as usual" or "demand changed".
        changes: Changed findings, the largest effect on tokens per second first.
        findings: All findings.
        requests: Requests in the log.
        expected: Requests that the pool expects.
        hours: Length of the log.
        aligned: How the log was laid on the pool.
        notes: What was decided.
    """

    verdict: str
    changes: tuple[Finding, ...]
    findings: tuple[Finding, ...]
    requests: int
    expected: float
    hours: float
    aligned: str
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON values; docs/files.md describes them."""
        values = asdict(self)
        del values["findings"], values["changes"]
        return {
            "schema": SCHEMA,
            **values,
            "changes": [asdict(f) for f in self.changes],
            "findings": [asdict(f) for f in self.findings],
        }

    def write(self, path: Path) -> None:
        """Write the comparison as JSON."""
        path.write_text(json.dumps(self.to_json(), indent=1) + "\n")


@dataclass(frozen=True, slots=True)
class _Expected:
    """What the pool expects of one client in the log's time.

    Attributes:
        count: Requests.
        dispersion: Variance of the count over its mean.
        windows: Pool windows and their weights, for the histograms.
    """

    count: float
    dispersion: float
    windows: list[tuple[int, float]]


def compare_log(log: Log, pool: Pool, options: CompareOptions | None = None) -> Comparison:
    """Compare a log with a pool.

    Raises:
        BadRequest: The log reaches beyond the pool, or the times of day are not known.
    """
    options = options or CompareOptions()
    if len(log.time_ns) < 2 or log.time_ns[-1] == 0:
        raise BadRequest("the log has fewer than two requests at different times; nothing can be compared")
    notes = list(log.notes)
    covered, aligned = _lay(log, pool, options)
    names = _match(log, pool, notes)
    expected = [_expect(pool, c, covered) for c in range(len(pool.clients))]
    seconds = float(log.time_ns[-1]) / 1e9
    counts = np.array([float((names == name).sum()) for name in pool.clients])
    scale, doubt = 1.0, 0.0
    if options.relative:
        scale, doubt = _common_factor(counts, expected)
        notes.append(f"rates are relative to a common change by a factor of {scale:.3g}")
    findings: list[Finding] = []
    lacking = ~pool.complete()
    for c, name in enumerate(pool.clients):
        rows = np.flatnonzero(names == name)
        per_request = (
            float(np.mean(log.input_tokens[rows] + log.output_tokens[rows])) if len(rows) else _mean_tokens(pool, c)
        )
        finding = _rate_finding(name, len(rows), expected[c], (scale, doubt), per_request / seconds)
        if finding is not None:
            findings.append(finding)
        if len(rows) >= LEAST_LENGTHS and not lacking[c]:
            for field, values in (("input_tokens", log.input_tokens), ("output_tokens", log.output_tokens)):
                if field in pool.lengths:
                    findings.append(
                        _length_finding(name, field, values[rows], _mixture(pool, field, c, expected[c]), seconds, pool)
                    )
    known = set(pool.clients)
    for name in sorted(set(names.tolist()) - known):
        rows = np.flatnonzero(names == name)
        extra = float((log.input_tokens[rows] + log.output_tokens[rows]).sum() / seconds)
        new = len(rows) >= max(0.005 * len(names), LEAST_LENGTHS)
        findings.append(
            Finding(name, "rate", new, None, np.nan, np.nan, 0.0 if new else 1.0, len(rows), 0.0, None, extra)
        )
    findings = _judged(findings, options)
    changes = sorted((f for f in findings if f.changed), key=lambda f: -abs(f.extra_tokens_per_s))
    return Comparison(
        "demand changed" if changes else "demand as usual",
        tuple(changes),
        tuple(findings),
        len(log.time_ns),
        float(sum(e.count for e in expected)),
        seconds / 3600,
        aligned,
        tuple(notes),
    )


def _lay(log: Log, pool: Pool, options: CompareOptions) -> tuple[Floats, str]:
    """Return the seconds of each pool window that the log covers [W], and how it was laid on the pool."""
    seconds = float(log.time_ns[-1]) / 1e9
    both = bool(pool.origin and log.origin)
    if options.align == "time-of-day" and not both:
        raise BadRequest("the log or the pool has no time of day; use --align start")
    covered = np.zeros(pool.windows)
    if options.align == "start" or not both:
        start = options.start_hour * 3600
        if start + seconds > pool.span_s + pool.window_s:
            raise BadRequest(
                f"the log's {seconds / 3600:.2f} hours reach beyond the pool's {pool.span_s / 3600:g}; cut it with --to"
            )
        _cover(covered, start, min(start + seconds, float(pool.span_s)), pool.window_s, 1.0)
        return covered, f"start of the log on hour {options.start_hour:g} of the pool"
    origin = dt.datetime.fromisoformat(pool.origin)
    offset = (dt.datetime.fromisoformat(log.origin) - origin).total_seconds() % DAY_S
    # Each piece of the log lies on the same time of day of every day that the pool has.
    for piece in np.arange(offset, offset + seconds, pool.window_s / 2):
        end = min(piece + pool.window_s / 2, offset + seconds)
        starts = np.arange(piece % DAY_S, pool.span_s, DAY_S)
        for start in starts:
            _cover(covered, start, min(start + end - piece, float(pool.span_s)), pool.window_s, 1 / len(starts))
    if covered.sum() < 0.9 * seconds:
        raise BadRequest("the pool has no windows at some of the log's times of day; use --align start, or cut the log")
    return covered, "same time of day"


def _cover(covered: Floats, start: float, end: float, window_s: int, weight: float) -> None:
    while start < end:
        w = int(start // window_s)
        upto = min((w + 1) * window_s, end)
        covered[w] += (upto - start) * weight
        start = upto


def _match(log: Log, pool: Pool, notes: list[str]) -> np.ndarray:
    """Return each request's client name; unknown ones count as the pool's rest, if it has one."""
    names = np.array(
        [name if name in pool.clients or REST not in pool.clients else REST for name in log.clients], dtype=object
    )
    merged = sum(a != b for a, b in zip(log.clients, names, strict=True))
    if merged:
        notes.append(f'{merged} clients that the pool does not name are compared with its "{REST}"')
    return np.asarray(names[log.client])


def _expect(pool: Pool, c: int, covered: Floats) -> _Expected:
    active = np.flatnonzero((covered > 0) & (pool.rate[c] > 0))
    counts = pool.rate[c, active] * covered[active]
    total = float(counts.sum())
    if not total:
        return _Expected(0.0, 1.0, [])
    squared = np.array([gap_cv(int(pool.process[c, w]), float(pool.shape[c, w])) ** 2 for w in active])
    dispersion = max(float(counts @ squared / total), 1.0, _between_days(pool, c, covered))
    if (pool.notes or {}).get("source") == "fit":
        dispersion *= 2  # The pool's own rate is an estimate from a log of about this size.
    return _Expected(total, dispersion, list(zip(active.tolist(), counts.tolist(), strict=True)))


def _between_days(pool: Pool, c: int, covered: Floats) -> float:
    """Return the variance over the mean of the client's counts at the log's times of day, day by day."""
    per_day = DAY_S // pool.window_s
    days = pool.windows // per_day
    if days < 3:
        return 1.0
    share = covered[: days * per_day].reshape(days, per_day).max(axis=0)
    daily = pool.rate[c, : days * per_day].reshape(days, per_day) @ share
    return float(daily.var(ddof=1) / daily.mean()) if daily.mean() > 0 else 1.0


def _common_factor(counts: Floats, expected: Sequence[_Expected]) -> tuple[float, float]:
    """Return the median factor of the clients, each weighted by its precision, and its relative variance."""
    known = [
        (count / e.count, e.count / e.dispersion) for count, e in zip(counts, expected, strict=True) if e.count > 0
    ]
    if not known:
        return 1.0, 0.0
    factors, weights = np.array(sorted(known)).T
    middle = int(np.searchsorted(np.cumsum(weights), weights.sum() / 2))
    # A median has pi/2 times the variance of a mean.
    return max(float(factors[middle]), 1e-9), float(np.pi / 2 / weights.sum())


def _rate_finding(
    name: str, count: int, expected: _Expected, common: tuple[float, float], tokens: float
) -> Finding | None:
    """Return the finding on a client's rate, None if too few requests are expected to judge it.

    `common` is the factor that all clients share and its relative variance; `tokens` are those of one request per
    second of the log.
    """
    mean = expected.count * common[0]
    spread = expected.dispersion + mean * common[1]
    if mean < LEAST_EXPECTED * spread and count < LEAST_EXPECTED * spread * 3:
        return None
    mean = max(mean, 0.5)
    # A Gamma distribution with the count's mean and variance has about the skewness of a bursty client's counts.
    below = stats.gamma.cdf(count + spread / 2, mean / spread, scale=spread)
    above = stats.gamma.sf(max(count - spread / 2, 0), mean / spread, scale=spread)
    width = float(np.exp(1.96 * np.sqrt(spread / mean)))
    factor = count / mean
    low, high = (factor / width, factor * width) if count else (0.0, float(3 * spread / mean))
    p = float(min(1, 2 * min(below, above)))
    return Finding(name, "rate", False, factor, low, high, p, count, mean, None, float((count - mean) * tokens))


def _mixture(pool: Pool, field: str, c: int, expected: _Expected) -> Histogram:
    entry = pool.lengths[field][c]
    assert entry is not None
    parts = [(entry.at(w * pool.window_s), weight) for w, weight in expected.windows]
    return Histogram.mixed(parts or [(h, 1.0) for h in entry.histograms])


def _length_finding(
    name: str, field: str, values: np.ndarray, pool_has: Histogram, seconds: float, pool: Pool
) -> Finding:
    size = len(values)
    logs, weights = np.log(pool_has.values + 1), pool_has.probabilities
    center = float(logs @ weights)
    variance = max(float((logs - center) ** 2 @ weights), 1e-4)
    if (pool.notes or {}).get("source") == "fit":
        size = max(size // 2, 1)
    own = np.log(values + 1.0)
    shift = float(own.mean()) - center
    error = float(np.sqrt(max(variance, float(own.var())) / size))
    ks = _ks(values, pool_has)
    p = min(2 * min(special.ndtr(-abs(shift) / error), 0.5), float(stats.kstwobign.sf(ks * np.sqrt(size))))
    extra = (float(values.mean()) - pool_has.mean) * len(values) / seconds
    factor = float(np.exp(shift))
    return Finding(
        name,
        field,
        False,
        factor,
        factor * float(np.exp(-1.96 * error)),
        factor * float(np.exp(1.96 * error)),
        min(2 * float(p), 1.0),
        len(values),
        None,
        ks,
        extra,
    )


def _ks(values: np.ndarray, histogram: Histogram) -> float:
    """Return the distance of two distributions, both rounded to bins of 2 %, since histograms are binned."""
    bins = np.unique(np.rint(np.log(histogram.values + 1) / np.log(1.02)))
    own = np.sort(np.rint(np.log(values + 1) / np.log(1.02)))
    grid = np.union1d(bins, own)
    expected = np.rint(np.log(histogram.values + 1) / np.log(1.02))
    order = np.argsort(expected, kind="stable")
    cumulative = np.concatenate([[0.0], np.cumsum(histogram.probabilities[order])])
    theirs = cumulative[np.searchsorted(expected[order], grid, side="right")]
    ours = np.searchsorted(own, grid, side="right") / len(own)
    return float(np.abs(theirs - ours).max())


def _mean_tokens(pool: Pool, c: int) -> float:
    columns = [column[c] for field, column in pool.lengths.items() if field in ("input_tokens", "output_tokens")]
    return sum(float(np.mean([h.mean for h in entry.histograms])) for entry in columns if entry is not None)


def _judged(findings: Sequence[Finding], options: CompareOptions) -> list[Finding]:
    """Return the findings with Holm's correction, and those that are sure and large enough marked as changed."""
    order = np.argsort([f.p_value for f in findings], kind="stable")
    corrected = np.ones(len(findings))
    running = 0.0
    for rank, i in enumerate(order):
        running = max(running, min(findings[i].p_value * (len(findings) - rank), 1.0))
        corrected[i] = running
    judged = []
    for finding, p in zip(findings, corrected, strict=True):
        least = options.least_rate if finding.quantity == "rate" else options.least_length
        large = finding.factor is None or not 1 / least < finding.factor < least or (finding.ks or 0.0) >= LEAST_KS
        changed = finding.changed if finding.factor is None else bool(p < options.alpha and large)
        judged.append(replace(finding, changed=changed, p_value=float(p)))
    return judged
