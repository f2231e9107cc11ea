"""Flight Recorder dumps, as torch wrote them over time: pickled or as JSON, in files or on demand.

First a plain list of entries, then a dict with "version" and "entries" (1.x: `seq_id` instead of `collective_seq_id`,
the group as text or not at all), "pg_config" and "pg_status" (2.x). JSON writes numbers as text, `ranks` are text such
as "[0, 1]". A dump may hold only the entries that have not completed.

A pickle is a program. Every instruction is looked at before one runs: only those that make dicts, lists, tuples, text,
bytes and numbers are admitted, every length must lie inside the file, and memory and collisions are bounded.
"""

from __future__ import annotations

import io
import math
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from eroica.errors import InputError
from eroica.model.look import FlightState, GroupProgress
from eroica.model.window import FlightEntry
from eroica.model.worker import ProcessGroup
from eroica.trace.names import rank_of_dump

_MAX_CONTAINERS = 5_000_000
_MAX_TUPLES = 50_000  # their hashes can be made to collide: as keys of one dict they cost the square of this
_STOP, _FRAME = ord("."), 0x95
#: Instructions of fixed length: integers of at most nine bytes, so that keys cannot collide by the thousand, and places
#: in the memo below 2**24. At most 4,096 in a row, because the search remembers each.
_FIXED = re.compile(
    rb"(?:[()\]}uase012N\x88\x89\x94]"
    rb"|[Khq\x80].|M..|[Jj].{4}|r...\x00|G.{8}"
    rb"|\x8a(?:\x00|\x01.|\x02..|\x03.{3}|\x04.{4}|\x05.{5}|\x06.{6}|\x07.{7}|\x08.{8}|\x09.{9})){1,4096}",
    re.DOTALL,
)
_TUPLES = b"t\x85\x86\x87"
#: Instructions with a length before their content: how many bytes the length takes.
_COUNTED = {
    ord("X"): 4, 0x8C: 1, 0x8D: 8,  # text
    ord("T"): 4, ord("U"): 1, ord("B"): 4, ord("C"): 1, 0x8E: 8,  # bytes
}  # fmt: skip
#: Bytes after these that belong to them; `_FIXED` matches them where they are whole.
_FIXED_LENGTHS = b"KMhqJjrG\x8a"
#: Integers too long for `_FIXED`, which a cut may leave as the last instruction.
_LONGER = b"\x8a\x8b"
_LONGEST = 11
_MAX_BYTES = 64_000_000
_MAX_OWN_BYTES = 256_000_000
_MAX_ENTRIES = 100_000
_MAX_OPEN = 256
_MAX_GROUPS = 1024
_MAX_RANKS = 1_000_000
_MAX_MEMBERS = 4_000_000  # characters or numbers that list them, all groups together
_MAX_TEXT = 200
_MAX_DIMENSIONS = 16
_RECENT = 32
_PICKLED = re.compile(rb"\x80[\x02-\x05](?:\x95.{8})?[}\]]", re.DOTALL)
_JSON = re.compile(rb"\s*(?:\{\s*\"|\[\s*\{\s*\")")
_WORDS = re.compile(
    rb"pg_config|pg_status|collective_seq_id|profiling_name|last_enqueued_collective|nccl_version|comm_lib_version"
    rb"|nccl_comm_state"
)
_STATES = ("scheduled", "started", "completed")
_POINT_TO_POINT = re.compile(r"(?:\w+:)?(?:send|recv)\b")


