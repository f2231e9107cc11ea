"""Reads logs of requests from CSV, JSONL or Parquet: BurstGPT, Azure, OpenAI-style access logs and others.

Times are kept as whole nanoseconds from the log's first request, so that no digit of a timestamp is lost.
"""

from __future__ import annotations

import csv
import datetime as dt
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from servegen.errors import BadFile, BadRequest

#: Column names that are known, in order of preference; nested JSON fields are joined by dots.
TIME_COLUMNS = (
    "time_us", "time_ms", "time_s", "timestamp_ms", "timestamp", "timestamp_start_unix_ms", "time", "created_at",
    "created", "start_time", "request_time", "arrival_time", "arrived_at", "@timestamp", "ts", "date",
)  # fmt: skip
CLIENT_COLUMNS = (
    "client", "client_id", "user", "user_id", "api_key", "api_key_id", "tenant", "customer", "organization",
    "project_id", "session_id", "session id", "conversation_id", "session",
)  # fmt: skip
INPUT_COLUMNS = (
    "input_tokens", "usage.prompt_tokens", "usage.input_tokens", "prompt_tokens", "request tokens", "contexttokens",
    "input_length", "num_prefill_tokens", "response.usage.prompt_tokens",
)  # fmt: skip
OUTPUT_COLUMNS = (
    "output_tokens", "usage.completion_tokens", "usage.output_tokens", "completion_tokens", "response tokens",
    "generatedtokens", "output_length", "num_decode_tokens", "response.usage.completion_tokens",
)  # fmt: skip
REASONING_COLUMNS = (
    "reasoning_tokens", "usage.completion_tokens_details.reasoning_tokens",
    "usage.output_tokens_details.reasoning_tokens", "response.usage.completion_tokens_details.reasoning_tokens",
)  # fmt: skip
STATUS_COLUMNS = ("status", "status_code", "http_status", "response.status")
UNITS_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
#: Clock steps that a log is tried for, in nanoseconds, coarsest first.
CLOCK_STEPS_NS = (10**9, 10**8, 10**7, 10**6, 10**5, 10**4, 10**3, 100, 10, 1)
_ISO = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9})\d*)?\s*(Z|[+-]\d\d:?\d\d)?")
#: Times above this (1973) count as times since 1970.
_LEAST_EPOCH_NS = 10**17
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class Log:
    """Requests of a log, sorted by time. Arrays have one entry per request.

    Attributes:
        clients: Names of the clients.
        client: Index of each request's client. int32
        time_ns: Nanoseconds from the first request. int64
        input_tokens: int64
        output_tokens: int64; 0 for requests without an answer.
        reasoning_tokens: int64, or None if the log has none.
        first_ns: The first request's time as the log has it: since 1970, or relative to a start of the log's own.
        clock_ns: The step of the log's clock in nanoseconds.
        notes: What was decided while reading.
    """

    clients: tuple[str, ...]
    client: NDArray[np.int32]
    time_ns: NDArray[np.int64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    reasoning_tokens: NDArray[np.int64] | None
    first_ns: int
    clock_ns: int
    notes: tuple[str, ...]

    @property
    def origin(self) -> str:
        """Return the first request's ISO time, or "" if the log's times are relative."""
        return iso_time(self.first_ns)


def iso_time(time_ns: int) -> str:
    """Return the ISO form of a time since 1970, or "" for a relative time."""
    return (_EPOCH + dt.timedelta(microseconds=time_ns // 1000)).isoformat() if time_ns > _LEAST_EPOCH_NS else ""


@dataclass(frozen=True)
class LogOptions:
    """How to read a log.

    Attributes:
        client: Column of the client; "" chooses a known one.
        time: Column of the time; "" chooses a known one.
        time_unit: Unit of numeric times: s, ms, us or ns; "" decides by the column's name or the size of its values.
        start_s: Leave out requests before this second of the log, as a ramp.
        end_s: Leave out requests from this second on.
        keep_failed: Keep requests with 0 output tokens or an HTTP status of 400 and more.
        clock_s: Step of the log's clock in seconds; None finds it.
    """

    client: str = ""
    time: str = ""
    time_unit: str = ""
    start_s: float = 0.0
    end_s: float = float("inf")
    keep_failed: bool = False
    clock_s: float | None = None


def read_log(path: Path, options: LogOptions | None = None) -> Log:
    """Read a log.

    Raises:
        BadFile: The file is malformed; the error names row and field.
        BadRequest: A needed column or the unit of time is not clear; the error names the option that decides it.
    """
    options = options or LogOptions()
    if not path.is_file():
        raise BadFile(path, "no such file")
    columns = _read_columns(path)
    lines = columns.pop("", [])
    names = {name.lower(): name for name in columns}
    notes: list[str] = []
    time_name = _choose(path, names, TIME_COLUMNS, options.time, "time")
    unit = _unit_of(time_name, names, options.time_unit)
    times = _times(path, time_name, columns[time_name], lines, unit)
    inputs = _tokens(path, columns, _choose(path, names, INPUT_COLUMNS, "", "input tokens"), lines)
    outputs = _tokens(path, columns, _choose(path, names, OUTPUT_COLUMNS, "", "output tokens"), lines)
    reasoning_name = next((names[name] for name in REASONING_COLUMNS if name in names), None)
    reasoning = None if reasoning_name is None else _tokens(path, columns, reasoning_name, lines, empty=0)
    clients = _clients(path, columns, names, options.client, notes)
    keep = np.ones(len(times), bool)
    failed = outputs == 0
    status = next((names[name] for name in STATUS_COLUMNS if name in names), None)
    if status is not None:
        failed |= np.array([str(value).isdigit() and int(value) >= 400 for value in columns[status]])
    if failed.any():
        fate = "kept" if options.keep_failed else "left out (--keep-failed keeps them)"
        notes.append(f"{int(failed.sum())} of {len(failed)} requests have no output tokens or failed: {fate}")
        keep &= options.keep_failed | ~failed
    if (back := int((np.diff(times) < 0).sum())) > 0:
        notes.append(f"{back} rows were earlier than the row before; the log was sorted")
    since = times - times.min()
    keep &= (since >= options.start_s * 1e9) & (since < min(options.end_s * 1e9, 2.0**63))
    if not keep.any():
        raise BadRequest(f"{path}: no request is left; check --from, --to and --keep-failed")
    rows = np.flatnonzero(keep)
    rows = rows[np.argsort(times[rows], kind="stable")]
    first = int(times[rows[0]])
    unique, index = np.unique(clients[rows], return_inverse=True)
    log = Log(
        tuple(str(name) for name in unique),
        index.astype(np.int32),
        times[rows] - first,
        inputs[rows],
        outputs[rows],
        None if reasoning is None else reasoning[rows],
        first,
        1,
        (),
    )
    clock = int(options.clock_s * 1e9) if options.clock_s else _clock_step(times[rows])
    if clock >= 10**5:
        notes.append(f"the log's clock has steps of {clock / 1e9:g} s; shorter gaps are treated as intervals")
    return replace(log, clock_ns=clock, notes=tuple(notes))


def _clock_step(times_ns: NDArray[np.int64]) -> int:
    """Return the coarsest step that at least 99.9 % of the times are multiples of."""
    return next(step for step in CLOCK_STEPS_NS if (times_ns % step == 0).mean() >= 0.999)


def _choose(path: Path, names: Mapping[str, str], known: Sequence[str], wanted: str, what: str) -> str:
    if wanted:
        if wanted.lower() not in names:
            raise BadRequest(f"{path}: no column {wanted!r}; it has {', '.join(names.values())}")
        return names[wanted.lower()]
    for name in known:
        if name in names:
            return names[name]
    raise BadRequest(f"{path}: no column of {what} is known; it has {', '.join(names.values()) or 'none'}")


def _unit_of(name: str, names: Mapping[str, str], wanted: str) -> str:
    if wanted:
        if wanted not in UNITS_NS:
            raise BadRequest(f"time unit {wanted!r} is not known; use s, ms, us or ns")
        return wanted
    for unit in ("ms", "us", "ns"):
        if name.lower().endswith(f"_{unit}"):
            return unit
    if name.lower() == "timestamp" and "input_length" in names:
        return "?"  # Mooncake and AIPerf mean milliseconds, vLLM and guidellm seconds.
    return "s"


def _times(path: Path, name: str, values: Sequence[Any], lines: Sequence[int], unit: str) -> NDArray[np.int64]:
    result = np.empty(len(values), np.int64)
    for i, value in enumerate(values):
        try:
            result[i] = _time_ns(value, unit)
        except (ValueError, OverflowError, InvalidOperation, TypeError):
            raise BadFile(path, f"{str(value)[:40]!r} is not a time", row=_row(lines, i), field=name) from None
        except _UnknownUnit:
            raise BadRequest(f"{path}: {name!r} may be seconds or milliseconds; say --time-unit s or ms") from None
    return result


class _UnknownUnit(Exception):
    """A numeric time whose unit cannot be known."""


def _time_ns(value: Any, unit: str) -> int:
    if isinstance(value, dt.datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
        return (aware - _EPOCH) // dt.timedelta(microseconds=1) * 1000
    if isinstance(value, str) and (match := _ISO.fullmatch(value.strip())):
        day, clock, fraction, zone = match.groups()
        zone = "+00:00" if zone in (None, "Z") else zone
        whole = dt.datetime.fromisoformat(f"{day}T{clock}{zone if ':' in zone else zone[:3] + ':' + zone[3:]}")
        return int((whole - _EPOCH) // dt.timedelta(seconds=1)) * 10**9 + int((fraction or "0").ljust(9, "0"))
    if isinstance(value, bool) or value is None:
        raise ValueError(value)
    number = Decimal(value) if isinstance(value, int) else Decimal(str(value).strip())
    if not number.is_finite() or number < 0:
        raise ValueError(value)
    # Numbers of this size are times since 1970, and their digits tell the unit.
    for limit, size in ((Decimal(10) ** 17, "ns"), (Decimal(10) ** 14, "us"), (Decimal(10) ** 11, "ms")):
        if unit in ("s", "?") and number >= limit:
            return int(number * UNITS_NS[size])
    if unit == "?":
        raise _UnknownUnit
    result = int(number * UNITS_NS[unit])
    if result >= 2**62:
        raise ValueError(value)
    return result


def _tokens(
    path: Path, columns: Mapping[str, Sequence[Any]], name: str, lines: Sequence[int], empty: int | None = None
) -> NDArray[np.int64]:
    result = np.empty(len(columns[name]), np.int64)
    for i, value in enumerate(columns[name]):
        try:
            number = empty if value in (None, "") and empty is not None else float(value)
            if number is None or isinstance(value, bool) or not 0 <= number < 2**31 or number != int(number):
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            problem = f"{str(value)[:40]!r} is not a number of tokens"
            raise BadFile(path, problem, row=_row(lines, i), field=name) from None
        result[i] = int(number)
    return result


def _clients(
    path: Path, columns: Mapping[str, Sequence[Any]], names: Mapping[str, str], wanted: str, notes: list[str]
) -> NDArray[np.str_]:
    chosen = [_choose(path, names, (), wanted, "clients")] if wanted else []
    if not chosen:
        chosen = [names[name] for name in CLIENT_COLUMNS if name in names][:1]
        if not chosen:
            chosen = [names[name] for name in ("model", "log type") if name in names]
        found = f"clients are told apart by {' and '.join(chosen)}"
        notes.append(found if chosen else 'no column tells clients apart: all are "all"; --client COLUMN names one')
    if not chosen:
        return np.full(len(next(iter(columns.values()))), "all")
    rows = zip(*(columns[name] for name in chosen), strict=True)
    return np.array([" / ".join("" if value is None else str(value) for value in row) or "unknown" for row in rows])


def _row(lines: Sequence[int], index: int) -> int:
    return lines[index] if len(lines) else index + 1


def _read_columns(path: Path) -> dict[str, list[Any]]:
    """Return the file's columns; for text files, "" holds the line number of each row."""
    suffix = path.suffix.lower()
    if suffix in (".parquet", ".pq"):
        return _read_parquet(path)
    rows = _csv_rows(path) if suffix in (".csv", ".tsv") else _json_rows(path)
    columns: dict[str, list[Any]] = {"": []}
    count = 0
    for line, row in rows:
        for name in [name for name in row if name not in columns]:
            columns[name] = [None] * count
        for name, column in columns.items():
            column.append(line if name == "" else row.get(name))
        count += 1
    if not count:
        raise BadFile(path, "has no rows")
    return columns


def _read_parquet(path: Path) -> dict[str, list[Any]]:
    try:
        table = pq.read_table(path).flatten().flatten()
        table.validate(full=True)
        columns = {name: _plain(table[name]) for name in table.column_names}
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BadFile(path, f"not a readable Parquet file ({' '.join(str(error).split())})") from error
    if not table.num_rows:
        raise BadFile(path, "has no rows")
    return columns


def _plain(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        scale = UNITS_NS[column.type.unit]
        return [None if v is None else str(Decimal(v * scale) / 10**9) for v in column.cast(pa.int64()).to_pylist()]
    return list(column.to_pylist())


def _csv_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        reader = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
        try:
            header = [name.strip() for name in next(reader, [])]
            repeated = [name for name, count in Counter(header).items() if count > 1 or not name]
            if not header or repeated:
                raise BadFile(
                    path,
                    "the first row must name the columns, each once",
                    row=1,
                    field=repeated[0] if repeated else None,
                )
            for row in reader:
                if not row:
                    continue
                if len(row) != len(header):
                    raise BadFile(path, f"has {len(row)} fields, the header has {len(header)}", row=reader.line_num)
                yield reader.line_num, dict(zip(header, row, strict=True))
        except csv.Error as error:
            raise BadFile(path, f"not CSV ({error})", row=reader.line_num) from error


def _json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    decode = msgspec.json.Decoder().decode
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = decode(line)
            except (msgspec.DecodeError, RecursionError) as error:
                raise BadFile(path, f"not JSON ({error})", row=number) from None
            if not isinstance(row, dict):
                raise BadFile(path, "is not a JSON object", row=number)
            yield number, dict(_flat(row))


def _flat(row: Mapping[str, Any], prefix: str = "", depth: int = 4) -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, dict):
            if depth:
                yield from _flat(value, f"{prefix}{name}.", depth - 1)
        elif name:
            yield f"{prefix}{name}", value
