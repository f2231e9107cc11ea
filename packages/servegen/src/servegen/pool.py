"""A pool: the clients of a service, with their arrivals per window and their length histograms.

Array shapes use C for clients and W for windows.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy.special import gamma

from servegen.errors import BadFile, BadRequest
from servegen.files import MOST_ROWS, one_line, read_parquet

Floats = NDArray[np.float64]

POISSON, GAMMA, WEIBULL = 0, 1, 2
PROCESSES = ("Poisson", "Gamma", "Weibull")
#: Name of the client that `fit` merges small ones into.
REST = "rest"
MODALITIES = ("image", "audio", "video")
_ITEMS = (f"{m}_{kind}" for m in MODALITIES for kind in ("tokens", "count"))
GRIDS = ("rate", "cv", "process", "shape")
FIELDS = ("input_tokens", "output_tokens", "reason_ratio", "text_tokens", *_ITEMS)
#: Version of the two Parquet files, kept in their schema's metadata.
FORMAT = 1
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

    @classmethod
    def of(cls, entries: Iterable[tuple[int, Histogram]]) -> Lengths:
        """Return the lengths of histograms with their starts in seconds, in any order."""
        starts, histograms = zip(*sorted(entries, key=lambda entry: entry[0]), strict=True)
        return cls(np.array(starts), histograms)

    @property
    def mean(self) -> float:
        """Return the mean value of all histograms."""
        return float(np.mean([histogram.mean for histogram in self.histograms]))

    def at(self, time_s: float) -> Histogram:
        """Return the last histogram that starts at or before this time, or the first one if none does."""
        return self.histograms[max(int(np.searchsorted(self.starts_s, time_s, side="right")) - 1, 0)]


@dataclass(frozen=True)
class Pool:
    """The clients of a service."""

    clients: tuple[str, ...]  #: Names, C of them
    window_s: int  #: Length of a window in seconds
    rate: Floats  #: Requests per second, 0 in idle windows. [C, W]
    cv: Floats  #: Coefficient of variation of the gaps, as recorded. [C, W]
    process: NDArray[np.int8]  #: POISSON, GAMMA or WEIBULL. [C, W]
    shape: Floats  #: Shape parameter; it decides the gaps that are drawn. [C, W]
    #: Field -> per client its histograms, or None for a client without any
    lengths: Mapping[str, tuple[Lengths | None, ...]]
    origin: str = ""  #: ISO time of the pool's start, "" if it is unknown
    notes: Mapping[str, Any] | None = None  #: Facts on how the pool was made, for its metadata

    @property
    def windows(self) -> int:
        """Return the number of windows."""
        return int(self.rate.shape[1])

    @property
    def span_s(self) -> int:
        """Return the seconds from the pool's start to the end of its last window."""
        return self.windows * self.window_s

    def complete(self) -> NDArray[np.bool_]:
        """Return which clients have a histogram of every field. [C]."""
        return np.array([None not in entries for entries in zip(*self.lengths.values(), strict=True)])

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
        grids = {name: getattr(self, name)[rows] for name in GRIDS}
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
            mean_input: Range of a client's mean input (or text) tokens; clients without histograms pass.
        """
        names = set(clients) or set(self.clients)
        if unknown := names - set(self.clients):
            raise BadRequest(f"the pool has no client {min(unknown)!r}; `servegen show` lists its clients")
        mean_cv = (self.rate * self.cv).sum(axis=1) / np.maximum(self.rate.sum(axis=1), 1e-300)
        column = self.lengths.get("input_tokens", self.lengths.get("text_tokens", ()))
        sizes = [mean_input[0] if lengths is None else lengths.mean for lengths in column]
        keep = (self.shares() >= least_share) & np.isin(self.clients, sorted(names))
        for values, (low, high) in ((mean_cv, cv), (np.array(sizes), mean_input)):
            keep &= (values >= low) & (values <= high)
        return self.only(keep)


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
    names = ("arrivals.parquet", "lengths.parquet")
    files = [path / name if path.is_dir() else path.parent / f"{path.name}.{name}" for name in names]
    for file in files:
        if not file.is_file():
            raise BadFile(file, 'no such file; a pool is a folder with this and its sibling, or "sample"')
    arrivals = _Columns.read(files[0], client=str, start_s=int, rate=float, cv=float, process=str, shape=float)
    lengths = _Columns.read(files[1], client=str, start_s=int, field=str, value=float, prob=float)
    return _assemble(arrivals, lengths)


class _Facts(msgspec.Struct):
    """What the metadata of the two files states."""

    format: Literal[1] = 1
    window_s: Annotated[int, msgspec.Meta(gt=0, le=MOST_VALUE)] = 600
    span_s: Annotated[int, msgspec.Meta(ge=0, le=MOST_VALUE)] = 0
    origin: str = ""


@dataclass(frozen=True)
class _Columns:
    """Columns of one file, by name."""

    path: Path
    values: dict[str, NDArray[Any]]
    metadata: bytes

    @classmethod
    def read(cls, path: Path, **wanted: type) -> _Columns:
        table = read_parquet(path, list(wanted))
        values = {}
        for name, kind in wanted.items():
            column = table[name].combine_chunks()
            if column.null_count:
                row = int(np.flatnonzero(column.is_null())[0])
                raise BadFile(path, "is empty", row=row + 1, field=name)
            try:
                column = column.cast({str: pa.string(), int: pa.int64(), float: pa.float64()}[kind])
            except pa.ArrowException as error:
                raise BadFile(path, f"is {column.type}, not {kind.__name__}", field=name) from error
            values[name] = column.to_numpy(zero_copy_only=False)
        return cls(path, values, (table.schema.metadata or {}).get(b"servegen", b"{}"))

    def refuse(self, field: str, bad: NDArray[np.bool_], problem: str) -> None:
        """Raise an error for the first bad row, if there is one."""
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise BadFile(self.path, f"{self.values[field][row]} {problem}", row=row + 1, field=field)

    def numbers(self, field: str, names: Sequence[str]) -> NDArray[np.int64]:
        """Return the place of each of a field's values in a list of names."""
        place = {name: i for i, name in enumerate(names)}
        found = np.array([place.get(value, -1) for value in self.values[field]])
        self.refuse(field, found < 0, f"is none of {', '.join(names)}")
        return found

    def facts(self) -> tuple[_Facts, dict[str, Any]]:
        """Return what the metadata states, and all other notes in it."""
        try:
            facts = msgspec.json.decode(self.metadata, type=_Facts)
            notes = msgspec.json.decode(self.metadata, type=dict[str, Any])
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise BadFile(self.path, one_line(error), field="metadata servegen") from error
        return facts, {name: value for name, value in notes.items() if name not in _Facts.__struct_fields__}


