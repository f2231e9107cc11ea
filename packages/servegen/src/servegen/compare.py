"""Compares a log with a pool: which client's rate or lengths changed, by how much, and how surely.

Counts of a bursty client vary more than Poisson counts. The variance of a count is the expected count times the
client's own dispersion: the squared CV of its gaps, or what its days differ by, whichever is larger. All p-values of
one comparison pass Bonferroni's correction together, and a change must also reach a least size.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
from scipy import special, stats

from servegen.arrivals import gap_cv
from servegen.errors import BadRequest
from servegen.logs import Log
from servegen.pool import REST, Floats, Histogram, Pool

#: Version of a comparison's JSON.
SCHEMA = "servegen.compare/1"
DAY_S = 86_400
#: Requests that a client needs before its lengths are compared, or before it is named as new.
LEAST_LENGTHS = 20
#: Share of all requests that a client needs before it is named as new.
LEAST_NEW = 0.005
#: Expected requests, in units of the client's dispersion, below which its rate is not judged.
LEAST_EXPECTED = 4.0
#: Kolmogorov-Smirnov distance from which a change of a distribution's form counts, if its mean stays.
LEAST_KS = 0.1
#: Chance of naming anybody in unchanged traffic.
ALPHA = 0.01
#: Smallest change that is named, as a factor of the rate, and of a length.
LEAST_RATE, LEAST_LENGTH = 1.2, 1.1
#: Lengths are compared in bins of this ratio, since the histograms of a pool are binned.
BIN_RATIO = 1.02


class Finding(msgspec.Struct, frozen=True):
    """One quantity of one client, in the log against the pool."""

    client: str  #: Its name
    quantity: str  #: "rate", "input_tokens" or "output_tokens"
    #: Log over pool: of the counts, or of the geometric mean of the lengths. None for a client that is new.
    factor: float | None
    low: float  #: Lower end of the factor's 95 % interval
    high: float  #: Upper end of the interval
    p_value: float  #: Corrected for the number of findings
    requests: int  #: Requests of the client in the log
    extra_tokens_per_s: float  #: How much the change adds to the tokens per second of this client
    expected: float | None = None  #: Requests that the pool expects, None for lengths
    ks: float | None = None  #: Kolmogorov-Smirnov distance of the lengths, None for rates
    changed: bool = False  #: Whether it is named as changed


class Comparison(msgspec.Struct, frozen=True):
    """The result of a comparison; docs/files.md describes its JSON."""

    verdict: str  #: "demand as usual" or "demand changed"
    requests: int  #: Requests in the log
    expected: float  #: Requests that the pool expects
    hours: float  #: Length of the log
    aligned: str  #: How the log was laid on the pool
    notes: tuple[str, ...]  #: What was decided
    changes: tuple[Finding, ...]  #: Changed findings, the largest effect on tokens per second first
    findings: tuple[Finding, ...]  #: All findings
    schema: str = SCHEMA  #: Version of the JSON


@dataclass(frozen=True, slots=True)
class _Expected:
    """What the pool expects of one client in the log's time."""

    count: float  #: Requests
    dispersion: float  #: Variance of the count over its mean
    windows: list[tuple[int, float]]  #: Pool windows and their weights, for the histograms


