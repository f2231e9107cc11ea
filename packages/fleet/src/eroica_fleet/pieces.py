"""From a piece to its rows, and patterns to Parquet files below a place that fsspec knows: a directory, `s3://BUCKET/PREFIX`.

    project=<id>/month=<YYYY-MM>/run=<run>/window=<n>-<block>-<hash>.parquet

A file is written before the database says that it is there, under a name made from its content: one that was written
and never entered is overwritten by the same bytes when its piece comes again, and swept away if it never does.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import fsspec
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa
from eroica.errors import InputError, UnavailableError, UsageError
from eroica.fleet.records import MAX_BODY_BYTES, PatternBlock, Piece, Place, StandstillBody, VerdictBody
from eroica.model.rows import NUMBERS
from eroica.model.verdict import Finding
from eroica.model.words import clean
from eroica.wire.codec import UNDECODABLE

from eroica_fleet.database import culprits, findings, pattern_files, runs, standstills, verdicts

_ZSTD_LEVEL = 3
Record = TypeVar("Record")


def unpack(data: bytes) -> bytes:
    """The MessagePack in a body; nothing is assumed about the bytes.

    Raises:
        InputError: They are no body, or more than `MAX_BODY_BYTES` when unpacked.
    """
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(data, MAX_BODY_BYTES)
    except UNDECODABLE as error:
        raise InputError(f"these {len(data)} bytes are no body: {error}") from error
    if unpacker.unconsumed_tail:
        raise InputError(f"a body of more than {MAX_BODY_BYTES} bytes refused")
    return text


def decode_body(text: bytes, kind: type[Record]) -> Record:
    """What is in an unpacked body.

    Raises:
        InputError: It is no such record.
    """
    try:
        return msgspec.msgpack.decode(text, type=kind)
    except UNDECODABLE as error:
        raise InputError(f"these {len(text)} bytes are no {kind.__name__}: {error}") from error


class BlockColumns(msgspec.Struct, frozen=True, kw_only=True):
    """A `PatternBlock` whose columns were checked: shapes as there, NumPy arrays."""

    block: PatternBlock
    ranks: Any
    local_ranks: Any
    durations_s: Any
    key: Any
    worker: Any
    numbers: Any
    resource: Any


def columns_of(block: PatternBlock) -> BlockColumns:
    """The columns of a block.

    Raises:
        InputError: They do not fit together.
    """
    try:
        columns = BlockColumns(
            block=block,
            ranks=np.frombuffer(block.ranks, "<i4"),
            local_ranks=np.frombuffer(block.local_ranks, "<i4"),
            durations_s=np.frombuffer(block.durations_s, "<f8"),
            key=np.frombuffer(block.key, "<i4"),
            worker=np.frombuffer(block.worker, "<i4"),
            numbers=np.frombuffer(block.numbers, "<f4").reshape(len(NUMBERS), -1),
            resource=np.frombuffer(block.resource, "<i4"),
        )
    except ValueError as error:
        raise InputError(f"a block of patterns is damaged: {error}") from error
    workers, rows = len(block.places), columns.key.size
    per_worker = {columns.ranks.size, columns.local_ranks.size, columns.durations_s.size}
    if per_worker != {workers} or not workers:
        raise InputError(f"a block of patterns names {workers} places for {columns.ranks.size} workers")
    if {columns.worker.size, columns.resource.size, columns.numbers.shape[1]} != {rows}:
        raise InputError(f"the columns of a block of patterns are not all {rows} rows long")
    for index, limit in (
        (columns.key, len(block.keys)),
        (columns.worker, workers),
        (columns.resource, len(block.resources)),
    ):
        if rows and not 0 <= index.min() <= index.max() < limit:
            raise InputError("a row of a block of patterns names what is not there")
    return columns


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


_LINE = re.compile(r":\d+\)")
_MOST_FINDINGS, _MOST_CULPRITS = 50, 500
#: Functions of a window that are kept for comparisons between runs.
_PROFILE = 200


class Change(Protocol):
    """A piece that was checked, to be entered."""

    def __call__(self, connection: sa.Connection, entry: Entry) -> Iterable[str]:
        """Enter it; files of patterns that are no longer needed."""


class Entry(NamedTuple):
    """What all rows of a piece carry."""

    project_id: int
    run_id: int
    piece: Piece


def number(value: float | None, most: float = 1e12) -> float | None:
    """A number that is none, negative or absurdly large becomes None."""
    return value if value is not None and math.isfinite(value) and 0 <= value <= most else None


def _prepare_verdict(piece: Piece, data: bytes, project_id: int, store: PatternStore) -> Change:
    del project_id, store
    body = decode_body(data, VerdictBody)
    verdict, cause = body.verdict, body.verdict.cause
    if not 0 <= body.window_id < 2**31 or number(body.judged_at) is None:
        raise InputError("a verdict needs the number of its window and its time")
    row = {
        "window_id": body.window_id,
        "piece_at": piece.at,
        "judged_at": body.judged_at,
        "purpose": clean(body.purpose, 20),
        "verdict": verdict.verdict,
        "summary": clean(verdict.summary, 2000),
        "cause": clean(cause.cause, 60) if cause else "",
        "function": clean(cause.function.name, 300) if cause else "",
        "gain": number(cause.gain) if cause else None,
        "confidence": (number(cause.confidence) or 0.0) if cause else 0.0,
        "baseline_ms": number(verdict.iteration.baseline_ms),
        "current_ms": number(verdict.iteration.current_ms),
        "record": zlib.compress(msgspec.json.encode(verdict), 6),
    }
    causes = [finding for finding in verdict.findings if finding.role == "cause"][:_MOST_FINDINGS]
    found = [(_finding_row(finding, body), _culprit_rows(finding, body)) for finding in causes]
    window_id, judged_at = body.window_id, body.judged_at

    def enter(connection: sa.Connection, entry: Entry) -> Iterable[str]:
        ours = (verdicts.c.run_id == entry.run_id, verdicts.c.window_id == window_id)
        before = connection.execute(sa.select(verdicts.c.id, verdicts.c.piece_at).where(*ours)).first()
        if before is not None and before.piece_at > piece.at:
            return ()
        connection.execute(sa.delete(verdicts).where(*ours))
        where = {"project_id": entry.project_id, "run_id": entry.run_id}
        verdict_id = _inserted(connection, verdicts, {**where, **row})
        for finding, named in found:
            finding_id = _inserted(connection, findings, {**where, **finding, "verdict_id": verdict_id})
            if named:
                connection.execute(sa.insert(culprits), [{**where, **one, "finding_id": finding_id} for one in named])
        connection.execute(
            sa.update(runs)
            .where(runs.c.id == entry.run_id, sa.func.coalesce(runs.c.judged_at, 0.0) <= judged_at)
            .values({name: row[name] for name in ("verdict", "cause", "summary", "judged_at")})
        )
        return ()

    return enter


def _finding_row(finding: Finding, body: VerdictBody) -> dict[str, Any]:
    return {
        "window_id": body.window_id,
        "judged_at": body.judged_at,
        "cause": clean(finding.cause, 60),
        "function": clean(finding.function.name, 300),
        "kind": finding.function.kind,
        "scope": finding.scope,
        "workers": len(finding.workers),
        "gain": number(finding.gain),
        "confidence": number(finding.confidence) or 0.0,
    }


def _culprit_rows(finding: Finding, body: VerdictBody) -> list[dict[str, Any]]:
    if finding.scope != "some":  # nobody is named who could be repaired
        return []
    named: list[tuple[Place, int | None]] = [
        (body.places[rank], rank) for rank in finding.workers if rank in body.places
    ]
    seen = {place.host for place, _ in named}
    named += [(Place(host=host), None) for host in finding.hosts if host not in seen]
    return [
        {
            "judged_at": body.judged_at,
            "host": clean(place.host, 300),
            "device": clean(place.device, 200),
            "global_rank": rank if rank is None or 0 <= rank < 2**31 else None,
        }
        for place, rank in named[:_MOST_CULPRITS]
    ]


def _prepare_patterns(piece: Piece, data: bytes, project_id: int, store: PatternStore) -> Change:
    columns = columns_of(decode_body(data, PatternBlock))
    numbers = (columns.block.window_id, columns.block.block, columns.block.iterations - 1)
    if not all(0 <= value < 2**31 - 1 for value in numbers):
        raise InputError("patterns need the numbers of their window and block, and an iteration at least")
    stored = store.save(project_id, piece, columns)
    row = _file_row(piece, columns, stored)

    def enter(connection: sa.Connection, entry: Entry) -> Iterable[str]:
        ours = (
            pattern_files.c.run_id == entry.run_id,
            pattern_files.c.window_id == row["window_id"],
            pattern_files.c.block == row["block"],
        )
        before = connection.execute(sa.select(pattern_files.c.path, pattern_files.c.piece_at).where(*ours)).first()
        if before is not None and before.piece_at > piece.at:
            return (stored.path,)
        connection.execute(sa.delete(pattern_files).where(*ours))
        where = {"project_id": entry.project_id, "run_id": entry.run_id}
        connection.execute(sa.insert(pattern_files).values(**where, **row))
        return () if before is None or before.path == stored.path else (before.path,)

    return enter


def _file_row(piece: Piece, columns: BlockColumns, stored: Stored) -> dict[str, Any]:
    block = columns.block
    return {
        "window_id": block.window_id,
        "block": block.block,
        "purpose": clean(block.purpose, 20),
        "piece_at": piece.at,
        "path": stored.path,
        "workers": len(block.places),
        "iterations": block.iterations,
        "rows": stored.rows,
        "bytes": stored.bytes,
        "profile": zlib.compress(json.dumps(profile_of(columns)).encode(), 6),
    }


def profile_of(columns: BlockColumns) -> dict[str, float]:
    """Function -> critical seconds, summed over the block's workers; the heaviest ones.

    A Python function is its leaf frame without the line, which another commit moves.
    """
    keys = columns.block.keys
    seconds = np.bincount(columns.key, columns.numbers[NUMBERS.index("critical_s")], len(keys))
    found: dict[str, float] = {}
    for key, value in zip(keys, seconds.tolist(), strict=True):
        name = clean(_LINE.sub(")", key.stack[-1]) if key.stack else key.name, 300)
        found[name] = found.get(name, 0.0) + (number(value) or 0.0)
    heaviest = sorted(found.items(), key=lambda item: item[1], reverse=True)
    return {name: round(value, 6) for name, value in heaviest[:_PROFILE] if value > 0}


def _prepare_standstill(piece: Piece, data: bytes, project_id: int, store: PatternStore) -> Change:
    del piece, project_id, store
    body = decode_body(data, StandstillBody)
    if not 0 <= body.window_id < 2**31 or number(body.seen_at) is None:
        raise InputError("a standstill needs the number of its look and its time")
    window_id, seen_at, record = body.window_id, body.seen_at, zlib.compress(body.record, 6)

    def enter(connection: sa.Connection, entry: Entry) -> Iterable[str]:
        ours = (standstills.c.run_id == entry.run_id, standstills.c.window_id == window_id)
        before = connection.execute(sa.select(standstills.c.seen_at).where(*ours)).scalar()
        if before is not None and before > seen_at:
            return ()
        connection.execute(sa.delete(standstills).where(*ours))
        connection.execute(
            sa.insert(standstills).values(
                project_id=entry.project_id,
                run_id=entry.run_id,
                window_id=window_id,
                seen_at=seen_at,
                record=record,
            )
        )
        return ()

    return enter


PREPARE: dict[str, Callable[[Piece, bytes, int, PatternStore], Change]] = {
    "verdict": _prepare_verdict,
    "patterns": _prepare_patterns,
    "standstill": _prepare_standstill,
}


def _inserted(connection: sa.Connection, table: sa.Table, row: dict[str, Any]) -> int:
    key = connection.execute(sa.insert(table).values(**row)).inserted_primary_key
    assert key is not None
    return int(key[0])
