"""A pool: the clients of a service, with their arrivals per window and their length histograms.

Array shapes use C for clients and W for windows.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from servegen.errors import BadFile, BadRequest

Floats = NDArray[np.float64]

POISSON, GAMMA, WEIBULL = 0, 1, 2
PROCESSES = ("Poisson", "Gamma", "Weibull")
#: Name of the client that `fit` merges small ones into.
REST = "rest"
MODALITIES = ("image", "audio", "video")
_ITEMS = (f"{m}_{kind}" for m in MODALITIES for kind in ("tokens", "count"))
FIELDS = ("input_tokens", "output_tokens", "reason_ratio", "text_tokens", *_ITEMS)
#: Version of the two Parquet files, kept in their schema's metadata.
FORMAT = 1
#: Rows that a pool's file may have at most. A larger file is refused before it is read.
MOST_ROWS = 50_000_000
#: A token count or a window's start above this is refused.
MOST_VALUE = 2**31 - 1
#: Token values above EXACT_TO are merged into bins of this ratio, each at its mean.
EXACT_TO, BIN_RATIO = 512, 1.01


@dataclass(frozen=True, slots=True)
class Histogram:
    """One field's distribution: sorted values and their cumulative probabilities, the last of which is 1."""

    values: Floats
    cumulative: Floats

    @property
    def probabilities(self) -> Floats:
        """Return the probability of each value."""
        return np.diff(self.cumulative, prepend=0.0)

    @property
    def mean(self) -> float:
        """Return the mean value."""
        return float(self.values @ self.probabilities)

    @classmethod
    def of(cls, values: Floats, weights: Floats) -> Histogram:
        """Return the histogram of sorted values with these weights."""
        cumulative = np.cumsum(weights, dtype=np.float64)
        cumulative /= cumulative[-1]
        cumulative[-1] = 1.0
        return cls(np.asarray(values, dtype=np.float64), cumulative)

    @classmethod
    def mixed(cls, parts: Sequence[tuple[Histogram, float]]) -> Histogram:
        """Return the mixture of histograms, each with its weight."""
        values = np.concatenate([part.values for part, _ in parts])
        weights = np.concatenate([part.probabilities * weight for part, weight in parts])
        unique, where = np.unique(values, return_inverse=True)
        return cls.of(unique, np.bincount(where, weights).astype(np.float64))


@dataclass(frozen=True, slots=True)
class Lengths:
    """The histograms of one client and field, in order of their start."""

    starts_s: NDArray[np.int64]
    histograms: tuple[Histogram, ...]

    def at(self, time_s: float) -> Histogram:
        """Return the last histogram that starts at or before this time, or the first one if none does."""
        return self.histograms[max(int(np.searchsorted(self.starts_s, time_s, side="right")) - 1, 0)]


