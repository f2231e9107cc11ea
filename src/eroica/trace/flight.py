"""Flight Recorder dumps (JSON, as torch writes them on demand) as records."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import msgspec

from eroica.errors import InputError
from eroica.model.look import FlightState, GroupProgress
from eroica.model.window import FlightEntry

_MAX_BYTES = 256_000_000
_MAX_ENTRIES = 100_000
_MAX_TEXT = 200
_MAX_OPEN = 256
_MAX_GROUPS = 256
_RECENT = 32


class _Entry(msgspec.Struct):
    profiling_name: str
    process_group: list[str] = []
    collective_seq_id: int = 0
    p2p_seq_id: int = 0
    op_id: int = 0
    is_p2p: bool = False
    time_created_ns: int = 0
    input_sizes: list[list[int]] = []
    pg_id: int = -1
    state: str = ""
    retired: bool = False

    @property
    def completed(self) -> bool:
        """NCCL's entries have a state; gloo's stay "scheduled" until they are retired."""
        return self.retired or self.state == "completed"


class _Dump(msgspec.Struct):
    entries: list[_Entry] = []


class _State(msgspec.Struct):
    entries: list[_Entry] = []
    pg_status: dict[str, dict[str, int | str]] = {}


_DUMP = msgspec.json.Decoder(_Dump)
_STATE = msgspec.json.Decoder(_State)


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


def flight_state(data: bytes | msgspec.Raw) -> FlightState:
    """Where a worker stands in its process groups.

    Args:
        data: A dump, or what is left of one: "pg_status" and "entries".

    Returns:
        Counters per group, entries that have not completed, and the last ones that have; a bounded number of each.

    Raises:
        InputError: It is no dump.
    """
    try:
        dump = _STATE.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"no Flight Recorder state: {error}") from error
    raws = sorted(dump.entries[-_MAX_ENTRIES:], key=lambda raw: raw.time_created_ns)
    still_open = [_entry(raw) for raw in raws if not raw.completed]
    completed = [_entry(raw) for raw in raws if raw.completed]
    return FlightState(
        progress=tuple(_progress(dump.pg_status, raws)),
        open=tuple(still_open[:_MAX_OPEN]),
        recent=tuple(_last_of_each_group(completed)),
    )


def _progress(status: dict[str, dict[str, int | str]], raws: list[_Entry]) -> Iterator[GroupProgress]:
    """The recorder counts by group number; names stand in the entries. Without counters, entries are counted."""
    names = {str(raw.pg_id): raw.process_group[0][:_MAX_TEXT] for raw in raws if raw.process_group}
    told = set()
    for number, counts in list(status.items())[:_MAX_GROUPS]:
        name = names.get(number, number[:_MAX_TEXT])
        if number in names or name not in names.values():
            told.add(name)
            enqueued, completed = (_count(counts.get(f"last_{what}_collective")) for what in ("enqueued", "completed"))
            yield GroupProgress(name=name, enqueued=enqueued, completed=completed)
    for name in list(dict.fromkeys(names.values()))[:_MAX_GROUPS]:
        if name not in told:
            of_group = [raw for raw in raws if not raw.is_p2p and raw.process_group[:1] == [name]]
            sequences = [_bounded(raw.collective_seq_id) for raw in of_group]
            ended = [_bounded(raw.collective_seq_id) for raw in of_group if raw.completed]
            yield GroupProgress(name=name, enqueued=max(sequences, default=-1), completed=max(ended, default=-1))


def _count(text: int | str | None) -> int:
    """A counter, which torch writes as text; -1 for none."""
    try:
        return _bounded(int(text)) if text is not None and int(text) >= 0 else -1
    except ValueError:
        return -1


def _last_of_each_group(entries: list[FlightEntry]) -> list[FlightEntry]:
    kept: dict[str, int] = {}
    found = []
    for entry in reversed(entries):
        kept[entry.group] = kept.get(entry.group, 0) + 1
        if kept[entry.group] <= _RECENT and len(kept) <= _MAX_GROUPS:
            found.append(entry)
    found.reverse()
    return found


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
