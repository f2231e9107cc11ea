"""Reads logs of requests from CSV, JSONL or Parquet: BurstGPT, Azure, OpenAI-style access logs and others.

Times are kept as whole nanoseconds from the log's first request, so that no digit of a timestamp is lost.
"""

from __future__ import annotations

import csv
import datetime as dt
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from servegen.errors import BadFile, BadRequest
from servegen.files import read_lines, read_parquet

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
#: Digits of a fraction of a second that Python's own times do not hold.
_BEYOND_MICROSECONDS = re.compile(r"[.,]\d{6}(\d{1,3})")
#: Times above this (1973) count as times since 1970.
_LEAST_EPOCH_NS = 10**17
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class Log:
    """Requests of a log, sorted by time. Arrays have one entry per request."""

    clients: tuple[str, ...]  #: Names of the clients
    client: NDArray[np.int32]  #: Index of each request's client. int32
    time_ns: NDArray[np.int64]  #: Nanoseconds from the first request. int64
    input_tokens: NDArray[np.int64]  #: int64
    output_tokens: NDArray[np.int64]  #: int64; 0 for requests without an answer
    reasoning_tokens: NDArray[np.int64] | None  #: int64, or None if the log has none
    first_ns: int  #: The first request's time as the log has it: since 1970, or relative to a start of the log's own
    clock_ns: int  #: The step of the log's clock in nanoseconds
    notes: tuple[str, ...]  #: What was decided while reading

    @property
    def origin(self) -> str:
        """Return the first request's ISO time, or "" if the log's times are relative."""
        return iso_time(self.first_ns)


