"""Recordings as Nsight Systems would have exported them: made by hand after NVIDIA's schema reference."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from support.written_jobs import START_US, Trace

_SCHEMA = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, devStateName TEXT, name TEXT, nameEnum INTEGER, value TEXT);
CREATE TABLE TARGET_INFO_GPU (vmId INTEGER, id INTEGER, name TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    streamId INTEGER, correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER,
    globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT, globalTid INTEGER,
    textId INTEGER, domainId INTEGER);
CREATE TABLE OSRT_API (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER, globalTid INTEGER,
    nameId INTEGER NOT NULL, returnValue INTEGER);
"""


def write_nsight(traces: Mapping[int, Trace], path: Path) -> Path:
    """Ranks of one host, each on its own device, as one export; `traces` as PyTorch would have written them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as database:
        database.executescript(_SCHEMA)
        writer = _Writer(database)
        for rank, trace in traces.items():
            for event in trace["traceEvents"]:
                writer.add(event, 4000 + rank, rank)
        writer.close()
        database.commit()
    return path


class _Writer:
    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._strings: dict[str, int] = {}

    def add(self, event: dict[str, Any], process: int, device: int) -> None:
        """One event of a trace as a row of its table."""
        start = round((event["ts"] - START_US) * 1000) + 1_000_000_000
        end = start + round(event["dur"] * 1000)
        link = event.get("args", {}).get("correlation", 0)
        owner = process << 24
        thread = owner | int(event["tid"])
        name, category = event["name"], event["cat"]
        values: tuple[object, ...]
        if category == "kernel":
            values = (
                start,
                end,
                device,
                1,
                event["tid"],
                link,
                owner,
                self._text(name),
                self._text(name.split("(")[0]),
            )
            self._insert("CUPTI_ACTIVITY_KIND_KERNEL", values)
        elif category == "gpu_memcpy":
            self._insert("CUPTI_ACTIVITY_KIND_MEMCPY", (start, end, device, event["tid"], link, owner, 4096, 2))
        elif category == "cuda_runtime":
            values = (start, end, 0, thread, link, self._text(f"{name}_v7000"), 0)
            self._insert("CUPTI_ACTIVITY_KIND_RUNTIME", values)
        else:
            text = f"{name}, seq = 7, op_id = 9" if category == "cpu_op" else name
            by_id = category == "cpu_op"
            values = (start, end, 59, None if by_id else text, thread, self._text(text) if by_id else None, 0)
            self._insert("NVTX_EVENTS", values)

    def close(self) -> None:
        """Names, times and the device."""
        for text, number in self._strings.items():
            self._insert("StringIds", (number, text))
        self._insert("TARGET_INFO_SESSION_START_TIME", (round(START_US * 1000) - 1_000_000_000, "", ""))
        self._insert("TARGET_INFO_SYSTEM_ENV", (0, "", "Hostname", 0, "node-1"))
        self._insert("TARGET_INFO_GPU", (0, 0, "NVIDIA H100 80GB HBM3"))

    def _text(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings) + 1)

    def _insert(self, table: str, values: tuple[object, ...]) -> None:
        marks = ", ".join("?" for _ in values)
        self._database.execute(f"INSERT INTO {table} VALUES ({marks})", values)