class _DataUnpickler(pickle.Unpickler):
    """Resolves no name."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise pickle.UnpicklingError(f"it asks for {module_name[:60]}.{global_name[:60]}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it asks for an object from elsewhere")


def load_data(data: bytes) -> Any:
    """Read a pickle that holds data only.

    Args:
        data: The whole pickle, protocol 2 or later.

    Returns:
        Dicts, lists, tuples, text, bytes, numbers, truth values and None; containers may share or contain each other.

    Raises:
        InputError: It holds anything else, is cut short, or would take too much memory or time.
    """
    _check(data)
    try:
        return _DataUnpickler(io.BufferedReader(io.BytesIO(data), 1 << 16)).load()
    except (pickle.UnpicklingError, EOFError, UnicodeDecodeError, MemoryError, RecursionError) as error:
        raise InputError(f"the pickle cannot be read: {error or type(error).__name__}") from error
    except (TypeError, ValueError, AttributeError, LookupError, OverflowError) as error:
        raise InputError(f"the pickle does not fit together: {error}") from error


def _check(data: bytes) -> None:
    """Walk over all instructions without running them."""
    if data[:1] != b"\x80":
        raise InputError("it is no pickle of protocol 2 or later")
    if data.count(b"]") + data.count(b"}") > _MAX_CONTAINERS:
        raise InputError("the pickle holds more lists than a dump does")
    at, tuples, size = 0, 0, len(data)
    while at < size:
        run = _FIXED.match(data, at)
        if run is not None:
            at = run.end()
            continue
        code = data[at]
        if code == _STOP:
            return
        if code in _COUNTED:
            at += 1 + _COUNTED[code] + int.from_bytes(data[at + 1 : at + 1 + _COUNTED[code]], "little")
        elif code == _FRAME:
            at += 9  # a frame that reaches beyond the end shows in what is missing at the end
        elif code in _TUPLES and tuples < _MAX_TUPLES:
            at, tuples = at + 1, tuples + 1
        elif size - at < _LONGEST and (code in _LONGER or code in _FIXED_LENGTHS):
            break
        else:
            raise InputError(
                f"the pickle is damaged, or does more than hold data (instruction 0x{code:02x} at byte {at}) and would "
                "run code of its author's where it is loaded; nothing of it was run here"
            )
    raise InputError("the pickle is cut short; copy or dump it again")


class FlightDump(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker's Flight Recorder had written down when it was dumped.

    Attributes:
        rank: Global rank; None if neither the file's name nor the groups tell it.
        groups: Process groups of the worker.
        state: Counters per group, entries that have not completed in the order of their enqueuing, and the last ones
            that have.
        notes: What is missing in the dump.
    """

    rank: int | None = None
    groups: tuple[ProcessGroup, ...] = ()
    state: FlightState = FlightState()
    notes: tuple[str, ...] = ()


class _Entry(msgspec.Struct):
    """An entry with what is needed of it."""

    flight: FlightEntry
    group_id: str
    collective: int
    completed: bool


def is_dump(head: bytes) -> bool:
    """Whether a file that begins like this is a Flight Recorder dump.

    Args:
        head: The first bytes of the file; 4 KB are enough.
    """
    if _PICKLED.match(head):
        return _WORDS.search(head) is not None or b"seq_id" in head or (b"entries" in head and b"version" in head)
    return _JSON.match(head) is not None and b"traceEvents" not in head and _WORDS.search(head) is not None


def read_dump(path: Path, rank: int | None = None) -> FlightDump:
    """Read a dump.

    Args:
        path: A pickle or JSON.
        rank: Global rank of its worker, where the file's name does not tell it.

    Returns:
        What it says. Entries that make no sense are left out and counted in a note.

    Raises:
        InputError: The file cannot be read, is cut short, is no dump, or does more than hold data.
    """
    data = _read(path, _MAX_BYTES)
    try:
        return parse_dump(data, rank if rank is not None else rank_of_dump(path.name))
    except InputError as error:
        raise InputError(f"{path} is no Flight Recorder dump that can be used: {error}") from error


def parse_dump(data: bytes, rank: int | None = None) -> FlightDump:
    """Read a dump that is in memory; see `read_dump`."""
    content = load_data(data) if data[:1] in (b"\x80", b"c", b"i") else _load_json(data)
    if isinstance(content, list):
        content = {"entries": content}
    if not isinstance(content, dict) or not any(key in content for key in ("entries", "pg_config", "pg_status")):
        raise InputError('it has neither "entries" nor "pg_status"')
    groups = tuple(_groups(content.get("pg_config")))
    raws = content.get("entries")
    listed = raws[-_MAX_ENTRIES:] if isinstance(raws, list) else []
    entries, unread = _entries(listed)
    if listed and unread == len(listed):
        raise InputError("none of its entries names a collective")
    if entries and not content.get("pg_status") and _is_damaged(listed[-1]):
        raise InputError("its newest entry is damaged, so nobody can tell how far its worker was; dump it again")
    notes = [f"{unread} entries of the dump make no sense and are left out"] if unread else []
    notes += [] if groups else ["the dump does not tell who is a member of which process group"]
    notes += [] if content.get("pg_status") else ["the dump tells by its entries only how far the worker is"]
    return FlightDump(
        rank=rank if rank is not None else _rank_of_groups(groups),
        groups=groups,
        state=_state(entries, groups, content.get("pg_status"), listed="entries" in content),
        notes=tuple(notes),
    )


def _load_json(data: bytes) -> Any:
    if data.count(b"[") + data.count(b"{") > _MAX_CONTAINERS:
        raise InputError("the JSON holds more lists than a dump does")
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"the JSON cannot be read: {error}") from error