@dataclass(frozen=True)
class Pool:
    """The clients of a service.

    Attributes:
        clients: Names, C of them.
        window_s: Length of a window in seconds.
        rate: Requests per second, 0 in idle windows. [C, W]
        cv: Coefficient of variation of the gaps, as recorded. [C, W]
        process: POISSON, GAMMA or WEIBULL. [C, W]
        shape: Shape parameter; it decides the gaps that are drawn. [C, W]
        lengths: Field -> per client its histograms, or None for a client without any.
        origin: ISO time of the pool's start, "" if it is unknown.
        notes: Facts on how the pool was made, for its metadata.
    """

    clients: tuple[str, ...]
    window_s: int
    rate: Floats
    cv: Floats
    process: NDArray[np.int8]
    shape: Floats
    lengths: Mapping[str, tuple[Lengths | None, ...]]
    origin: str = ""
    notes: Mapping[str, Any] | None = None

    @property
    def windows(self) -> int:
        """Return the number of windows."""
        return int(self.rate.shape[1])

    @property
    def span_s(self) -> int:
        """Return the seconds from the pool's start to the end of its last window."""
        return self.windows * self.window_s

    @property
    def kind(self) -> str:
        """Return "language", "reasoning" or "multimodal"."""
        if "reason_ratio" in self.lengths:
            return "reasoning"
        return "multimodal" if "text_tokens" in self.lengths else "language"

    def complete(self) -> NDArray[np.bool_]:
        """Return which clients have a histogram of every field. [C]."""
        return np.array(
            [all(column[c] is not None for column in self.lengths.values()) for c in range(len(self.clients))]
        )

    def without_lengths(self) -> tuple[int, float]:
        """Return how many clients lack a histogram, and their share of all requests (0-1)."""
        lacking = ~self.complete()
        total = self.rate.sum()
        return int(lacking.sum()), float(self.rate[lacking].sum() / total) if total else 0.0

    def shares(self) -> Floats:
        """Return each client's share of all requests, 0-1. [C]."""
        requests = self.rate.sum(axis=1)
        return np.asarray(requests / max(requests.sum(), 1e-300))

    def only(self, keep: NDArray[np.bool_]) -> Pool:
        """Return the pool of the clients that the mask keeps. [C]."""
        if not keep.any():
            raise BadRequest("no client of the pool is left; loosen the filters")
        rows = np.flatnonzero(keep)
        lengths = {field: tuple(column[c] for c in rows) for field, column in self.lengths.items()}
        grids = {name: getattr(self, name)[rows] for name in ("rate", "cv", "process", "shape")}
        return replace(self, clients=tuple(self.clients[c] for c in rows), lengths=lengths, **grids)

    def filtered(
        self,
        *,
        clients: Iterable[str] = (),
        least_share: float = 0.0,
        cv: tuple[float, float] = (0.0, np.inf),
        mean_input: tuple[float, float] = (0.0, np.inf),
    ) -> Pool:
        """Return the pool of the clients that pass all filters.

        Args:
            clients: Names to keep; empty keeps all.
            least_share: Minimum share of all requests, 0-1.
            cv: Range of a client's mean recorded CV, weighted by rate.
            mean_input: Range of a client's mean input tokens; clients without histograms pass.
        """
        keep = self.shares() >= least_share
        if names := set(clients):
            if unknown := names - set(self.clients):
                raise BadRequest(f"the pool has no client {min(unknown)!r}; `servegen show` lists its clients")
            keep &= np.isin(self.clients, sorted(names))
        mean_cv = (self.rate * self.cv).sum(axis=1) / np.maximum(self.rate.sum(axis=1), 1e-300)
        keep &= (mean_cv >= cv[0]) & (mean_cv <= cv[1])
        column = self.lengths.get("input_tokens", self.lengths.get("text_tokens"))
        for c, lengths in enumerate(column or ()):
            if lengths is not None:
                mean = float(np.mean([h.mean for h in lengths.histograms]))
                keep[c] &= mean_input[0] <= mean <= mean_input[1]
        return self.only(keep)

    def between(self, start_s: float, end_s: float) -> Pool:
        """Return the pool of the windows from start to end; its clock starts at 0 again."""
        first, last = int(start_s // self.window_s), int(-(-end_s // self.window_s))
        if not 0 <= first < last <= self.windows:
            hours = f"hours {start_s / 3600:g} to {end_s / 3600:g}"
            raise BadRequest(f"{hours} lie outside the pool's {self.span_s / 3600:g}")
        shift = first * self.window_s

        def moved(lengths: Lengths | None) -> Lengths | None:
            if lengths is None:
                return None
            kept = max(int(np.searchsorted(lengths.starts_s, shift, side="right")) - 1, 0)
            return Lengths(np.maximum(lengths.starts_s[kept:] - shift, 0), lengths.histograms[kept:])

        lengths = {field: tuple(moved(x) for x in column) for field, column in self.lengths.items()}
        grids = {name: getattr(self, name)[:, first:last] for name in ("rate", "cv", "process", "shape")}
        return replace(self, lengths=lengths, origin="", **grids)


def merge_bins(values: Floats, weights: Floats) -> Histogram:
    """Return the histogram with values above EXACT_TO in bins of BIN_RATIO, each at its mean."""
    tail = np.log(np.maximum(values, 1) / EXACT_TO) / np.log(BIN_RATIO)
    bins = np.where(values <= EXACT_TO, values, EXACT_TO + 1 + np.floor(tail))
    _, first = np.unique(bins, return_index=True)
    mass = np.add.reduceat(weights, first)
    return Histogram.of(np.add.reduceat(values * weights, first) / mass, mass)


def read_pool(where: Path | str) -> Pool:
    """Read a pool.

    Args:
        where: A folder with `arrivals.parquet` and `lengths.parquet`; `DIR/NAME` of files named
            `NAME.arrivals.parquet` and `NAME.lengths.parquet`; or "sample" for the pool of this package.

    Raises:
        BadFile: A file is missing, malformed or holds values that make no sense.
    """
    path = Path(where)
    if str(where) == "sample" and not path.exists():
        path = Path(__file__).parent / "sample"
    if path.is_dir():
        files = path / "arrivals.parquet", path / "lengths.parquet"
    else:
        files = path.parent / f"{path.name}.arrivals.parquet", path.parent / f"{path.name}.lengths.parquet"
    for file in files:
        if not file.is_file():
            raise BadFile(file, 'no such file; a pool is a folder with this and its sibling, or "sample"')
    where_when: dict[str, type] = {"client": str, "start_s": int}
    arrivals, facts = _read_columns(
        files[0], {**where_when, "rate": float, "cv": float, "process": str, "shape": float}
    )
    lengths, _ = _read_columns(files[1], {**where_when, "field": str, "value": float, "prob": float})
    return _assemble(files, arrivals, lengths, facts)


def _read_columns(path: Path, wanted: Mapping[str, type]) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    try:
        with pq.ParquetFile(path) as file:
            if file.metadata.num_rows > MOST_ROWS:
                raise BadFile(path, f"{file.metadata.num_rows} rows; at most {MOST_ROWS} are read")
            if file.metadata.num_rows == 0:
                raise BadFile(path, "has no rows")
            if missing := [name for name in wanted if name not in file.schema_arrow.names]:
                found = ", ".join(file.schema_arrow.names)
                raise BadFile(path, f"has no such column; it has {found}", field=missing[0])
            table = file.read(columns=list(wanted))
            table.validate(full=True)
            facts = _facts(path, file.schema_arrow.metadata)
    except (pa.ArrowException, OSError) as error:
        raise BadFile(path, f"not a readable Parquet file ({error})") from error
    columns = {}
    for name, kind in wanted.items():
        column = table[name].combine_chunks()
        if column.null_count:
            row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise BadFile(path, "is empty", row=row + 1, field=name)
        try:
            if kind is str:
                column = column.cast(pa.string())
                columns[name] = np.asarray(column.to_numpy(zero_copy_only=False), dtype=object)
            else:
                target = pa.int64() if kind is int else pa.float64()
                columns[name] = column.cast(target).to_numpy(zero_copy_only=False)
        except pa.ArrowException as error:
            raise BadFile(path, f"is {column.type}, not {kind.__name__}", field=name) from error
    return columns, facts


def _facts(path: Path, metadata: Mapping[bytes, bytes] | None) -> dict[str, Any]:
    try:
        facts = json.loads((metadata or {}).get(b"servegen", b"{}"))
    except ValueError as error:
        raise BadFile(path, "is not JSON", field="metadata servegen") from error
    if not isinstance(facts, dict):
        raise BadFile(path, "is not a JSON object", field="metadata servegen")
    if facts.get("format", FORMAT) != FORMAT:
        raise BadFile(path, f"format {facts['format']} is not known, only {FORMAT} is", field="metadata servegen")
    for name in ("window_s", "span_s"):
        if name in facts and not (isinstance(facts[name], int) and 0 < facts[name] <= MOST_VALUE):
            raise BadFile(path, f"{name} is {facts[name]!r}, not a number of seconds", field="metadata servegen")
    return facts


def _refuse(path: Path, field: str, values: NDArray[Any], bad: NDArray[np.bool_], problem: str) -> None:
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise BadFile(path, f"{values[row]} {problem}", row=row + 1, field=field)


def _assemble(
    paths: tuple[Path, Path], arrivals: dict[str, NDArray[Any]], lengths: dict[str, NDArray[Any]], facts: dict[str, Any]
) -> Pool:
    path = paths[0]
    for name in ("rate", "cv", "shape"):
        positive = np.isfinite(arrivals[name]) & (arrivals[name] > 0)
        _refuse(path, name, arrivals[name], ~positive, "is not a positive number")
    starts = arrivals["start_s"]
    window_s = facts.get("window_s", 600)
    on_grid = (starts >= 0) & (starts <= MOST_VALUE) & (starts % window_s == 0)
    _refuse(path, "start_s", starts, ~on_grid, f"is not a multiple of {window_s}")
    process = np.full(len(starts), -1, dtype=np.int8)
    for number, name in enumerate(PROCESSES):
        process[arrivals["process"] == name] = number
    _refuse(path, "process", arrivals["process"], process < 0, f"is none of {', '.join(PROCESSES)}")
    names = sorted({*arrivals["client"], *lengths["client"]}, key=_natural)
    rows = {name: c for c, name in enumerate(names)}
    client = np.array([rows[name] for name in arrivals["client"]])
    window = starts // window_s
    windows = max(int(window.max()) + 1, facts.get("span_s", 0) // window_s)
    if len(names) * windows > MOST_ROWS * 2:
        raise BadFile(path, f"{len(names)} clients times {windows} windows are too many", field="start_s")
    cell = client * windows + window
    _, first = np.unique(cell, return_index=True)
    repeated = np.ones(len(cell), dtype=bool)
    repeated[first] = False
    _refuse(path, "start_s", starts, repeated, "comes twice for its client")

    def dense(values: NDArray[Any], dtype: Any, empty: float) -> NDArray[Any]:
        grid = np.full((len(names), windows), empty, dtype=dtype)
        grid[client, window] = values
        return grid

    return Pool(
        clients=tuple(names),
        window_s=window_s,
        rate=dense(arrivals["rate"], np.float64, 0.0),
        cv=dense(arrivals["cv"], np.float64, 1.0),
        process=dense(process, np.int8, POISSON),
        shape=dense(arrivals["shape"], np.float64, 1.0),
        lengths=_histograms(paths[1], lengths, rows),
        origin=str(facts.get("origin", "")),
        notes={k: v for k, v in facts.items() if k not in ("format", "window_s", "span_s", "origin")},
    )


def _natural(name: str) -> tuple[int, int, str]:
    return (0, int(name), "") if name.isascii() and name.isdigit() and len(name) < 18 else (1, 0, name)


def _histograms(
    path: Path, columns: dict[str, NDArray[Any]], number: Mapping[str, int]
) -> dict[str, tuple[Lengths | None, ...]]:
    value, prob, starts = columns["value"], columns["prob"], columns["start_s"]
    field = np.full(len(value), -1, dtype=np.int64)
    for f, name in enumerate(FIELDS):
        field[columns["field"] == name] = f
    _refuse(path, "field", columns["field"], field < 0, f"is none of {', '.join(FIELDS)}")
    limit = np.where(field == FIELDS.index("reason_ratio"), 1.0, MOST_VALUE)
    _refuse(path, "value", value, ~((value >= 0) & (value <= limit)), "is out of range")
    _refuse(path, "prob", prob, ~((prob >= 0) & (prob <= 1 + 1e-6)), "is no probability")
    _refuse(path, "start_s", starts, (starts < 0) | (starts > MOST_VALUE), "is out of range")
    client = np.array([number[name] for name in columns["client"]])
    order = np.lexsort((value, starts, client, field))
    keys = np.stack([field[order], client[order], starts[order]])
    edges = np.flatnonzero(np.any(np.diff(keys, axis=1) != 0, axis=0)) + 1
    edges = np.concatenate([[0], edges, [len(order)]])
    sums = np.add.reduceat(prob[order], edges[:-1])
    if (wrong := np.abs(sums - 1) > 0.01).any():
        run = int(np.flatnonzero(wrong)[0])
        row = int(order[edges[run]]) + 1
        raise BadFile(path, f"a histogram's probabilities add up to {sums[run]:.4g}", row=row, field="prob")
    collected: dict[tuple[int, int], list[tuple[int, Histogram]]] = {}
    for low, high in itertools.pairwise(edges):
        rows = order[low:high]
        entry = collected.setdefault((int(field[rows[0]]), int(client[rows[0]])), [])
        entry.append((int(starts[rows[0]]), Histogram.of(value[rows], prob[rows])))
    lengths: dict[str, tuple[Lengths | None, ...]] = {}
    for f in sorted({f for f, _ in collected}):
        runs = [collected.get((f, c), []) for c in range(len(number))]
        lengths[FIELDS[f]] = tuple(
            Lengths(np.array([start for start, _ in run]), tuple(h for _, h in run)) if run else None for run in runs
        )
    if "output_tokens" not in lengths or not ({"input_tokens", "text_tokens"} & set(lengths)):
        raise BadFile(path, "has no output_tokens, or neither input_tokens nor text_tokens", field="field")
    return lengths


def write_pool(pool: Pool, folder: Path) -> None:
    """Write the pool as `arrivals.parquet` and `lengths.parquet` into a folder, which is made if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    own = {"format": FORMAT, "window_s": pool.window_s, "span_s": pool.span_s, "origin": pool.origin}
    facts = {**(pool.notes or {}), **own}
    metadata = {b"servegen": json.dumps(facts, sort_keys=True).encode()}
    client, window = np.nonzero(pool.rate > 0)
    names = pa.array(pool.clients, pa.string())
    arrivals = pa.table(
        {
            "client": _dictionary(client, names),
            "start_s": pa.array(window * pool.window_s, pa.int32()),
            "rate": pool.rate[client, window],
            "cv": pool.cv[client, window],
            "process": _dictionary(pool.process[client, window], pa.array(PROCESSES)),
            "shape": pool.shape[client, window],
            "scale": _scales(pool)[client, window],
        }
    )
    pq.write_table(arrivals.replace_schema_metadata(metadata), folder / "arrivals.parquet", compression="zstd")
    rows: dict[str, list[Any]] = {"client": [], "start_s": [], "field": [], "value": [], "prob": []}
    for field, column in pool.lengths.items():
        for c, entry in enumerate(column):
            for start, histogram in zip(entry.starts_s, entry.histograms, strict=True) if entry is not None else ():
                size = len(histogram.values)
                rows["client"].append(np.full(size, c, np.int32))
                rows["start_s"].append(np.full(size, start, np.int32))
                rows["field"].append(np.full(size, FIELDS.index(field), np.int8))
                rows["value"].append(histogram.values)
                rows["prob"].append(histogram.probabilities)
    joined = {name: np.concatenate(parts) for name, parts in rows.items()}
    texts = {"client": _dictionary(joined["client"], names), "field": _dictionary(joined["field"], pa.array(FIELDS))}
    table = pa.table({**joined, **texts})
    pq.write_table(table.replace_schema_metadata(metadata), folder / "lengths.parquet", compression="zstd")


def _scales(pool: Pool) -> Floats:
    """Return the scale of each window's distribution, so that its mean gap is 1/rate. [C, W]."""
    from scipy.special import gamma as gamma_function

    rate = np.maximum(pool.rate, 1e-300)
    means = np.select(
        [pool.process == GAMMA, pool.process == WEIBULL], [pool.shape, gamma_function(1 + 1 / pool.shape)], 1.0
    )
    return np.asarray(1 / (means * rate))


def _dictionary(indices: NDArray[Any], names: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), names)