def compare_log(
    log: Log, pool: Pool, align: Literal["auto", "time-of-day", "start"] = "auto", start_hour: float = 0.0
) -> Comparison:
    """Compare a log with a pool.

    Args:
        log: The log.
        pool: The pool.
        align: "time-of-day" lays the log on the pool's same times of day; "start" lays both starts on each other;
            "auto" uses the time of day where both have one.
        start_hour: With "start", the pool's hour at which the log begins.

    Raises:
        BadRequest: The log reaches beyond the pool, or the times of day are not known.
    """
    if len(log.time_ns) < 2 or log.time_ns[-1] == 0:
        raise BadRequest("the log has fewer than two requests at different times; nothing can be compared")
    notes = list(log.notes)
    covered, aligned = _lay(log, pool, align, start_hour)
    names = _match(log, pool, notes)
    seconds = float(log.time_ns[-1]) / 1e9
    complete = pool.complete()
    findings: list[Finding] = []
    total = 0.0
    for c, name in enumerate(pool.clients):
        rows = np.flatnonzero(names == name)
        expected = _expect(pool, c, covered)
        total += expected.count
        tokens = _mean_tokens(pool, c) if not len(rows) else (log.input_tokens + log.output_tokens)[rows].mean()
        findings += _rate_finding(name, len(rows), expected, float(tokens) / seconds)
        for field, values in (("input_tokens", log.input_tokens), ("output_tokens", log.output_tokens)):
            if len(rows) >= LEAST_LENGTHS and complete[c] and field in pool.lengths:
                mixture = _mixture(pool, field, c, expected)
                findings.append(_length_finding(name, field, values[rows], mixture, seconds, _is_estimate(pool)))
    for name in sorted(set(names.tolist()) - set(pool.clients)):
        rows = np.flatnonzero(names == name)
        new = len(rows) >= max(LEAST_NEW * len(names), LEAST_LENGTHS)
        extra = float((log.input_tokens + log.output_tokens)[rows].sum() / seconds)
        findings.append(Finding(name, "rate", None, np.nan, np.nan, 0.0 if new else 1.0, len(rows), extra, 0.0))
    judged = tuple(_judged(finding, len(findings)) for finding in findings)
    changes = tuple(sorted((f for f in judged if f.changed), key=lambda f: -abs(f.extra_tokens_per_s)))
    verdict = "demand changed" if changes else "demand as usual"
    return Comparison(verdict, len(names), total, seconds / 3600, aligned, tuple(notes), changes, judged)