def read_flight(path: Path) -> list[FlightEntry]:
    """Read the JSON of `_dump_fr_trace_json` (2.x) that a worker of ours left.

    Returns:
        Its entries that make sense in the order they were enqueued, of the newest 100,000.

    Raises:
        InputError: The file cannot be read, is cut short, or is no dump.
    """
    try:
        content = _load_json(_read(path, _MAX_OWN_BYTES))
    except InputError as error:
        raise InputError(f"{path} is no Flight Recorder dump: {error}") from error
    raws = content.get("entries", []) if isinstance(content, dict) else None
    listed = raws[-_MAX_ENTRIES:] if isinstance(raws, list) else []
    found = [_entry(raw).flight for raw in listed if not _is_damaged(raw)]
    if not isinstance(raws, list) or (listed and not found):
        raise InputError(f"{path} is no Flight Recorder dump")
    return sorted(found, key=lambda entry: entry.created_ns)


def _read(path: Path, most: int) -> bytes:
    try:
        if path.stat().st_size > most:
            raise InputError(f"{path} has more than {most} bytes; that is no Flight Recorder dump")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


def flight_state(data: bytes | msgspec.Raw) -> FlightState:
    """Return where a worker stands in its process groups.

    Args:
        data: JSON of a dump, or what is left of one: "pg_status" and "entries".

    Raises:
        InputError: It is no dump.
    """
    return parse_dump(bytes(data)).state


# ---------------------------------------------------------------------- groups


def _groups(config: object) -> Iterator[ProcessGroup]:
    """The worker's groups. Lists that are shared by many groups are read a bounded number of times."""
    room = _MAX_MEMBERS
    for key, raw in list(config.items())[:_MAX_GROUPS] if isinstance(config, dict) else ():
        if isinstance(key, str) and isinstance(raw, dict):
            told = raw.get("ranks")
            size = len(told) if isinstance(told, str | list | tuple) else 0
            room -= size
            name = _text(raw.get("name")) or key[:_MAX_TEXT]
            ranks = _ranks(told) if size and room >= 0 else ()
            if name:  # gloo writes one without name and members
                yield ProcessGroup(name=name, description=_text(raw.get("desc")), ranks=ranks)


def _ranks(told: object) -> tuple[int, ...]:
    """Global ranks: a list, or the text of one; nothing where it is anything else."""
    raw = re.findall(r"\d{1,7}", told) if isinstance(told, str) else told
    numbers = tuple(_number(one) for one in raw) if isinstance(raw, list | tuple) else ()
    return numbers if all(0 <= one < _MAX_RANKS for one in numbers) and len(set(numbers)) == len(numbers) else ()


def _rank_of_groups(groups: Iterable[ProcessGroup]) -> int | None:
    """A worker lists only groups in which it is a member: the rank that they have in common, if there is just one."""
    common: set[int] | None = None
    for group in groups:
        common = set(group.ranks) if common is None else common & set(group.ranks)
    return next(iter(common)) if common is not None and len(common) == 1 else None


# ---------------------------------------------------------------------- entries


def _entries(raws: list[Any]) -> tuple[list[_Entry], int]:
    """Those that make sense, in the order in which they were enqueued, and how many do not."""
    found, unread = [], 0
    kept: dict[Any, int] = {}
    for raw in reversed(raws):
        if _is_damaged(raw):
            unread += 1
            continue
        if _is_completed(raw):  # only the last ones of each group are kept
            group = raw.get("pg_id")
            group = group if isinstance(group, int | str) else None
            kept[group] = kept.get(group, 0) + 1
            if kept[group] > _RECENT:
                continue
        found.append(_entry(raw))
    found.reverse()
    return found, unread


def _is_damaged(raw: object) -> bool:
    """Return whether an entry has something else where torch writes its name, state, number or group."""
    if not isinstance(raw, dict) or not isinstance(raw.get("profiling_name"), str) or not raw["profiling_name"]:
        return True
    if "state" in raw and raw["state"] not in _STATES:
        return True
    if any(key in raw and _number(raw[key]) < 0 for key in ("collective_seq_id", "seq_id")):
        return True
    group = raw.get("process_group")
    if isinstance(group, list | tuple):
        return len(group) == 1  # a name without the description that goes with it
    return not isinstance(group, str | None)


def _entry(raw: Mapping[str, Any]) -> _Entry:
    name = raw["profiling_name"][:_MAX_TEXT]
    told = raw.get("is_p2p")
    pairwise = told if isinstance(told, bool) else _POINT_TO_POINT.match(name) is not None
    group = raw.get("process_group")
    if isinstance(group, list | tuple):
        group = group[0] if group else ""
    collective = _number(raw.get("collective_seq_id", raw.get("seq_id")), least=0)
    return _Entry(
        flight=FlightEntry(
            name=name,
            group=_text(group) or _text(raw.get("pg_id")),
            sequence=_number(raw.get("p2p_seq_id"), least=0) if pairwise else collective,
            operation=_number(raw.get("op_id"), least=0),
            is_p2p=pairwise,
            created_ns=_number(raw.get("time_created_ns"), least=0),
            elements=_elements(raw.get("input_sizes")),
        ),
        group_id=_text(raw.get("pg_id")),
        collective=collective,
        completed=_is_completed(raw),
    )


