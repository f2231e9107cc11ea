"""Patterns as Parquet files below a place that fsspec knows: a directory, `s3://BUCKET/PREFIX` and the like.

    project=<id>/month=<YYYY-MM>/run=<run>/window=<n>-<block>-<hash>.parquet

A file is written before the database says that it is there, under a name made from its content: one that was written
and never entered is overwritten by the same bytes when its piece comes again, and swept away if it never does.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from eroica.errors import UnavailableError, UsageError
from eroica.fleet.records import BlockColumns, Piece
from eroica.model.rows import NUMBERS

_ZSTD_LEVEL = 3


class Stored(NamedTuple):
    """A file of patterns that was written."""

    path: str
    bytes: int
    rows: int


class PatternStore:
    """Where patterns lie.

    Args:
        url: A directory or a URL that fsspec knows.

    Raises:
        UsageError: The URL's protocol is unknown.
        UnavailableError: Its library is missing.
    """

    def __init__(self, url: str) -> None:
        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
        except ImportError as error:
            raise UnavailableError(f"patterns cannot be kept at {url.partition(':')[0]}: {error}") from None
        except ValueError as error:
            raise UsageError(
                f"patterns cannot be kept there: {error}; name a directory or s3://BUCKET/PREFIX"
            ) from None
        self._local = self._files.protocol in ("file", ("file", "local"))
        if self._local:
            Path(self._root).mkdir(mode=0o700, parents=True, exist_ok=True)

    def save(self, project_id: int, piece: Piece, columns: BlockColumns) -> Stored:
        """Write a block; when this returns it is there.

        Raises:
            OSError: It cannot be written.
        """
        data = parquet_of(piece.facts.run, piece.facts.job, columns)
        block = columns.block
        month = time.strftime("%Y-%m", time.gmtime(piece.facts.began))
        path = (
            f"project={project_id}/month={month}/run={piece.facts.run}/"
            f"window={block.window_id}-{block.block}-{piece.name[:16]}.parquet"
        )
        if self._local:
            _write(Path(self._root) / path, data)
        else:
            self._files.pipe_file(f"{self._root}/{path}", data)  # an object appears whole
        return Stored(path, len(data), columns.key.size)

    def read(self, path: str) -> pa.Table:
        """The rows of one file."""
        return pq.read_table(io.BytesIO(self._files.cat_file(f"{self._root}/{path}")))

    def remove(self, path: str) -> None:
        """Remove a file; one that is gone already is no error."""
        try:
            self._files.rm_file(f"{self._root}/{path}")
        except FileNotFoundError:
            return

    def all(self) -> Iterator[tuple[str, float]]:
        """Every file: its path, and when it was written (0 where that is unknown)."""
        for whole, facts in self._files.find(self._root, detail=True).items():
            written = facts.get("mtime", facts.get("LastModified", 0.0))
            yield whole[len(self._root) + 1 :], written.timestamp() if hasattr(written, "timestamp") else float(written)


def _write(path: Path, data: bytes) -> None:
    """A file that appears whole, and is on disk when this returns."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{time.monotonic_ns()}")
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def parquet_of(run: str, job: str, columns: BlockColumns) -> bytes:
    """A block as a Parquet file: one row for each function on each worker, texts kept once."""
    block, rows = columns.block, columns.key.size
    keys, places = block.keys, block.places

    def chosen(values: list[Any], index: Any, kind: Any = None) -> pa.Array:
        names = pa.array(values, kind or pa.string())
        return pa.DictionaryArray.from_arrays(pa.array(index, pa.int32()), names)

    def always(value: Any) -> pa.Array:
        return chosen([value], np.zeros(rows, np.int32), pa.string() if isinstance(value, str) else pa.int32())

    table = pa.table(
        {
            "run": always(run),
            "job": always(job),
            "window_id": pa.array(np.full(rows, block.window_id, np.int32)),
            "purpose": always(block.purpose),
            "global_rank": pa.array(columns.ranks[columns.worker]),
            "local_rank": pa.array(columns.local_ranks[columns.worker]),
            "host": chosen([place.host for place in places], columns.worker),
            "device": chosen([place.device for place in places], columns.worker),
            "window_s": pa.array(columns.durations_s[columns.worker]),
            "iterations": pa.array(np.full(rows, block.iterations, np.int32)),
            "kind": chosen([key.kind for key in keys], columns.key),
            "function": chosen([key.name for key in keys], columns.key),
            "stack": chosen(["\n".join(key.stack) for key in keys], columns.key),
            "phase": chosen([key.phase for key in keys], columns.key),
            "thread": chosen([key.thread for key in keys], columns.key),
            "group": chosen([key.group for key in keys], columns.key),
            "resource": chosen(list(block.resources), columns.resource),
            **{name: pa.array(columns.numbers[at]) for at, name in enumerate(NUMBERS)},
        }
    )
    out = io.BytesIO()
    pq.write_table(table, out, compression="zstd", compression_level=_ZSTD_LEVEL)
    return out.getvalue()
