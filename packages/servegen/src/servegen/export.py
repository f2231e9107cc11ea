"""Writes requests as files: Parquet, JSONL, and the inputs of four load generators; reads the first two back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from servegen.arrivals import client_key
from servegen.errors import BadFile, BadRequest

FORMATS = ("parquet", "jsonl", "vllm", "mooncake", "aiperf", "guidellm")
#: Tokens of one block id, as the readers of these formats expect.
BLOCK_TOKENS = {"vllm": 16, "mooncake": 512, "aiperf": 512}
#: Rows of one Parquet row group.
GROUP_ROWS = 262_144
#: Version of the columns and fields, kept in the Parquet metadata and in docs/files.md.
FORMAT = 1


def guess_format(path: Path) -> str:
    """Return the format that a file's name tells: parquet or jsonl."""
    return "parquet" if path.suffix in (".parquet", ".pq") else "jsonl"


def write_requests(tables: Iterable[pa.Table], path: Path, form: str, facts: dict[str, Any] | None = None) -> int:
    """Write requests to a file and return their number. A failure leaves no file behind.

    Args:
        tables: Requests in order of time, as `compose.stream` yields them.
        path: The file.
        form: One of FORMATS.
        facts: Kept in the metadata of a Parquet file.
    """
    if form not in FORMATS:
        raise BadRequest(f"format {form!r} is not known; use {', '.join(FORMATS)}")
    partial = path.with_name(path.name + ".partial")
    try:
        count = (
            _write_parquet(tables, partial, facts or {}) if form == "parquet" else _write_lines(tables, partial, form)
        )
        partial.replace(path)
    except OSError as error:
        raise BadRequest(f"{path} cannot be written ({error.strerror})") from error
    finally:
        partial.unlink(missing_ok=True)
    return count


def _write_parquet(tables: Iterable[pa.Table], path: Path, facts: dict[str, Any]) -> int:
    metadata = {b"servegen": json.dumps({"format": FORMAT, **facts}, sort_keys=True).encode()}
    writer: pq.ParquetWriter | None = None
    count = 0
    try:
        for table in _regrouped(tables):
            if writer is None:
                schema = table.schema.with_metadata(metadata)
                plain = [name for name in table.schema.names if name != "client"]
                writer = pq.ParquetWriter(
                    path,
                    schema,
                    compression="zstd",
                    compression_level=1,
                    use_dictionary=["client"],
                    column_encoding={
                        name: "DELTA_BINARY_PACKED" for name in plain if pa.types.is_integer(schema.field(name).type)
                    },
                    write_statistics=["time_us"],
                )
            writer.write_table(table.replace_schema_metadata(metadata), row_group_size=GROUP_ROWS)
            count += table.num_rows
    finally:
        if writer is not None:
            writer.close()
    if writer is None:
        raise BadRequest("the workload has no requests; check its rate and hours")
    return count