def _is_completed(raw: Mapping[str, Any]) -> bool:
    """Gloo's entries stay "scheduled" until they are retired; NCCL's that are retired without have timed out."""
    return raw.get("state") == "completed" or (
        raw.get("retired") is True and not raw["profiling_name"].startswith("nccl")
    )


def _elements(sizes: object) -> int:
    """Elements of the first input."""
    first = sizes[0] if isinstance(sizes, list | tuple) and sizes else None
    if not isinstance(first, list | tuple) or len(first) > _MAX_DIMENSIONS:
        return 0
    product = math.prod(_number(one, least=0) for one in first)
    return product if product < 2**62 else 0


# ---------------------------------------------------------------------- counters


def _state(entries: list[_Entry], groups: tuple[ProcessGroup, ...], status: object, *, listed: bool) -> FlightState:
    still_open = [entry.flight for entry in entries if not entry.completed]
    done = [entry for entry in entries if entry.completed]
    mixed = {entry.flight.group for entry in entries if entry.flight.is_p2p}
    progress = dict(_told(entries, groups, status if isinstance(status, dict) else {}))
    counted = {entry.flight.group for entry in entries}
    for name in sorted(counted)[:_MAX_GROUPS]:
        of_group = [entry for entry in entries if entry.flight.group == name]
        told = progress.get(name) if name not in mixed else None
        enqueued = max(entry.collective for entry in of_group)
        completed = max((one.collective for one in of_group if one.completed and not one.flight.is_p2p), default=-1)
        progress[name] = GroupProgress(
            name=name,
            enqueued=max(enqueued, told.enqueued if told else -1),
            completed=max(completed, told.completed if told else -1),
        )
    if not listed:
        still_open = [
            FlightEntry(name="a collective", group=one.name, sequence=one.completed + 1)
            for one in progress.values()
            if 0 <= one.completed < one.enqueued
        ]
    return FlightState(
        progress=tuple(progress.values()),
        open=tuple(still_open[:_MAX_OPEN]),
        recent=tuple(entry.flight for entry in done),
        mixed=tuple(sorted(mixed)),
    )


def _told(
    entries: list[_Entry], groups: tuple[ProcessGroup, ...], status: Mapping[Any, Any]
) -> Iterator[tuple[str, GroupProgress]]:
    """What the recorder's counters say, by name of the group. They count by another number than its name."""
    counts = {str(key)[:_MAX_TEXT]: raw for key, raw in list(status.items())[:_MAX_GROUPS] if isinstance(raw, dict)}
    for number, name in _names(entries, groups, counts).items():
        raw = counts[number]
        yield (
            name,
            GroupProgress(
                name=name,
                enqueued=_number(raw.get("last_enqueued_collective")),
                completed=_number(raw.get("last_completed_collective")),
            ),
        )


def _names(entries: list[_Entry], groups: tuple[ProcessGroup, ...], counts: Mapping[str, Any]) -> dict[str, str]:
    """Group number -> name, as far as it is certain.

    Entries hold both. For the others: both numbers and names count groups in the order in which they were made, so if
    there are equally many of them, they belong together in their order, unless an entry contradicts.
    """
    known = {entry.group_id: entry.flight.group for entry in entries if entry.group_id in counts}
    names = [group.name for group in groups]
    if len(names) == len(counts) and all(one.isdecimal() and len(one) < 10 for one in (*names, *counts)):
        ordered = dict(zip(sorted(counts, key=int), sorted(names, key=int), strict=True))
        if all(ordered[number] == name for number, name in known.items()):
            return ordered
    if not groups:
        return {number: known.get(number, number) for number in counts}
    return known


# ---------------------------------------------------------------------- values


def _number(raw: object, least: int = -1) -> int:
    """A number, also written as text; `least` for none and for what no counter can be."""
    if isinstance(raw, str) and len(raw) < 20:
        try:
            raw = int(raw)
        except ValueError:
            return least
    if isinstance(raw, float) and raw.is_integer() and abs(raw) < 2**53:
        raw = int(raw)
    return raw if isinstance(raw, int) and not isinstance(raw, bool) and least <= raw < 2**62 else least


def _text(raw: object) -> str:
    """Text, bounded; numbers as torch's older versions wrote them."""
    if isinstance(raw, str):
        return raw[:_MAX_TEXT]
    return str(raw) if isinstance(raw, int) and abs(raw) < 2**62 else ""
