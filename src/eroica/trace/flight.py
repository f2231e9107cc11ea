"""Flight Recorder dumps (JSON, as torch writes them on demand) as records."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from eroica.errors import InputError
from eroica.model.window import FlightEntry

_MAX_BYTES = 256_000_000
_MAX_ENTRIES = 100_000
_MAX_TEXT = 200


class _Entry(msgspec.Struct):
    profiling_name: str
    process_group: list[str] = []
    collective_seq_id: int = 0
    p2p_seq_id: int = 0
    op_id: int = 0
    is_p2p: bool = False
    time_created_ns: int = 0
    input_sizes: list[list[int]] = []


class _Dump(msgspec.Struct):
    entries: list[_Entry] = []


_DUMP = msgspec.json.Decoder(_Dump)


def read_flight(path: Path) -> list[FlightEntry]:
    """Read a dump.

    Args:
        path: The JSON of `_dump_fr_trace_json`; version 2.x.

    Returns:
        Its entries in the order they were enqueued, the newest 100,000 at most.

    Raises:
        InputError: The file cannot be read, is cut short, or is no dump.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise InputError(f"{path} has more than {_MAX_BYTES} bytes; that is no Flight Recorder dump")
        dump = _DUMP.decode(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path} is no Flight Recorder dump: {error}") from error
    entries = [_entry(raw) for raw in dump.entries[-_MAX_ENTRIES:]]
    return sorted(entries, key=lambda entry: entry.created_ns)


def _entry(raw: _Entry) -> FlightEntry:
    return FlightEntry(
        name=raw.profiling_name[:_MAX_TEXT],
        group=raw.process_group[0][:_MAX_TEXT] if raw.process_group else "",
        sequence=_bounded(raw.p2p_seq_id if raw.is_p2p else raw.collective_seq_id),
        operation=_bounded(raw.op_id),
        is_p2p=raw.is_p2p,
        created_ns=_bounded(raw.time_created_ns),
        elements=_bounded(math.prod(raw.input_sizes[0])) if raw.input_sizes else 0,
    )


def _bounded(number: int) -> int:
    return number if 0 <= number < 2**62 else 0
