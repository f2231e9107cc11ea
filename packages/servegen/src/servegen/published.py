"""Imports the authors' published layout: per client a CSV of arrivals and a JSON of histograms kept as text."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from servegen.errors import BadFile
from servegen.files import misfit, read_file
from servegen.pool import FIELDS, MOST_VALUE, POISSON, PROCESSES, Histogram, Lengths, Pool, merge_bins
from servegen.workload import Positive

WINDOW_S = 600
_CHUNK = re.compile(r"chunk-(.+)-trace\.csv")
_NUMBER = r"-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?"
_PAIRS = re.compile(rf"\{{\s*(?:{_NUMBER}\s*:\s*{_NUMBER}\s*(?:,\s*|(?=\}})))*\}}")


class _Window(msgspec.Struct, forbid_unknown_fields=True):
    """One row of a trace, in the order of its columns."""

    start: Annotated[float, msgspec.Meta(ge=0, le=MOST_VALUE, multiple_of=WINDOW_S)]
    rate: Positive
    cv: Positive
    process: Literal["Poisson", "Gamma", "Weibull"]
    shape: Positive
    scale: float


def import_published(folder: Path) -> Pool:
    """Read a folder with `chunk-N-trace.csv` and `chunk-N-dataset.json` per client N.

    Histograms are text of the form "{3: 0.5, 7: 0.5}". It is matched as pairs of numbers and never evaluated. A client
    without a dataset file keeps its arrivals and has no histograms.

    Raises:
        BadFile: The folder has no such files, or one is malformed.
    """
    traces = {match[1]: path for path in sorted(folder.glob("chunk-*")) if (match := _CHUNK.fullmatch(path.name))}
    if not traces:
        raise BadFile(folder, "has no files chunk-N-trace.csv")
    windows = {client: _read_trace(path) for client, path in traces.items()}
    clients = tuple(sorted((c for c in windows if windows[c]), key=lambda name: (len(name), name)))
    if not clients:
        raise BadFile(folder, "no client has an active window")
    grid = (len(clients), max(max(rows) for rows in windows.values() if rows) + 1)
    rate, cv, shape = np.zeros(grid), np.ones(grid), np.ones(grid)
    process = np.full(grid, POISSON, np.int8)
    entries: dict[str, list[Lengths | None]] = {}
    for c, client in enumerate(clients):
        for w, row in windows[client].items():
            rate[c, w], cv[c, w], process[c, w], shape[c, w] = row.rate, row.cv, PROCESSES.index(row.process), row.shape
        dataset = folder / f"chunk-{client}-dataset.json"
        for field, lengths in (_read_dataset(dataset) if dataset.is_file() else {}).items():
            entries.setdefault(field, [None] * len(clients))[c] = lengths
    if "output_tokens" not in entries or not {"input_tokens", "text_tokens"} & set(entries):
        raise BadFile(folder, "no dataset file has output_tokens and input_tokens or text_tokens")
    histograms = {field: tuple(entries[field]) for field in FIELDS if field in entries}
    return Pool(clients, WINDOW_S, rate, cv, process, shape, histograms, notes={"source": "published layout"})


def _read_trace(path: Path) -> dict[int, _Window]:
    """Return the active windows of a trace by their number."""
    rows: dict[int, _Window] = {}
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        for number, row in enumerate(csv.DictReader(file, _Window.__struct_fields__, "more columns"), start=1):
            if row["process"] == "":
                continue
            try:
                known = {name: value for name, value in row.items() if value is not None}
                window = msgspec.convert(known, _Window, strict=False)
            except msgspec.ValidationError as error:
                raise misfit(path, error, number) from None
            if rows.setdefault(int(window.start) // WINDOW_S, window) is not window:
                raise BadFile(path, "comes twice", row=number, field="start")
    return rows


def _read_dataset(path: Path) -> dict[str, Lengths]:
    windows = read_file(path, msgspec.json.Decoder(dict[str, dict[str, Any]]).decode, "JSON")
    found: dict[str, list[tuple[int, Histogram]]] = {}
    for start, fields in windows.items():
        if not (start.isascii() and start.isdigit() and len(start) < 11):
            raise BadFile(path, "is not a window's start", field=start[:40])
        for field, text in fields.items():
            if field not in FIELDS:
                raise BadFile(path, f"is none of {', '.join(FIELDS)}", field=f"{start}.{field[:40]}")
            histogram = _parse_histogram(path, f"{start}.{field}", field, text)
            if histogram is not None:
                found.setdefault(field, []).append((int(start), histogram))
    return {field: Lengths.of(entries) for field, entries in found.items()}


def _parse_histogram(path: Path, where: str, field: str, text: object) -> Histogram | None:
    if not (isinstance(text, str) and _PAIRS.fullmatch(text.strip())):
        raise BadFile(path, 'is not text of the form "{value: probability, ...}"', field=where)
    numbers = np.array(re.findall(_NUMBER, text), float).reshape(-1, 2)
    if not len(numbers):
        return None
    values, weights = numbers[np.argsort(numbers[:, 0], kind="stable")].T
    limit = 1 if field == "reason_ratio" else MOST_VALUE
    if values[0] < 0 or values[-1] > limit or (weights < 0).any() or not 0.5 < weights.sum() < 2:
        raise BadFile(path, "has values out of range, or probabilities that do not add up to 1", field=where)
    keep = weights > 0
    exact = field == "reason_ratio" or field.endswith("_count")
    return (Histogram.of if exact else merge_bins)(values[keep], weights[keep])