def _regrouped(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield tables of GROUP_ROWS rows, so that the file does not depend on how blocks were cut."""
    held: list[pa.Table] = []
    rows = 0
    for table in tables:
        held.append(table)
        rows += table.num_rows
        while rows >= GROUP_ROWS:
            joined = pa.concat_tables(held).combine_chunks()
            yield joined.slice(0, GROUP_ROWS)
            held, rows = [joined.slice(GROUP_ROWS)], rows - GROUP_ROWS
    if rows:
        yield pa.concat_tables(held).combine_chunks()


def _write_lines(tables: Iterable[pa.Table], path: Path, form: str) -> int:
    row_of = _row_writer(form)
    encode = msgspec.json.Encoder().encode
    count = 0
    with path.open("wb") as file:
        for table in tables:
            columns = {name: table[name].to_pylist() for name in table.column_names}
            names = list(columns)
            rows = zip(*columns.values(), strict=True)
            file.write(b"".join(encode(row_of(dict(zip(names, row, strict=True)))) + b"\n" for row in rows))
            count += table.num_rows
    return count


@dataclass
class BlockIds:
    """Gives each block of a prompt an id. Equal prefixes have equal ids; other blocks have ids of their own.

    A conversation's later turn begins with the earlier one, and a client's requests begin with its system prompt.
    """

    tokens: int
    used: int = 0

    def __post_init__(self) -> None:
        self._known: dict[tuple[int, int, int], int] = {}

    def of(self, row: dict[str, Any]) -> list[int]:
        """Return ceil(input_tokens / tokens) ids."""
        size = -(-row["input_tokens"] // self.tokens)
        shared = min(row.get("shared_tokens", 0) // self.tokens, size)
        ids = [self._id((0, client_key(row["client"]), b)) for b in range(shared)]
        session = row.get("session")
        if session is None:
            first = self.used
            self.used += size - shared
            return ids + list(range(first, self.used))
        # The last block of a turn may be filled by the next turn, so only whole blocks keep their id.
        whole = row["input_tokens"] // self.tokens
        ids += [self._id((1, session, b)) for b in range(shared, whole)]
        if size > max(whole, shared):
            ids.append(self.used)
            self.used += 1
        return ids

    def _id(self, key: tuple[int, int, int]) -> int:
        if key not in self._known:
            self._known[key] = self.used
            self.used += 1
        return self._known[key]


def _row_writer(form: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return the function from a request to a line's object."""
    if form == "jsonl":
        return lambda row: row
    ids = BlockIds(BLOCK_TOKENS[form]) if form in BLOCK_TOKENS else None

    def written(row: dict[str, Any]) -> dict[str, Any]:
        us = row["time_us"]
        time = {"mooncake": us // 1000, "aiperf": us / 1000}.get(form, us / 1e6)
        line = {"timestamp": time, "input_length": row["input_tokens"], "output_length": row["output_tokens"]}
        return line if ids is None else {**line, "hash_ids": ids.of(row)}

    return written


_INTEGERS = (
    "time_us",
    "input_tokens",
    "output_tokens",
    "reasoning_tokens",
    "text_tokens",
    "session",
    "turn",
    "shared_tokens",
)


def read_requests(path: Path) -> pa.Table:
    """Read requests that this package wrote as Parquet or JSONL, sorted by time.

    Raises:
        BadFile: The file is malformed, or a value is missing or out of range.
    """
    try:
        table = pq.read_table(path) if guess_format(path) == "parquet" else _read_lines(path)
        table.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise BadFile(path, f"not readable ({' '.join(str(error).split())})") from error
    for name in ("time_us", "client", "input_tokens", "output_tokens"):
        if name not in table.column_names:
            raise BadFile(path, "has no such column; `servegen generate` writes it", field=name)
    if not table.num_rows:
        raise BadFile(path, "has no requests")
    for name in _INTEGERS:
        if name in table.column_names:
            _check_integers(path, name, table[name])
    client = table["client"].cast(pa.string())
    table = table.set_column(table.column_names.index("client"), "client", client)
    return table.take(np.argsort(table["time_us"].to_numpy(), kind="stable"))


def _check_integers(path: Path, name: str, column: pa.ChunkedArray) -> None:
    if not pa.types.is_integer(column.type):
        raise BadFile(path, f"is {column.type}, not a whole number", field=name)
    if column.null_count:
        raise BadFile(path, "is empty", row=int(np.flatnonzero(column.is_null())[0]) + 1, field=name)
    values = column.to_numpy()
    if len(bad := np.flatnonzero((values < 0) | ((values > 2**31 - 1) & (name not in ("time_us", "session"))))):
        raise BadFile(path, f"{values[bad[0]]} is out of range", row=int(bad[0]) + 1, field=name)


class _Request(msgspec.Struct, omit_defaults=True):
    time_us: int
    client: str
    input_tokens: int
    output_tokens: int
    reasoning_tokens: int | None = None
    text_tokens: int | None = None
    session: int | None = None
    turn: int | None = None
    shared_tokens: int | None = None


def _read_lines(path: Path) -> pa.Table:
    decode = msgspec.json.Decoder(_Request).decode
    rows: list[_Request] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                rows.append(decode(line))
            except (msgspec.DecodeError, RecursionError) as error:
                problem, _, field = str(error).partition(" - at `")
                raise BadFile(path, problem, row=number, field=field.strip("`$.") or None) from None
    first: Sequence[str] = [name for name in _Request.__struct_fields__ if rows and getattr(rows[0], name) is not None]
    return pa.table({name: pa.array([getattr(row, name) for row in rows]) for name in first})
