"""Kineto (Chrome) traces as `EventTable`: what torch wrote since 2021, on any accelerator or none.

A file is read in bounded pieces, so memory follows the number of events and not the size of the file. What cannot be
read costs only itself and is said in `EventTable.losses`; a file is refused only if nothing sensible is in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from eroica.errors import InputError
from eroica.settings import Settings
from eroica.trace.assemble import assemble
from eroica.trace.chunks import EventStream
from eroica.trace.columns import Columns
from eroica.trace.foreign import writer_of
from eroica.trace.header import read_header
from eroica.trace.source import TraceSource
from eroica.trace.table import EventTable

_DEFAULTS = Settings()
_BASE = "baseTimeNanoseconds"
_FEW_NOTHING = 1_000
_MOST_NOTHING = 1_000_000
_NOTHING_SHARE = 0.99
#: Events that may be left out without a word to the verdict.
_LITTLE = 0.01
_LONG_AGO_NS = 300_000_000_000_000_000


def read_trace(
    path: Path, settings: Settings = _DEFAULTS, progress: Callable[[int], None] | None = None, links: bool = False
) -> EventTable:
    """Read one worker's trace.

    Args:
        path: A .json or .json.gz as Kineto writes it, or a bare list of Chrome events; its name does not matter.
        settings: `max_trace_bytes` and `max_trace_events` bound what is read and kept.
        progress: Called with the bytes of the file consumed since the last call, four times a second at most.
        links: Read which call launched what on a device, too: a quarter of the time more (`EventTable.link`).

    Returns:
        Its complete events ("ph": "X", or "B" and "E"). What was still open when the trace was stopped ends with the
        trace: Kineto says so with "finished": false and cuts it itself; an event without a usable duration is cut here.

    Raises:
        InputError: The file cannot be read, or is no trace.
    """
    columns = Columns(settings.max_trace_events, links)
    with TraceSource(path, settings.max_trace_bytes, progress) as source:
        stream = EventStream(source)
        for events in stream:
            columns.add(events)
            _refuse_nothing(columns, path, _MOST_NOTHING)
            if columns.overflow:
                break
    if columns.nothing == columns.seen and (stream.count or stream.losses or stream.bare):
        raise InputError("; ".join((f"{path} is JSON, but no trace: it holds no events", *stream.losses)))
    _refuse_nothing(columns, path, _FEW_NOTHING)
    table, process, device = assemble(columns, _base_ns(stream.keys.get(_BASE), path))
    header, doubts = read_header(stream.keys, process, device)
    header = replace(header, writer=writer_of({place[0] for place in columns.places}, stream.keys.keys()))
    losses = [*stream.losses, *table.losses, *doubts]
    damage = [*stream.cuts, *_much_left_out(columns, stream.damaged)]
    if not (stream.complete or stream.bare or _BASE in stream.keys) and table.start_ns.max(initial=0) < _LONG_AGO_NS:
        header = replace(header, has_wall_clock=False)
        losses.append("what its times count from is lost: they tell durations and order, but no time of day")
    return replace(table, header=header, losses=tuple(losses), damage=tuple(damage), bytes_read=source.unpacked)


def _much_left_out(columns: Columns, damaged: int) -> list[str]:
    """A sentence where so much is left out that what is left may mislead."""
    if columns.overflow:
        return columns.losses()[:1]
    lost = columns.timeless + columns.negative + damaged
    if lost <= _LITTLE * max(columns.seen, 1):
        return []
    return [f"{lost:,} of {columns.seen:,} events could not be read"]


def _refuse_nothing(columns: Columns, path: Path, most: int) -> None:
    """Refuse a file of which nearly all objects are no events."""
    if columns.nothing > most and columns.nothing > _NOTHING_SHARE * columns.seen:
        raise InputError(
            f"{path} is no trace: {columns.nothing:,} of its first {columns.seen:,} objects are empty or unreadable"
        )


def _base_ns(raw: msgspec.Raw | None, path: Path) -> int:
    try:
        base = 0 if raw is None else int(msgspec.json.decode(raw, type=int | str))
    except (msgspec.DecodeError, ValueError, RecursionError):
        base = -1
    if not 0 <= base <= 2**62:
        raise InputError(f"{path} counts its times from {bytes(raw or b'')[:40]!r}, which is no time; capture it again")
    return base
