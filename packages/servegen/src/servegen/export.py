"""Writes requests as files: Parquet, JSONL, and the inputs of four load generators; reads the first two back."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from servegen.arrivals import client_key
from servegen.errors import BadFile, BadRequest
from servegen.files import read_lines, read_rows

FORMATS = ("parquet", "jsonl", "vllm", "mooncake", "aiperf", "guidellm")
#: Tokens of one block id, as the readers of these formats expect.
BLOCK_TOKENS = {"vllm": 16, "mooncake": 512, "aiperf": 512}
#: Rows of one Parquet row group.
GROUP_ROWS = 262_144
#: Version of the columns and fields, kept in the Parquet metadata and in docs/files.md.
FORMAT = 1
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


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
        if form == "parquet":
            count = _write_parquet(tables, partial, facts or {})
        else:
            count = _write_lines(tables, partial, form)
        if not count:
            raise BadRequest("the workload has no requests; check its rate and hours")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return count


def _write_parquet(tables: Iterable[pa.Table], path: Path, facts: dict[str, Any]) -> int:
    metadata = {b"servegen": json.dumps({"format": FORMAT, **facts}, sort_keys=True).encode()}
    groups = _regrouped(tables)
    first = next(groups, None)
    if first is None:
        return 0
    schema = first.schema.with_metadata(metadata)
    encoding = {name: "DELTA_BINARY_PACKED" for name in schema.names if pa.types.is_integer(schema.field(name).type)}
    settings: dict[str, Any] = {"use_dictionary": ["client"], "column_encoding": encoding}
    count = 0
    with pq.ParquetWriter(
        path, schema, compression="zstd", compression_level=1, write_statistics=["time_us"], **settings
    ) as writer:
        for table in itertools.chain([first], groups):
            writer.write_table(table.replace_schema_metadata(metadata), row_group_size=GROUP_ROWS)
            count += table.num_rows
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
            file.write(b"".join(encode(row_of(row)) + b"\n" for row in table.to_pylist()))
            count += table.num_rows
    return count


@dataclass
class BlockIds:
    """Gives each block of a prompt an id. Equal prefixes have equal ids; other blocks have ids of their own.

    A conversation's later turn begins with the earlier one, and a client's requests begin with its system prompt.
    """

    tokens: int
    used: int = 0
    known: dict[tuple[int, int, int], int] = field(default_factory=dict)

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
        if key not in self.known:
            self.known[key] = self.used
            self.used += 1
        return self.known[key]


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


class Request(msgspec.Struct, omit_defaults=True):
    """One request of a file; docs/files.md describes the columns."""

    time_us: Annotated[int, msgspec.Meta(ge=0)]
    client: str
    input_tokens: Count
    output_tokens: Count
    reasoning_tokens: Count | None = None
    text_tokens: Count | None = None
    session: Annotated[int, msgspec.Meta(ge=0)] | None = None
    turn: Count | None = None
    shared_tokens: Count | None = None


def read_requests(path: Path) -> pa.Table:
    """Read requests that this package wrote as Parquet or JSONL, sorted by time.

    Raises:
        BadFile: The file is malformed, or a value is missing or out of range.
    """
    if guess_format(path) == "parquet":
        rows = read_rows(path, Request)
    else:
        rows = [row for _, row in read_lines(path, msgspec.json.Decoder(Request).decode)]
    if not rows:
        raise BadFile(path, "has no requests")
    return pa.Table.from_pylist(msgspec.to_builtins(sorted(rows, key=lambda row: row.time_us)))