def iso_time(time_ns: int) -> str:
    """Return the ISO form of a time since 1970, or "" for a relative time."""
    return (_EPOCH + dt.timedelta(microseconds=time_ns // 1000)).isoformat() if time_ns > _LEAST_EPOCH_NS else ""


@dataclass(frozen=True)
class LogOptions:
    """How to read a log."""

    client: str = ""  #: Column of the client; "" chooses a known one
    time: str = ""  #: Column of the time; "" chooses a known one
    #: Unit of numeric times: s, ms, us or ns; "" decides by the column's name or the size of its values
    time_unit: str = ""
    start_s: float = 0.0  #: Leave out requests before this second of the log, as a ramp
    end_s: float = float("inf")  #: Leave out requests from this second on
    keep_failed: bool = False  #: Keep requests with 0 output tokens or an HTTP status of 400 and more
    clock_s: float | None = None  #: Step of the log's clock in seconds; None finds it


@dataclass(frozen=True)
class _Columns:
    """A log's columns, and the row or line of the file that each value stands in."""

    path: Path
    values: dict[str, list[Any]]
    lines: Sequence[int]

    def choose(self, known: Sequence[str], wanted: str, what: str = "") -> str:
        """Return the wanted column, or the first known one; "" if there is none and `what` is empty."""
        names = {name.lower(): name for name in self.values}
        if wanted and wanted.lower() not in names:
            raise BadRequest(f"{self.path}: no column {wanted!r}; it has {', '.join(self.values)}")
        found = next((names[name] for name in ([wanted.lower()] if wanted else known) if name in names), "")
        if what and not found:
            raise BadRequest(f"{self.path}: no column of {what} is known; it has {', '.join(self.values) or 'none'}")
        return found

    def numbers(self, name: str, convert: Callable[[Any], int], what: str) -> NDArray[np.int64]:
        """Return a column's values as whole numbers."""
        result = np.empty(len(self.lines), np.int64)
        for i, value in enumerate(self.values[name]):
            try:
                result[i] = convert(value)
            except (TypeError, ValueError, ArithmeticError):
                problem = f"{str(value)[:40]!r} is not {what}"
                raise BadFile(self.path, problem, row=self.lines[i], field=name) from None
        return result


def read_log(path: Path, options: LogOptions | None = None) -> Log:
    """Read a log.

    Raises:
        BadFile: The file is malformed; the error names row and field.
        BadRequest: A needed column or the unit of time is not clear; the error names the option that decides it.
    """
    options = options or LogOptions()
    columns = _read_columns(path)
    notes: list[str] = []
    times = _times(columns, options)
    tokens = "a number of tokens"
    inputs = columns.numbers(columns.choose(INPUT_COLUMNS, "", "input tokens"), _tokens, tokens)
    outputs = columns.numbers(columns.choose(OUTPUT_COLUMNS, "", "output tokens"), _tokens, tokens)
    thought = columns.choose(REASONING_COLUMNS, "")
    reasoning = columns.numbers(thought, lambda value: _tokens(value or 0), tokens) if thought else None
    clients = _clients(columns, options.client, notes)
    failed = outputs == 0
    if status := columns.choose(STATUS_COLUMNS, ""):
        failed |= np.array([str(value).isdigit() and int(value) >= 400 for value in columns.values[status]])
    if failed.any():
        fate = "kept" if options.keep_failed else "left out (--keep-failed keeps them)"
        notes.append(f"{int(failed.sum())} of {len(failed)} requests have no output tokens or failed: {fate}")
    if (back := int((np.diff(times) < 0).sum())) > 0:
        notes.append(f"{back} rows were earlier than the row before; the log was sorted")
    since = (times - times.min()) / 1e9
    rows = np.flatnonzero((since >= options.start_s) & (since < options.end_s) & (options.keep_failed | ~failed))
    if not len(rows):
        raise BadRequest(f"{path}: no request is left; check --from, --to and --keep-failed")
    rows = rows[np.argsort(times[rows], kind="stable")]
    clock = int(options.clock_s * 1e9) if options.clock_s else _clock_step(times[rows])
    if clock >= 10**5:
        notes.append(f"the log's clock has steps of {clock / 1e9:g} s; shorter gaps are treated as intervals")
    names, index = np.unique(clients[rows], return_inverse=True)
    return Log(
        clients=tuple(map(str, names)),
        client=index.astype(np.int32),
        time_ns=times[rows] - times[rows[0]],
        input_tokens=inputs[rows],
        output_tokens=outputs[rows],
        reasoning_tokens=None if reasoning is None else reasoning[rows],
        first_ns=int(times[rows[0]]),
        clock_ns=clock,
        notes=tuple(notes),
    )


def _clock_step(times_ns: NDArray[np.int64]) -> int:
    """Return the coarsest step that at least 99.9 % of the times are multiples of."""
    return next(step for step in CLOCK_STEPS_NS if (times_ns % step == 0).mean() >= 0.999)


def _times(columns: _Columns, options: LogOptions) -> NDArray[np.int64]:
    name = columns.choose(TIME_COLUMNS, options.time, "time")
    if options.time_unit not in ("", *UNITS_NS):
        raise BadRequest(f"time unit {options.time_unit!r} is not known; use s, ms, us or ns")
    suffix = name.lower().rpartition("_")[2]
    unit = options.time_unit or (suffix if suffix in UNITS_NS else "")
    times = columns.numbers(name, lambda value: _time_ns(value, unit), "a time")
    # Mooncake and AIPerf mean milliseconds, vLLM and guidellm seconds, and all call the columns alike.
    if not unit and name.lower() == "timestamp" and "input_length" in columns.values and times[0] < _LEAST_EPOCH_NS:
        raise BadRequest(f"{columns.path}: {name!r} may be seconds or milliseconds; say --time-unit s or ms")
    return times


def _time_ns(value: Any, unit: str) -> int:
    """Return a time in nanoseconds; numbers without a unit are seconds, or since 1970 if they are large enough."""
    if isinstance(value, bool):
        raise ValueError(value)
    try:
        number = Decimal(str(value).strip())
    except InvalidOperation:
        return _iso_ns(str(value).strip())
    if unit in ("", "s"):
        unit = next((u for u in ("ns", "us", "ms") if number * UNITS_NS[u] >= _LEAST_EPOCH_NS), "s")
    result = int(number * UNITS_NS[unit])
    if not 0 <= result < 2**62:
        raise ValueError(value)
    return result


def _iso_ns(text: str) -> int:
    when = dt.datetime.fromisoformat(text.replace(" +", "+"))
    since = (when if when.tzinfo else when.replace(tzinfo=dt.UTC)) - _EPOCH
    beyond = _BEYOND_MICROSECONDS.search(text)
    return since // dt.timedelta(microseconds=1) * 1000 + int((beyond[1] if beyond else "").ljust(3, "0"))


def _tokens(value: Any) -> int:
    number = float(value)
    if isinstance(value, bool) or not 0 <= number < 2**31 or number != int(number):
        raise ValueError(value)
    return int(number)


def _clients(columns: _Columns, wanted: str, notes: list[str]) -> NDArray[np.str_]:
    chosen = columns.choose(CLIENT_COLUMNS, wanted)
    names = [chosen] if chosen else [name for kind in ("model", "log type") if (name := columns.choose((kind,), ""))]
    if not names:
        notes.append('no column tells clients apart: all are "all"; --client COLUMN names one')
        return np.full(len(columns.lines), "all")
    notes.append(f"clients are told apart by {' and '.join(names)}")
    rows = zip(*(columns.values[name] for name in names), strict=True)
    return np.array([" / ".join("" if value is None else str(value) for value in row) or "unknown" for row in rows])


def _read_columns(path: Path) -> _Columns:
    suffix = path.suffix.lower()
    if suffix in (".parquet", ".pq"):
        table = read_parquet(path).flatten().flatten()
        return _Columns(path, {n: _plain(table[n]) for n in table.column_names}, range(1, table.num_rows + 1))
    columns: dict[str, list[Any]] = {}
    lines: list[int] = []
    for line, row in _csv_rows(path) if suffix in (".csv", ".tsv") else _json_rows(path):
        for name in [name for name in row if name not in columns]:
            columns[name] = [None] * len(lines)
        for name, column in columns.items():
            column.append(row.get(name))
        lines.append(line)
    if not lines:
        raise BadFile(path, "has no rows")
    return _Columns(path, columns, lines)


def _plain(column: pa.ChunkedArray) -> list[Any]:
    return list((column.cast(pa.string()) if pa.types.is_timestamp(column.type) else column).to_pylist())


def _csv_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
            reader = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
            header = [name.strip() for name in next(reader, [])]
            repeated = [name for name in header if not name or header.count(name) > 1]
            if not header or repeated:
                problem = "the first row must name the columns, each once"
                raise BadFile(path, problem, row=1, field=repeated[0] if repeated else None)
            for row in reader:
                if row and len(row) != len(header):
                    raise BadFile(path, f"has {len(row)} fields, the header has {len(header)}", row=reader.line_num)
                if row:
                    yield reader.line_num, dict(zip(header, row, strict=True))
    except OSError as error:
        raise BadFile(path, f"cannot be read ({error.strerror})") from error
    except csv.Error as error:
        raise BadFile(path, f"not CSV ({error})", row=reader.line_num) from error


def _json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, row in read_lines(path, msgspec.json.Decoder().decode):
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
