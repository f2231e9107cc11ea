"""Imports the authors' published layout: per client a CSV of arrivals and a JSON of histograms kept as text."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path

import numpy as np

from servegen.errors import BadFile
from servegen.pool import FIELDS, MOST_VALUE, POISSON, PROCESSES, Histogram, Lengths, Pool, merge_bins

WINDOW_S = 600

_CHUNK = re.compile(r"chunk-(.+)-trace\.csv")
_NUMBER = r"-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?"
_PAIR = re.compile(rf"\s*({_NUMBER})\s*:\s*({_NUMBER})\s*(?:,|$)")


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
    last = max(start for rows in windows.values() for start in rows)
    grid = (len(clients), last // WINDOW_S + 1)
    rate, cv, shape = np.zeros(grid), np.ones(grid), np.ones(grid)
    process = np.full(grid, POISSON, np.int8)
    entries: dict[str, list[Lengths | None]] = {}
    for c, client in enumerate(clients):
        for start, row in windows[client].items():
            w = start // WINDOW_S
            rate[c, w], cv[c, w], process[c, w], shape[c, w] = row
        dataset = folder / f"chunk-{client}-dataset.json"
        for field, lengths in (_read_dataset(dataset) if dataset.is_file() else {}).items():
            entries.setdefault(field, [None] * len(clients))[c] = lengths
    if "output_tokens" not in entries or not {"input_tokens", "text_tokens"} & set(entries):
        raise BadFile(folder, "no dataset file has output_tokens and input_tokens or text_tokens")
    histograms = {field: tuple(entries[field]) for field in FIELDS if field in entries}
    return Pool(clients, WINDOW_S, rate, cv, process, shape, histograms, notes={"source": "published layout"})


def _read_trace(path: Path) -> dict[int, tuple[float, float, int, float]]:
    rows: dict[int, tuple[float, float, int, float]] = {}
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        for number, row in enumerate(csv.reader(file), start=1):
            if len(row) != 6:
                raise BadFile(path, f"has {len(row)} columns, not start, rate, CV, process, shape, scale", row=number)
            if not row[3]:
                continue
            start = _finite(path, number, "start", row[0])
            if start < 0 or start % WINDOW_S or start > MOST_VALUE or int(start) in rows:
                raise BadFile(path, f"{row[0]} is no new multiple of {WINDOW_S}", row=number, field="start")
            if row[3] not in PROCESSES:
                raise BadFile(path, f"{row[3]!r} is none of {', '.join(PROCESSES)}", row=number, field="process")
            rate, cv, shape = (
                _positive(path, number, name, row[i]) for i, name in ((1, "rate"), (2, "cv"), (4, "shape"))
            )
            rows[int(start)] = rate, cv, PROCESSES.index(row[3]), shape
    return rows


def _finite(path: Path, row: int, field: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadFile(path, f"{text!r} is not a number", row=row, field=field)
    return value


def _positive(path: Path, row: int, field: str, text: str) -> float:
    value = _finite(path, row, field, text)
    if value <= 0:
        raise BadFile(path, f"{text} is not positive", row=row, field=field)
    return value


def _read_dataset(path: Path) -> dict[str, Lengths]:
    try:
        windows = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise BadFile(path, f"not JSON ({error})") from error
    if not isinstance(windows, dict):
        raise BadFile(path, "is not an object of windows")
    found: dict[str, list[tuple[int, Histogram]]] = {}
    for start, fields in windows.items():
        if not (start.isascii() and start.isdigit() and len(start) < 11 and isinstance(fields, dict)):
            raise BadFile(path, "is not a window's start with an object of fields", field=start[:40])
        for field, text in fields.items():
            if field not in FIELDS:
                raise BadFile(path, f"is none of {', '.join(FIELDS)}", field=f"{start}.{field[:40]}")
            histogram = _parse_histogram(path, f"{start}.{field}", field, text)
            if histogram is not None:
                found.setdefault(field, []).append((int(start), histogram))
    lengths = {}
    for field, entries in found.items():
        entries.sort(key=lambda entry: entry[0])
        lengths[field] = Lengths(np.array([s for s, _ in entries]), tuple(h for _, h in entries))
    return lengths


def _parse_histogram(path: Path, where: str, field: str, text: object) -> Histogram | None:
    body = text.strip() if isinstance(text, str) else ""
    if not (body.startswith("{") and body.endswith("}")):
        raise BadFile(path, 'is not text of the form "{value: probability, ...}"', field=where)
    body = body[1:-1].strip()
    pairs: list[tuple[float, float]] = []
    at = 0
    while at < len(body):
        match = _PAIR.match(body, at)
        if match is None:
            raise BadFile(path, f"{body[at : at + 30]!r} is not a pair of numbers", field=where)
        pairs.append((float(match[1]), float(match[2])))
        at = match.end()
    if not pairs:
        return None
    numbers = np.array(pairs)
    values, weights = numbers[np.argsort(numbers[:, 0], kind="stable")].T
    limit = 1 if field == "reason_ratio" else MOST_VALUE
    if values[0] < 0 or values[-1] > limit or (weights < 0).any() or not 0.5 < weights.sum() < 2:
        raise BadFile(path, "has values out of range, or probabilities that do not add up to 1", field=where)
    keep = weights > 0
    if field == "reason_ratio" or field.endswith("_count"):
        return Histogram.of(values[keep], weights[keep])
    return merge_bins(values[keep], weights[keep])
