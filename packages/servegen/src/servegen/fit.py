"""Fits a pool to a log: per client and window rate, CV and family of gaps; per client and 6 hours length histograms."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from servegen.arrivals import gap_cv
from servegen.errors import BadRequest
from servegen.families import Family, Gaps, choose_family, shape_of_cv
from servegen.logs import Log, iso_time
from servegen.parallel import map_ordered
from servegen.pool import POISSON, PROCESSES, REST, Histogram, Lengths, Pool, merge_bins, write_pool

#: A window's CV comes from the family's shape instead of the sample if its mean gap is below this many clock steps.
COARSE_STEPS = 4
#: Gaps of a window that its family is chosen by, at most; rate and CV use all.
MOST_GAPS = 5000
#: Equal steps of 0..1 that reasoning ratios are rounded to, as in the published pools.
RATIO_STEPS = 500
#: Seconds of a window of length histograms.
LENGTHS_S = 21_600


@dataclass(frozen=True, slots=True)
class WindowFit:
    """What was found in one window of one client."""

    client: int  #: Index of the client
    window: int  #: Index of the window
    requests: int  #: Requests in the window
    rate: float  #: Requests per second of the covered time
    cv: float  #: CV of the gaps inside the window; see COARSE_STEPS
    family: Family  #: The family that was chosen


@dataclass(frozen=True)
class Fit:
    """A fitted pool with its evidence."""

    pool: Pool  #: The pool
    windows: tuple[WindowFit, ...]  #: Every fitted window
    notes: tuple[str, ...]  #: What was decided: merged clients, dropped windows, the clock


def fit_log(log: Log, window_s: int = 600, rest_share: float = 0.0005, processes: int = 1) -> Fit:
    """Fit a pool to a log.

    Windows begin at the first request, rounded down. The first and last window count only the seconds that the log
    covers, and are left out if it covers less than half of them. Clients with a smaller share of the requests than
    `rest_share` (0-1) are merged into one.

    Raises:
        BadRequest: The log has fewer than two requests or covers no time.
    """
    if len(log.time_ns) < 2 or log.time_ns[-1] == 0:
        raise BadRequest("the log has fewer than two requests at different times; nothing can be fitted")
    notes = list(log.notes)
    names, client = _merge_small(log, rest_share, notes)
    first, covered = _coverage(log, window_s, notes)
    offset_ns = log.first_ns % (window_s * 10**9)
    window = (log.time_ns + offset_ns) // (window_s * 10**9) - first
    inside = (window >= 0) & (window < len(covered))
    order = np.flatnonzero(inside)[np.argsort(client[inside], kind="stable")]
    edges = np.searchsorted(client[order], np.arange(len(names) + 1))
    tasks = [(c, log.time_ns[order[a:b]], window[order[a:b]]) for c, (a, b) in enumerate(itertools.pairwise(edges))]
    windows = tuple(w for found in map_ordered(_fit_client, (log.clock_ns, covered), tasks, processes) for w in found)
    grid = (len(names), len(covered))
    rate, cv, shape, process = np.zeros(grid), np.ones(grid), np.ones(grid), np.full(grid, POISSON, np.int8)
    for w in windows:
        at, kind = (w.client, w.window), w.family.process
        rate[at], cv[at], shape[at], process[at] = w.rate, w.cv, shape_of_cv(kind, w.cv), kind
    few = sum(w.family.decided_by == "too few" for w in windows)
    notes.append(f"{len(windows)} windows of {len(names)} clients; {few} are called exponential (too few gaps)")
    lengths = _lengths(log, client, inside, window * window_s // LENGTHS_S)
    start_ns = log.first_ns - offset_ns + first * window_s * 10**9
    facts = {"source": "fit", "clock_s": log.clock_ns / 1e9, "notes": notes}
    pool = Pool(tuple(names), window_s, rate, cv, process, shape, lengths, iso_time(start_ns), facts)
    return Fit(pool, windows, tuple(notes))


def write_fit(fit: Fit, folder: Path) -> None:
    """Write the pool, and `fit.parquet` beside it with the evidence of every window."""
    write_pool(fit.pool, folder)
    rows = []
    for w in fit.windows:
        place = {"client": fit.pool.clients[w.client], "start_s": w.window * fit.pool.window_s}
        found = {"requests": w.requests, "rate": w.rate, "cv": w.cv, **asdict(w.family)}
        rows.append({**place, **found, "process": PROCESSES[w.family.process]})
    pq.write_table(pa.Table.from_pylist(rows), folder / "fit.parquet", compression="zstd")


def _merge_small(log: Log, least_share: float, notes: list[str]) -> tuple[list[str], NDArray[np.int64]]:
    counts = np.bincount(log.client, minlength=len(log.clients))
    small = counts < least_share * len(log.client)
    if small.sum() < 2:
        return list(log.clients), log.client.astype(np.int64)
    share = counts[small].sum() / len(log.client)
    who = f"{small.sum()} clients below {least_share:.2%} of the requests"
    notes.append(f'{who} are merged into "{REST}" ({share:.1%} of all)')
    names = [name for name, merged in zip(log.clients, small, strict=True) if not merged]
    number = np.where(small, len(names), np.cumsum(~small) - 1)
    return [*names, REST], number[log.client]


def _coverage(log: Log, window_s: int, notes: list[str]) -> tuple[int, NDArray[np.float64]]:
    """Return the first window that is kept, and the covered seconds of each kept window."""
    start = log.first_ns % (window_s * 10**9) / 1e9
    end = start + float(log.time_ns[-1]) / 1e9
    edges = np.arange(int(end // window_s) + 1) * window_s
    covered = np.minimum(edges + window_s, end) - np.maximum(edges, start)
    kept = np.flatnonzero(covered >= window_s / 2)
    if not len(kept):
        kept = np.array([int(np.argmax(covered))])
        seconds = covered[kept[0]]
        notes.append(f"the log covers only {seconds:.0f} s of a window of {window_s} s; --window sets shorter ones")
    elif len(kept) < len(covered):
        notes.append(f"{len(covered) - len(kept)} windows that the log covers by less than half are left out")
    return int(kept[0]), covered[kept[0] : kept[-1] + 1]


def _fit_client(
    shared: tuple[int, NDArray[np.float64]], task: tuple[int, NDArray[np.int64], NDArray[np.int64]]
) -> list[WindowFit]:
    (clock_ns, covered), (client, times, window) = shared, task
    edges = np.searchsorted(window, np.arange(len(covered) + 1))
    found = []
    for w, (low, high) in enumerate(itertools.pairwise(edges)):
        if high > low:
            rate = float((high - low) / max(covered[w], 1e-9))
            cv, family = _fit_gaps(np.diff(times[low:high]), clock_ns)
            found.append(WindowFit(client, w, int(high - low), rate, cv, family))
    return found


def _fit_gaps(gaps_ns: NDArray[np.int64], clock_ns: int) -> tuple[float, Family]:
    if len(gaps_ns) < 2 or not gaps_ns.any():
        return 1.0, Family(POISSON, 1.0, 0.0, float("nan"), "too few")
    family = choose_family(Gaps.of(gaps_ns[:: -(-len(gaps_ns) // MOST_GAPS)], clock_ns))
    if family.decided_by != "too few" and gaps_ns.mean() < COARSE_STEPS * clock_ns:
        return gap_cv(family.process, family.shape), family
    return max(float(gaps_ns.std() / gaps_ns.mean()), 0.01), family


def _lengths(
    log: Log, client: NDArray[np.int64], inside: NDArray[np.bool_], period: NDArray[np.int64]
) -> dict[str, tuple[Lengths | None, ...]]:
    answered = inside & (log.output_tokens > 0)
    fields: dict[str, tuple[NDArray[Any], NDArray[np.bool_]]]
    fields = {"input_tokens": (log.input_tokens, inside), "output_tokens": (log.output_tokens, answered)}
    if log.reasoning_tokens is not None:
        ratio = np.minimum(log.reasoning_tokens / np.maximum(log.output_tokens, 1), 1)
        fields["reason_ratio"] = (np.round(ratio * RATIO_STEPS) / RATIO_STEPS, answered)
    result: dict[str, tuple[Lengths | None, ...]] = {}
    for field, (values, counted) in fields.items():
        rows = np.flatnonzero(counted)
        order = rows[np.lexsort((period[rows], client[rows]))]
        edges = np.flatnonzero(np.diff(client[order]) | np.diff(period[order])) + 1
        found: list[list[tuple[int, Histogram]]] = [[] for _ in range(client.max() + 1)]
        for run in np.split(order, edges) if len(order) else ():
            unique, counts = np.unique(values[run].astype(float), return_counts=True)
            histogram = (Histogram.of if field == "reason_ratio" else merge_bins)(unique, counts.astype(float))
            found[client[run[0]]].append((int(period[run[0]]) * LENGTHS_S, histogram))
        result[field] = tuple(Lengths.of(entries) if entries else None for entries in found)
    return result