def _lay(log: Log, pool: Pool, align: str, start_hour: float) -> tuple[Floats, str]:
    """Return the seconds of each pool window that the log covers [W], and how it was laid on the pool."""
    seconds = float(log.time_ns[-1]) / 1e9
    both = bool(pool.origin and log.origin)
    if align == "time-of-day" and not both:
        raise BadRequest("the log or the pool has no time of day; use --align start")
    # The log is cut into pieces of about a second. Each lies on one moment, or on the same time of every day.
    pieces = (np.arange(int(seconds) + 100) + 0.5) * seconds / (int(seconds) + 100)
    if align == "start" or not both:
        start = start_hour * 3600
        if start + seconds > pool.span_s + pool.window_s:
            span = f"{seconds / 3600:.2f} hours reach beyond the pool's {pool.span_s / 3600:g}"
            raise BadRequest(f"the log's {span}; cut it with --to")
        moments = (start + pieces)[:, None]
        aligned = f"start of the log on hour {start_hour:g} of the pool"
    else:
        offset = dt.datetime.fromisoformat(log.origin) - dt.datetime.fromisoformat(pool.origin)
        moments = (offset.total_seconds() + pieces)[:, None] % DAY_S + np.arange(0, pool.span_s, DAY_S)
        aligned = "same time of day"
        if (moments.min(axis=1) >= pool.span_s).mean() > 0.1:
            raise BadRequest("the pool lacks some of the log's times of day; use --align start, or cut the log")
    inside = moments < pool.span_s
    weights = np.broadcast_to(seconds / len(pieces) / np.maximum(inside.sum(axis=1, keepdims=True), 1), moments.shape)
    windows = (moments[inside] // pool.window_s).astype(int)
    return np.bincount(windows, weights[inside], pool.windows).astype(float), aligned


def _match(log: Log, pool: Pool, notes: list[str]) -> np.ndarray:
    """Return each request's client name; unknown ones count as the pool's rest, if it has one."""
    known = set(pool.clients)
    names = [name if name in known or REST not in known else REST for name in log.clients]
    merged = sum(a != b for a, b in zip(log.clients, names, strict=True))
    if merged:
        notes.append(f'{merged} clients that the pool does not name are compared with its "{REST}"')
    return np.asarray(np.array(names, dtype=object)[log.client])


def _is_estimate(pool: Pool) -> bool:
    """Return whether the pool was fitted to a log of about the size of the compared one, so that variances double."""
    return (pool.notes or {}).get("source") == "fit"


def _expect(pool: Pool, c: int, covered: Floats) -> _Expected:
    active = np.flatnonzero((covered > 0) & (pool.rate[c] > 0))
    counts = pool.rate[c, active] * covered[active]
    total = float(counts.sum())
    if not total:
        return _Expected(0.0, 1.0, [])
    squared = np.array([gap_cv(int(pool.process[c, w]), float(pool.shape[c, w])) ** 2 for w in active])
    dispersion = max(float(counts @ squared / total), 1.0, _between_days(pool, c, covered)) * (1 + _is_estimate(pool))
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


def _rate_finding(name: str, count: int, expected: _Expected, tokens: float) -> list[Finding]:
    """Return the finding on a client's rate, none if too few requests are expected to judge it.

    `tokens` are those of one request per second of the log.
    """
    spread = expected.dispersion
    if expected.count < LEAST_EXPECTED * spread and count < LEAST_EXPECTED * spread * 3:
        return []
    mean = max(expected.count, 0.5)
    # A Gamma distribution with the count's mean and variance has about the skewness of a bursty client's counts.
    below = stats.gamma.cdf(count + spread / 2, mean / spread, scale=spread)
    above = stats.gamma.sf(max(count - spread / 2, 0), mean / spread, scale=spread)
    width = float(np.exp(1.96 * np.sqrt(spread / mean)))
    factor = count / mean
    low, high = (factor / width, factor * width) if count else (0.0, float(3 * spread / mean))
    p = float(min(1, 2 * min(below, above)))
    return [Finding(name, "rate", factor, low, high, p, count, (count - mean) * tokens, expected=mean)]


def _mixture(pool: Pool, field: str, c: int, expected: _Expected) -> Histogram:
    entry = pool.lengths[field][c]
    assert entry is not None
    parts = [(entry.at(w * pool.window_s), weight) for w, weight in expected.windows]
    return Histogram.mixed(parts or [(h, 1.0) for h in entry.histograms])


def _length_finding(
    name: str, field: str, values: np.ndarray, pool_has: Histogram, seconds: float, estimate: bool
) -> Finding:
    size = len(values) // 2 if estimate else len(values)
    logs, own = np.log(pool_has.values + 1), np.log(values + 1.0)
    center = float(logs @ pool_has.probabilities)
    variance = max(float((logs - center) ** 2 @ pool_has.probabilities), float(own.var()), 1e-4)
    shift, error = float(own.mean()) - center, float(np.sqrt(variance / size))
    ours, theirs = (np.rint(x / np.log(BIN_RATIO)).astype(int) for x in (own, logs))
    bins = max(ours.max(), theirs.max()) + 1
    apart = np.bincount(ours, minlength=bins) / len(values) - np.bincount(theirs, pool_has.probabilities, bins)
    ks = float(np.abs(np.cumsum(apart)).max())
    p = min(2 * special.ndtr(-abs(shift) / error), stats.kstwobign.sf(ks * np.sqrt(size)))
    low, factor, high = np.exp([shift - 1.96 * error, shift, shift + 1.96 * error]).tolist()
    extra = (float(values.mean()) - pool_has.mean) * len(values) / seconds
    return Finding(name, field, factor, low, high, min(2 * float(p), 1.0), len(values), extra, ks=ks)


def _mean_tokens(pool: Pool, c: int) -> float:
    entries = [pool.lengths[field][c] for field in ("input_tokens", "output_tokens") if field in pool.lengths]
    return sum(entry.mean for entry in entries if entry is not None)


def _judged(finding: Finding, findings: int) -> Finding:
    """Return a finding with its corrected p-value, marked as changed if the change is sure and large enough."""
    p = min(finding.p_value * findings, 1.0)
    least = LEAST_RATE if finding.quantity == "rate" else LEAST_LENGTH
    large = finding.factor is None or not 1 / least < finding.factor < least or (finding.ks or 0.0) >= LEAST_KS
    return msgspec.structs.replace(finding, p_value=p, changed=bool(p < ALPHA and large))
