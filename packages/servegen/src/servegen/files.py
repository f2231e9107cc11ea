"""Reads Parquet, JSON and YAML into checked values. What does not fit is one error that names file, row and field."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from servegen.errors import BadFile

T = TypeVar("T")
#: Rows that a Parquet file may have at most. A larger file is refused before it is read.
MOST_ROWS = 50_000_000
_PLACE = re.compile(r"(.*?)(?: - at `\$(?:\[(\d+)\])?\.?(.*?)`)?")


def one_line(error: object) -> str:
    """Return an error's text without line breaks."""
    return " ".join(str(error).split())


def misfit(path: Path, error: Exception, row: int | None = None) -> BadFile:
    """Return the error for values that msgspec refuses; its text ends with their row and field."""
    match = _PLACE.fullmatch(one_line(error))
    problem, place, field = match.groups() if match else (one_line(error), None, None)
    if row is not None and place is not None:  # The row itself is a list of columns.
        return BadFile(path, problem, row=row, field=f"column {int(place) + 1}")
    return BadFile(path, problem, row=row if place is None else int(place) + 1, field=field or None)


def read_file(path: Path, decode: Callable[[bytes], T], what: str) -> T:
    """Read a JSON or YAML file with a decoder of msgspec; `what` names the form of a good one."""
    try:
        return decode(path.read_bytes())
    except OSError as error:
        raise BadFile(path, f"cannot be read ({error.strerror})") from error
    except msgspec.ValidationError as error:
        raise misfit(path, error) from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadFile(path, f"not {what} ({one_line(error)})") from error


def read_lines(path: Path, decode: Callable[[bytes], T]) -> Iterator[tuple[int, T]]:
    """Yield the number and value of each line of a JSONL file that is not blank."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, decode(line)
    except OSError as error:
        raise BadFile(path, f"cannot be read ({error.strerror})") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise misfit(path, error, number) from None


def read_parquet(path: Path, columns: list[str] | None = None) -> pa.Table:
    """Read a Parquet file, or some of its columns."""
    try:
        with pq.ParquetFile(path) as file:
            rows, names = file.metadata.num_rows, file.schema_arrow.names
            if not 0 < rows <= MOST_ROWS:
                raise BadFile(path, "has no rows" if not rows else f"{rows} rows; at most {MOST_ROWS} are read")
            if missing := [name for name in columns or () if name not in names]:
                raise BadFile(path, f"has no such column; it has {', '.join(names)}", field=missing[0])
            table = file.read(columns=columns)
            table.validate(full=True)
            return table
    except BadFile:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BadFile(path, f"not a readable Parquet file ({one_line(error)})") from error


def read_rows(path: Path, kind: type[T]) -> list[T]:
    """Read the rows of a Parquet file as records of a msgspec type."""
    try:
        return msgspec.convert(read_parquet(path).to_pylist(), list[kind])  # type: ignore[valid-type]
    except (msgspec.ValidationError, ValueError) as error:
        raise error if isinstance(error, BadFile) else misfit(path, error) from error


def write_json(values: Any, path: Path) -> None:
    """Write values as JSON, with null for numbers that are not finite."""
    path.write_text(json.dumps(json.loads(msgspec.json.encode(values)), indent=1) + "\n")