def _assemble(arrivals: _Columns, lengths: _Columns) -> Pool:
    facts, notes = arrivals.facts()
    rows, starts, window_s = arrivals.values, arrivals.values["start_s"], facts.window_s
    for name in ("rate", "cv", "shape"):
        positive = np.isfinite(rows[name]) & (rows[name] > 0)
        arrivals.refuse(name, ~positive, "is not a positive number")
    on_grid = (starts >= 0) & (starts <= MOST_VALUE) & (starts % window_s == 0)
    arrivals.refuse("start_s", ~on_grid, f"is not a multiple of {window_s}")
    process = arrivals.numbers("process", PROCESSES)
    names = sorted({*rows["client"], *lengths.values["client"]}, key=_natural)
    client, window = arrivals.numbers("client", names), starts // window_s
    windows = max(int(window.max()) + 1, facts.span_s // window_s)
    if len(names) * windows > 2 * MOST_ROWS:
        raise BadFile(arrivals.path, f"{len(names)} clients times {windows} windows are too many", field="start_s")
    _, first = np.unique(client * windows + window, return_index=True)
    arrivals.refuse("start_s", ~np.isin(np.arange(len(starts)), first), "comes twice for its client")
    grids = {"rate": rows["rate"], "cv": rows["cv"], "process": process.astype(np.int8), "shape": rows["shape"]}
    empty = {"rate": 0, "cv": 1, "process": POISSON, "shape": 1}
    filled = {name: np.full((len(names), windows), empty[name], values.dtype) for name, values in grids.items()}
    for name, values in grids.items():
        filled[name][client, window] = values
    histograms = _histograms(lengths, names)
    return Pool(tuple(names), window_s, lengths=histograms, origin=facts.origin, notes=notes, **filled)


def _natural(name: str) -> tuple[int, int, str]:
    return (0, int(name), "") if name.isascii() and name.isdigit() and len(name) < 18 else (1, 0, name)


def _histograms(columns: _Columns, names: Sequence[str]) -> dict[str, tuple[Lengths | None, ...]]:
    value, prob, starts = (columns.values[name] for name in ("value", "prob", "start_s"))
    field, client = columns.numbers("field", FIELDS), columns.numbers("client", names)
    limit = np.where(field == FIELDS.index("reason_ratio"), 1.0, MOST_VALUE)
    columns.refuse("value", ~((value >= 0) & (value <= limit)), "is out of range")
    columns.refuse("prob", ~((prob >= 0) & (prob <= 1 + 1e-6)), "is no probability")
    columns.refuse("start_s", (starts < 0) | (starts > MOST_VALUE), "is out of range")
    order = np.lexsort((value, starts, client, field))
    keys = np.stack([field[order], client[order], starts[order]])
    edges = [0, *np.flatnonzero(np.any(np.diff(keys, axis=1) != 0, axis=0)) + 1, len(order)]
    found: dict[str, list[list[tuple[int, Histogram]]]] = {}
    for rows in (order[low:high] for low, high in itertools.pairwise(edges)):
        if abs((total := prob[rows].sum()) - 1) > 0.01:
            problem = f"a histogram's probabilities add up to {total:.4g}"
            raise BadFile(columns.path, problem, row=int(rows[0]) + 1, field="prob")
        entries = found.setdefault(FIELDS[field[rows[0]]], [[] for _ in names])
        entries[client[rows[0]]].append((int(starts[rows[0]]), Histogram.of(value[rows], prob[rows])))
    if "output_tokens" not in found or not {"input_tokens", "text_tokens"} & set(found):
        raise BadFile(columns.path, "has no output_tokens, or neither input_tokens nor text_tokens", field="field")
    return {name: tuple(Lengths.of(entries) if entries else None for entries in runs) for name, runs in found.items()}


def write_pool(pool: Pool, folder: Path) -> None:
    """Write the pool as `arrivals.parquet` and `lengths.parquet` into a folder, which is made if it is missing."""
    own = {"format": FORMAT, "window_s": pool.window_s, "span_s": pool.span_s, "origin": pool.origin}
    metadata = {b"servegen": json.dumps({**(pool.notes or {}), **own}, sort_keys=True).encode()}
    at = client, window = np.nonzero(pool.rate > 0)
    unit = np.select([pool.process == GAMMA, pool.process == WEIBULL], [pool.shape, gamma(1 + 1 / pool.shape)], 1.0)
    names = np.array(pool.clients, dtype=object)
    arrivals = {
        "client": names[client],
        "start_s": (window * pool.window_s).astype(np.int32),
        "rate": pool.rate[at],
        "cv": pool.cv[at],
        "process": np.array(PROCESSES)[pool.process[at]],
        "shape": pool.shape[at],
        "scale": 1 / (unit[at] * pool.rate[at]),
    }
    clients, starts, fields, histograms = zip(
        *(
            (names[c], start, field, histogram)
            for field, column in pool.lengths.items()
            for c, entry in enumerate(column)
            if entry is not None
            for start, histogram in zip(entry.starts_s, entry.histograms, strict=True)
        ),
        strict=True,
    )
    sizes = [len(histogram.values) for histogram in histograms]
    lengths = {
        "client": np.repeat(np.array(clients, dtype=object), sizes),
        "start_s": np.repeat(np.array(starts, np.int32), sizes),
        "field": np.repeat(fields, sizes),
        "value": np.concatenate([histogram.values for histogram in histograms]),
        "prob": np.concatenate([histogram.probabilities for histogram in histograms]),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, columns in (("arrivals", arrivals), ("lengths", lengths)):
        table = pa.table(columns, metadata=metadata)
        pq.write_table(table, folder / f"{name}.parquet", compression="zstd")
