"""Exports of Nsight Systems (`nsys export --type sqlite`) as `EventTable`, one for each process.

The schema is NVIDIA's "SQLite Export Schema Reference"; tables are there only if something was recorded for them, and
columns differ with the version: `demangledName` or `name`, `text` or `textId`. What was tried are databases made by
hand after that reference. A database is read only, never trusted: no views, no triggers, a bounded number of steps.

    CUPTI_ACTIVITY_KIND_KERNEL, _MEMCPY, _MEMSET   the device
    CUPTI_ACTIVITY_KIND_RUNTIME                    calls of the driver and the runtime ("cudaLaunchKernel_v7000")
    NVTX_EVENTS                                    ranges: operators of `emit_nvtx`, NCCL's own, the user's
    OSRT_API                                       what threads that call CUDA do in the operating system
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np

from eroica.errors import InputError
from eroica.settings import Settings
from eroica.trace.table import Category, EventTable, TraceHeader

if TYPE_CHECKING:
    import sqlite3

MAGIC = b"SQLite format 3\x00"
_KERNELS, _COPIES, _FILLS, _CALLS, _RANGES, _SYSTEM = (
    "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "OSRT_API",
)  # fmt: skip
_OURS = frozenset({_KERNELS, _COPIES, _FILLS, _CALLS, _RANGES, _SYSTEM})
_PROCESS_SHIFT, _NUMBER = 24, 0xFFFFFF
_VERSION = re.compile(r"(_v\d+|_ptsz|_ptds)+$")
_OPERATOR = re.compile(r"^(aten|c10d|autograd|torch|prim|c10d_functional|_c10d_functional)::|^[A-Za-z]\w*Backward\d*\b")
_MOST_NAME = 2_000
_STEPS_AT_ONCE, _MOST_STEPS = 1_000_000, 20_000
#: copyKind of CUPTI (`CUpti_ActivityMemcpyKind`).
_COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}

_Row = tuple[int, str, int, int, int, int]


def is_database(path: Path) -> bool:
    """Whether a file is an SQLite database.

    Raises:
        OSError: It cannot be read.
    """
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def is_nsight(path: Path) -> bool:
    """Whether a database is an export of Nsight Systems; a damaged one may be: its reader says what is wrong."""
    try:
        with _opened(path) as database:
            return bool(_OURS & _tables(database).keys())
    except InputError:
        return True


def processes_of(path: Path) -> tuple[int, ...]:
    """Processes that used a device, by the number of the first device of each, then by their own.

    Raises:
        InputError: The file cannot be read.
    """
    with _opened(path) as database:
        found: dict[int, int] = {}
        for table in (_KERNELS, _COPIES):
            if {"globalPid", "deviceId"} <= _tables(database).get(table, frozenset()):
                for process, device in database.execute(f"SELECT globalPid, MIN(deviceId) FROM {table} GROUP BY 1"):
                    if isinstance(process, int) and isinstance(device, int):
                        number = process >> _PROCESS_SHIFT & _NUMBER
                        found[number] = min(device, found.get(number, device))
        if not found and "globalTid" in _tables(database).get(_CALLS, frozenset()):
            for (process,) in database.execute(f"SELECT DISTINCT globalTid >> {_PROCESS_SHIFT} FROM {_CALLS}"):
                found[process & _NUMBER] = 0
        return tuple(sorted(found, key=lambda number: (found[number], number)))


def read_nsight(path: Path, process: int, settings: Settings) -> EventTable:
    """Read what one process did.

    Args:
        path: The database.
        process: Its number, as `processes_of` gives it; -1 for the only one.
        settings: `max_trace_events` bounds what is kept.

    Raises:
        InputError: The file cannot be read, or holds nothing of Nsight's.
    """
    with _opened(path) as database:
        tables = _tables(database)
        if not _OURS & tables.keys():
            raise InputError(f"{path} is an SQLite database, but no export of Nsight Systems")
        reader = _Reader(database, tables, process)
        rows = list(reader.rows(settings.max_trace_events))
        host, device, epoch = reader.facts()
    overflow = len(rows) >= settings.max_trace_events
    limit = f"only the first {settings.max_trace_events:,} events were kept (max_trace_events)"
    return _table(rows, TraceHeader(process_id=process, host=host, device=device, has_wall_clock=epoch > 0), epoch,
                  (limit,) if overflow else ())  # fmt: skip


def _table(rows: Sequence[_Row], header: TraceHeader, epoch: int, losses: tuple[str, ...]) -> EventTable:
    strings: dict[str, int] = {}
    name = np.array([strings.setdefault(row[1][:_MOST_NAME], len(strings)) for row in rows], dtype=np.int32)
    columns = np.array([(row[0], *row[2:]) for row in rows], dtype=np.int64).reshape(-1, 5)
    order = np.lexsort((-columns[:, 3], columns[:, 2]))
    kind, thread, start, end, link = columns[order].T
    return EventTable(
        strings=tuple(strings),
        name=name[order],
        category=kind.astype(np.int8),
        thread=thread,
        start_ns=start + epoch,
        end_ns=np.maximum(end, start) + epoch,
        link=link,
        header=header,
        losses=losses,
        damage=losses,
    )


class _Reader:
    """The tables of one database, for one process."""

    def __init__(self, database: sqlite3.Connection, tables: dict[str, frozenset[str]], process: int) -> None:
        self._database = database
        self._tables = tables
        self._process = process
        self._texts: dict[int, str] = {}
        if "StringIds" in tables:
            rows = database.execute("SELECT id, value FROM StringIds")
            self._texts = {number: text for number, text in rows if isinstance(text, str)}

    def rows(self, most: int) -> Iterator[_Row]:
        """Category, name, thread or stream, start, end and link of each event."""
        return islice(self._all(), most)

    def _all(self) -> Iterator[_Row]:
        callers: set[int] = set()
        for begin, end, thread, link, name in self._select(_CALLS, "globalTid", "correlationId", "nameId"):
            callers.add(thread)
            yield Category.RUNTIME, _VERSION.sub("", self._text(name)), thread & _NUMBER, begin, end, link
        yield from self._ranges()
        naming = next((one for one in ("demangledName", "shortName", "name") if one in self._columns(_KERNELS)), "name")
        for begin, end, _, link, name, stream in self._select(
            _KERNELS, "globalPid", "correlationId", naming, "streamId"
        ):
            yield Category.KERNEL, self._text(name), stream, begin, end, link
        for begin, end, _, link, kind, stream in self._select(
            _COPIES, "globalPid", "correlationId", "copyKind", "streamId"
        ):
            yield Category.MEMORY, f"Memcpy {_COPY_KINDS.get(kind, kind)}", stream, begin, end, link
        for begin, end, _, link, _, stream in self._select(_FILLS, "globalPid", "correlationId", "value", "streamId"):
            yield Category.MEMORY, "Memset", stream, begin, end, link
        for begin, end, thread, _, name in self._select(_SYSTEM, "globalTid", "returnValue", "nameId"):
            if thread in callers:
                yield Category.RUNTIME, self._text(name), thread & _NUMBER, begin, end, -1

    def _ranges(self) -> Iterator[_Row]:
        columns = self._columns(_RANGES)
        text = "text" if "text" in columns else "NULL"
        for begin, end, thread, _, name, number in self._select(_RANGES, "globalTid", "eventType", text, "textId"):
            label = name if isinstance(name, str) and name else self._text(number)
            if _OPERATOR.match(label):
                yield Category.OPERATOR, label.partition(", ")[0], thread & _NUMBER, begin, end, -1
            elif label:
                yield Category.ANNOTATION, label, thread & _NUMBER, begin, end, -1

    def _select(self, table: str, owner: str, *wanted: str) -> Iterator[tuple]:  # type: ignore[type-arg]
        """Start, end, owner and further columns of this process's rows that last; missing columns are -1."""
        columns = self._columns(table)
        if not {"start", "end"} <= columns:
            return
        names = [f'"{one}"' if one in columns else "NULL" if one == "NULL" else "-1" for one in (owner, *wanted)]
        for row in self._database.execute(f'SELECT start, "end", {", ".join(names)} FROM {table}'):
            begin, end, whose, *others = row
            if not (isinstance(begin, int) and isinstance(end, int) and isinstance(whose, int)):
                continue
            number = whose >> _PROCESS_SHIFT & _NUMBER
            if end > begin >= 0 and (self._process < 0 or whose < 0 or number == self._process):
                yield (begin, end, whose, *(one if isinstance(one, (int, str)) else -1 for one in others))

    def _columns(self, table: str) -> frozenset[str]:
        return self._tables.get(table, frozenset())

    def _text(self, number: object) -> str:
        return number if isinstance(number, str) else self._texts.get(number, "") if isinstance(number, int) else ""

    def facts(self) -> tuple[str, str, int]:
        """Host, device, and when the recording began, nanoseconds since 1970 (0 if it does not say)."""
        host = self._one(
            "SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'Hostname'", "TARGET_INFO_SYSTEM_ENV", "value"
        )
        device = self._one("SELECT name FROM TARGET_INFO_GPU ORDER BY id", "TARGET_INFO_GPU", "name")
        began = self._one(
            "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_SESSION_START_TIME", "utcEpochNs"
        )
        epoch = began if isinstance(began, int) and 0 < began < 2**62 else 0
        return str(host or "")[:200], str(device or "")[:200], epoch

    def _one(self, query: str, table: str, column: str) -> object:
        if column not in self._columns(table):
            return None
        row = self._database.execute(query).fetchone()
        return row[0] if row else None


def _tables(database: sqlite3.Connection) -> dict[str, frozenset[str]]:
    """Columns of each table; views do not count."""
    names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    known = [name for name in names if isinstance(name, str) and re.fullmatch(r"\w{1,80}", name)]
    return {name: frozenset(row[1] for row in database.execute(f"PRAGMA table_info({name})")) for name in known}


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """The database for reading, with a bound on what it may make us do.

    Raises:
        InputError: It is damaged, locked, or asks for too much.
    """
    import sqlite3  # who has other traces need not wait for it

    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return int(steps > _MOST_STEPS)

    try:
        uri = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True)) as database:
            database.text_factory = lambda data: data.decode("utf-8", "replace")
            database.execute("PRAGMA trusted_schema = OFF")
            database.set_progress_handler(count, _STEPS_AT_ONCE)
            yield database
    except (sqlite3.Error, OverflowError) as error:
        raise InputError(
            f"{path} is a damaged database: {error}; export it again (`nsys export --type sqlite`)"
        ) from error
